"""One reducer's work in one round: the weighted mean over its span, part by part."""

import asyncio
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from blake3 import blake3

from collab.averaging.agreement import MAX_WEIGHT
from collab.averaging.contributions import Weight
from collab.averaging.robust import Rule
from collab.averaging.weights import are_runs_of, dense
from collab.compression.base import Buffer, Codec
from collab.errors import BadMessage, BadPart
from collab.net.wire import Message
from collab.types import PeerId, Vector

OwnPart = Callable[[int, int], Vector]
"""The reducer's own contribution to the elements ``start .. stop - 1`` of the span: it travels nowhere."""
Encode = Callable[[int, Vector], Buffer]
"""Encodes the mean of the part that begins at an element of the span, and remembers what the encoding lost."""
Runs = Sequence[tuple[int, float]]
"""Samples behind the elements of a part, as (how many, samples behind each of them)."""


@dataclass(frozen=True, slots=True)
class Result:
    """The mean of one part, as it travels."""

    data: Buffer
    missing: tuple[int, ...] = ()
    """Contributors, by their place in the group's order, of whom nothing is in it."""

    @classmethod
    def from_message(cls, message: Message, num_contributors: int) -> "Result":
        """As it came. Raises ``BadMessage`` when it leaves out what are no contributors, or not in their order."""
        missing = message.fields.get("missing", [])
        if not isinstance(missing, list) or not all(type(place) is int for place in missing):
            raise BadMessage("a result says in no list of numbers whom it leaves out")
        if sorted(set(missing)) != missing or not set(missing) <= set(range(num_contributors)):
            raise BadMessage("a result leaves out contributors that are none")
        return cls(message.payload, tuple(missing))

    def digest(self) -> bytes:
        """BLAKE3 of all of it: every byte of a round passes here, and SHA-256 is twice to six times as slow."""
        digest = blake3(self.data)
        if self.missing:
            digest.update(json.dumps(self.missing).encode())
        return digest.digest()


def span_digest(digests: Sequence[bytes]) -> str:
    """SHA-256 over the digests of a span's results, in order."""
    return hashlib.sha256(b"".join(digests)).hexdigest()


def part_edges(num_elements: int, part_elements: int) -> list[tuple[int, int]]:
    """Where a span of ``num_elements`` is cut into parts; the same on every peer."""
    return [(start, min(start + part_elements, num_elements)) for start in range(0, num_elements, part_elements)]


class SenderFailed(BadPart):
    """A reduction failed because of one contributor, ``culprit``."""

    def __init__(self, culprit: PeerId, error: BadPart) -> None:
        super().__init__(error.reason, str(error))
        self.culprit = culprit


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a reducer needs to know of its span."""

    num_elements: int
    """Length of the span."""
    part_elements: int
    """Length of a part; the last one may be shorter."""
    weights: Mapping[PeerId, float]
    """Samples of every contributor, all positive, in the group's order."""
    codecs: Mapping[PeerId, Codec]
    """Of the parts of every contributor but the reducer itself."""
    own_part: OwnPart
    """Asked only when the reducer contributes."""
    own_runs: Callable[[int, int], Runs] | None = None
    """Samples behind our own elements ``start .. stop - 1``; None: our weight everywhere."""
    own_is_ready: Callable[[int], bool] | None = None
    """Whether our own elements before one are final; None: all are. ``look_again`` is to be called when more are."""
    encode: Encode
    """Makes the bytes that every receiver gets."""
    finished: Callable[[int, Result], None] | None = None
    """Told of every result."""
    readers: int
    """How often each result will be taken before it may be forgotten."""
    rule: Rule | None = None
    """How contributions become one; None: their mean, weighted by samples."""


