"""Asking others what has been trained: a newcomer was not there, and believes what most of those it asks say."""

import asyncio
import functools
import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from collab.data.blocks import BlockPlan, blocks_in
from collab.data.coverage import Coverage
from collab.data.lease_records import PAGE_BYTES
from collab.data.ledger import Ledger
from collab.errors import BadMessage, NetworkError
from collab.net.base import Stream, Transport
from collab.net.errands import Errands
from collab.net.wire import Message
from collab.swarm.records import MAX_DATA_CHARACTERS, MAX_PASS
from collab.types import PeerId

COVERAGE_PROTOCOL = "collab/coverage/2"
ASKED = 8
"""As many as are asked for a state."""
MAX_WORD_BYTES = 128 << 10
"""Of an answer: four passes of 4,096 blocks are 4 KB, the accounts of 512 peers 40 KB."""
MAX_WORD_PASSES = 64
MAX_WORD_ROWS = 512
MAX_SAMPLES = float(1 << 53)


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What one peer says has been trained."""

    data: str
    """Its name."""
    passes: Mapping[int, tuple[list[int], list[int]]]
    """Of each: what was trained, and what more than once, page by page."""
    accounts: Mapping[PeerId, tuple[float, float]]
    """Of others: samples committed, and samples per second."""


Keeper = Callable[[], tuple[Coverage, Ledger] | None]
"""What we know ourselves; None: nothing yet."""


async def serve_coverage(
    transport: Transport, errands: Errands, fingerprint: str, keeper: Keeper, now: Callable[[], float]
) -> None:
    """Answer whoever asks what has been trained."""

    async def answer(stream: Stream) -> None:
        question = await stream.receive(timeout_s=errands.limit_s())
        known = keeper() if question.get("fingerprint", str) == fingerprint else None
        if known is None:
            await stream.send(Message("unknown"), timeout_s=errands.limit_s())
        else:
            await stream.send(Message("coverage", payload=_pack(*known, now())), timeout_s=errands.limit_s())
        await stream.receive(timeout_s=errands.limit_s())  # "thanks": everything arrived

    await transport.serve(COVERAGE_PROTOCOL, answer)


async def ask_for_coverage(
    transport: Transport, errands: Errands, fingerprint: str, peers: Sequence[PeerId]
) -> list[Word]:
    """What each of ``peers`` says, of those that answer and know anything."""
    answers = await asyncio.gather(*(_ask(transport, errands, fingerprint, peer) for peer in peers[:ASKED]))
    return [word for word in answers if word is not None]


async def _ask(transport: Transport, errands: Errands, fingerprint: str, peer: PeerId) -> Word | None:
    try:
        with errands.asking(peer) as limit_s:
            stream = await transport.open(peer, COVERAGE_PROTOCOL, timeout_s=limit_s)
            try:
                await stream.send(Message("coverage?", {"fingerprint": fingerprint}), timeout_s=limit_s)
                answer = await stream.receive(timeout_s=limit_s)
                word = _unpack(bytes(answer.payload)) if answer.kind == "coverage" else None
                await stream.send(Message("thanks"), timeout_s=limit_s)
                return word
            finally:
                stream.close()
    except NetworkError:
        return None


def merge(words: Sequence[Word], coverage: Coverage, ledger: Ledger, now: float) -> bool:
    """Believe what most of ``words`` say of our data; whether any was about it.

    A block is trained if most of those say so that know its pass. No pass counts that fewer than half of them have
    begun, and of a peer's account the middle of what they say.
    """
    words = [word for word in words if _is_about(word, coverage.plan)]
    if not words:
        return False
    begun = statistics.median_low(max(word.passes, default=0) for word in words)
    for number in sorted({number for word in words for number in word.passes if number <= begun}):
        told = [word.passes[number] for word in words if number in word.passes]
        pages = range(coverage.plan.num_pages)
        trained = [_majority([once[page] for once, _ in told], page, coverage.plan) for page in pages]
        again = [_majority([more[page] for _, more in told], page, coverage.plan) for page in pages]
        coverage.adopt(number, trained, again)
    known = {peer for word in words for peer in word.accounts}
    nothing = (0.0, 0.0)
    accounts = {
        peer: (
            statistics.median_low(word.accounts.get(peer, nothing)[0] for word in words),
            statistics.median_low(word.accounts.get(peer, nothing)[1] for word in words),
        )
        for peer in sorted(known)
    }
    plan = coverage.plan
    ledger.adopt(accounts, now, pass_samples=float(plan.num_blocks * plan.proof_samples(0)))
    return True


def _is_about(word: Word, plan: BlockPlan) -> bool:
    """Whether it is about passes that are cut like ours."""
    full = [plan.full_page(page) for page in range(plan.num_pages)]
    cuts = [pages for told in word.passes.values() for pages in told]
    return word.data == plan.data and all(
        len(pages) == len(full) and all(bits & ~most == 0 for bits, most in zip(pages, full, strict=True))
        for pages in cuts
    )


def _majority(told: Sequence[int], page: int, plan: BlockPlan) -> int:
    """Bits that are set in more than half of ``told``."""
    bits = 0
    first = page * plan.page_blocks
    anybodys = functools.reduce(operator.or_, told, 0)  # of most pages, for a newcomer, nothing
    for block in blocks_in(plan.full_page(page) & anybodys, page):
        bit = 1 << block - first
        if 2 * sum(bool(word & bit) for word in told) > len(told):
            bits |= bit
    return bits


def _pack(coverage: Coverage, ledger: Ledger, now: float) -> bytes:
    passes = [
        [number, _bytes(known.trained), _bytes(known.again)]
        for number, known in sorted(coverage.passes.items())[-MAX_WORD_PASSES:]
    ]
    rows = sorted(ledger.rows(now), key=lambda row: -row[2])[:MAX_WORD_ROWS]
    packed: bytes = msgpack.packb([coverage.plan.data, passes, [list(row) for row in rows]])
    return packed


def _bytes(pages: list[int]) -> bytes:
    return b"".join(bits.to_bytes(PAGE_BYTES, "big") for bits in pages)


def _unpack(data: bytes) -> Word:
    """A word as it came.

    Raises:
        BadMessage: too large, malformed or impossible.
    """
    if len(data) > MAX_WORD_BYTES:
        raise BadMessage(f"coverage of {len(data)} bytes is over the limit of {MAX_WORD_BYTES}")
    try:
        name, passes, rows = msgpack.unpackb(data)
        if not isinstance(name, str) or len(name) > MAX_DATA_CHARACTERS:
            raise BadMessage("coverage of no data")
        if len(passes) > MAX_WORD_PASSES or len(rows) > MAX_WORD_ROWS:
            raise BadMessage("coverage of more passes or peers than we ask for")
        told = {_number(number): (_pages(once), _pages(more)) for number, once, more in passes}
        return Word(data=name, passes=told, accounts={_peer(peer): _account(*amounts) for peer, *amounts in rows})
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise BadMessage(f"coverage is malformed: {error!r:.120}") from error


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_PASS:
        raise BadMessage("coverage of an impossible pass")
    return value


def _pages(value: Any) -> list[int]:
    if not isinstance(value, bytes) or len(value) % PAGE_BYTES or len(value) > MAX_WORD_BYTES:
        raise BadMessage("coverage of no whole pages")
    return [int.from_bytes(value[at : at + PAGE_BYTES], "big") for at in range(0, len(value), PAGE_BYTES)]


def _peer(value: Any) -> PeerId:
    if not isinstance(value, str) or len(value) > 128:
        raise BadMessage("coverage names no peer")
    return PeerId(value)


def _account(samples: Any, rate: Any) -> tuple[float, float]:
    for amount in (samples, rate):
        if type(amount) is not float or not math.isfinite(amount) or abs(amount) > MAX_SAMPLES:
            raise BadMessage("coverage with an impossible account")
    return samples, rate