class Reduction:
    """Collects the parts of all contributors and averages each as soon as the last one is there.

    The sum runs in float32 in the group's order, so that arrival order never changes the bytes. A contributor that is
    gone is left out of the parts it never sent. Memory: the decoded parts that wait for a slower contributor, and the
    encoded results that somebody has still to take.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._edges = part_edges(work.num_elements, work.part_elements)
        self._usual = _factors(work.weights)
        self._failure: BadPart | None = None
        self._gone: set[PeerId] = set()
        self.num_of: Counter[PeerId] = Counter()
        """Parts that have come so far, by their sender; grows until the reduction is finished."""
        self._waiting: list[dict[PeerId, Vector] | None] = [{} for _ in self._edges]
        self._runs: dict[tuple[int, PeerId], Runs] = {}
        """Of parts whose samples are not those of BEGIN."""
        self._results: list[Result | None] = [None] * len(self._edges)
        self._readers_left = [work.readers] * len(self._edges)
        self._awaited: dict[int, asyncio.Event] = {}
        """Set when an unfinished part is finished; of parts that somebody waits for, since an event is large."""
        self._product = np.empty(min(work.part_elements, work.num_elements), np.float32)
        if not work.codecs:
            self.look_again()

    @property
    def num_parts(self) -> int:
        """Parts of the span."""
        return len(self._edges)

    @property
    def is_finished(self) -> bool:
        """Whether all parts are."""
        return all(waiting is None for waiting in self._waiting)

    def missing(self) -> list[PeerId]:
        """Contributors that hold up the first unfinished part; empty when all are finished, or it waits for ours."""
        for waiting in self._waiting:
            if waiting is not None:
                return [peer for peer in self._work.codecs if peer not in waiting and peer not in self._gone]
        return []

    def expects(self, peer: PeerId) -> bool:
        """Whether ``peer`` is a contributor who has to send, and without whom nobody goes on."""
        return peer in self._work.codecs and peer not in self._gone

    def add(self, peer: PeerId, index: int, data: Buffer, runs: Runs | None = None) -> None:
        """Add one encoded part; after ``fail``, or when its sender counts as gone, it is dropped without blame.

        Args:
            runs: samples behind its elements; None: the sender's weight everywhere.

        Raises:
            BadPart: from a stranger, twice, out of range, of a wrong length, or not finite; nothing was changed.
        """
        codec = self._work.codecs.get(peer)
        if codec is None:
            raise BadPart("not_a_contributor", f"{peer} is no contributor of this round")
        if not 0 <= index < len(self._edges):
            raise BadPart("no_such_part", f"part {index} of {len(self._edges)} from {peer}")
        if self._failure is not None or peer in self._gone:
            return
        waiting = self._waiting[index]
        if waiting is None or peer in waiting:
            raise BadPart("twice", f"part {index} came twice from {peer}")
        start, stop = self._edges[index]
        if runs is not None and not are_runs_of(runs, stop - start, MAX_WEIGHT):
            raise BadPart("bad_weight", f"part {index} from {peer} has weights that make no sense")
        values = codec.decode(data, stop - start)
        if not np.isfinite(values).all():
            raise BadPart("not_finite", f"part {index} from {peer} has NaN or Inf")
        waiting[peer] = values
        if runs is not None:
            self._runs[index, peer] = runs
        self.num_of[peer] += 1
        if self._is_complete(index, waiting):
            self._finish(index, waiting)

    def leave_out(self, peers: Collection[PeerId]) -> None:
        """Wait no longer for these contributors: parts that have not come are averaged without them."""
        self._gone.update(peers)
        self.look_again()

    def look_again(self) -> None:
        """Finish what is complete by now."""
        for index, waiting in enumerate(self._waiting):
            if self._failure is None and waiting is not None and self._is_complete(index, waiting):
                self._finish(index, waiting)

    def _is_complete(self, index: int, waiting: Mapping[PeerId, Vector]) -> bool:
        if self._work.own_is_ready is not None and not self._work.own_is_ready(self._edges[index][1]):
            return False
        return all(peer in waiting or peer in self._gone for peer in self._work.codecs)

    def _finish(self, index: int, values: dict[PeerId, Vector]) -> None:
        start, stop = self._edges[index]
        for peer in self._work.weights.keys() - self._work.codecs.keys():
            values[peer] = self._work.own_part(start, stop)
            if self._work.own_runs is not None:
                self._runs[index, peer] = self._work.own_runs(start, stop)
            if not np.isfinite(values[peer]).all():
                self.fail(SenderFailed(peer, BadPart("not_finite", f"part {index} of {peer} has NaN or Inf")))
                return
        if not values:
            self.fail(BadPart("nobody_left", f"nobody is left who contributes to part {index}"))
            return
        total = self._mean(index, values) if self._work.rule is None else self._robust(index, values, self._work.rule)
        missing = tuple(place for place, peer in enumerate(self._work.weights) if peer not in values)
        result = Result(self._work.encode(start, total), missing)
        self._waiting[index] = None
        self._results[index] = result if self._work.readers else None
        if self._work.finished is not None:
            self._work.finished(index, result)
        if index in self._awaited:
            self._awaited.pop(index).set()

    def _mean(self, index: int, values: Mapping[PeerId, Vector]) -> Vector:
        start, stop = self._edges[index]
        total = np.zeros(stop - start, np.float32)
        product = self._product[: stop - start]
        for peer, factor in self._factors_of(index, values).items():
            np.multiply(values[peer], factor, out=product)
            np.add(total, product, out=total)
        return total

    def _robust(self, index: int, values: Mapping[PeerId, Vector], rule: Rule) -> Vector:
        present = [peer for peer in self._work.weights if peer in values]
        runs = {peer: self._runs.pop((index, peer), None) for peer in present}
        weights = [self._capped(peer, its_runs) for peer, its_runs in runs.items()]
        return rule.reduce([values[peer] for peer in present], weights)

    def _capped(self, peer: PeerId, runs: Runs | None) -> Weight:
        """Samples behind a part, of which none counts for more than its sender's weight."""
        weight = self._work.weights[peer]
        return weight if runs is None else np.minimum(dense(runs), np.float32(weight))

    def _factors_of(self, index: int, values: Mapping[PeerId, Vector]) -> Mapping[PeerId, "np.float32 | Vector"]:
        """What each contributor's values count for, in the group's order."""
        runs = {peer: self._runs.pop((index, peer)) for peer in values if (index, peer) in self._runs}
        if not runs and len(values) == len(self._usual):
            return self._usual
        present = {peer: weight for peer, weight in self._work.weights.items() if peer in values}
        if not runs:
            return _factors(present)
        start, stop = self._edges[index]
        samples = {peer: self._capped(peer, runs.get(peer, [(stop - start, present[peer])])) for peer in present}
        total = np.sum([np.asarray(weights, np.float64) for weights in samples.values()], axis=0)
        total[total == 0] = 1.0  # nobody has anything new there: the mean is zero
        return {peer: np.asarray(weights / total, np.float32) for peer, weights in samples.items()}

    async def result(self, index: int) -> Result:
        """Encoded mean of part ``index``, once every contributor's part is there; each reader takes it once.

        Raises:
            BadPart: the reduction failed; the reason says why.
        """
        await self._until_finished(index)
        result = self._results[index]
        if result is None:
            raise self._failed("the result was given away already")
        self._readers_left[index] -= 1
        if not self._readers_left[index]:
            self._results[index] = None
        return result

    async def finished(self) -> None:
        """Returns when every part is reduced.

        Raises:
            BadPart: the reduction failed before.
        """
        for index in range(len(self._edges)):
            await self._until_finished(index)
            if self._waiting[index] is not None:
                raise self._failed("the reduction was given up")

    def fail(self, error: BadPart) -> None:
        """Give up: everybody who waits for a result that is not there yet gets ``error``."""
        if self._failure is None:
            self._failure = error
        for awaited in self._awaited.values():
            awaited.set()

    def _failed(self, otherwise: str) -> BadPart:
        """What to raise; each who waits gets one of its own."""
        return self._failure.again() if self._failure is not None else BadPart("over", otherwise)

    async def _until_finished(self, index: int) -> None:
        """Until the part is reduced, or given up."""
        if self._waiting[index] is not None and self._failure is None:
            await self._awaited.setdefault(index, asyncio.Event()).wait()


def _factors(weights: Mapping[PeerId, float]) -> Mapping[PeerId, np.float32]:
    total = math.fsum(weights.values())
    return {peer: np.float32(weight / total) for peer, weight in weights.items()}
