"""Whose word about the swarm's state counts: a backbone of the owner's names those whom it has seen contribute.

Identities are free to make, so where many strangers offer a state their number says nothing. A peer that was in rounds
which the backbone has seen committed has at least worked for the run.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from collab.averaging.agreement import MAX_MEMBERS, CommitRecord
from collab.errors import BadMessage, NetworkError
from collab.net.base import Stream, Transport
from collab.net.errands import Errands
from collab.net.wire import Message
from collab.types import PeerId

logger = logging.getLogger(__name__)

VOUCH_PROTOCOL = "collab/vouch/1"
LEAST_ROUNDS = 2
"""Of those that a backbone remembers; one of a single round may have come just now."""


async def serve_vouching(
    transport: Transport, errands: Errands, records: Callable[[], Iterable[CommitRecord]]
) -> None:
    """Tell newcomers who has contributed to the rounds that we remember."""

    async def answer(stream: Stream) -> None:
        await stream.receive(timeout_s=errands.limit_s())
        rows = [[peer, rounds] for peer, rounds in contributors_of(records()).most_common(MAX_MEMBERS)]
        await stream.send(Message("contributors", {"rows": rows}), timeout_s=errands.limit_s())
        await stream.receive(timeout_s=errands.limit_s())  # "thanks": it was heard

    await transport.serve(VOUCH_PROTOCOL, answer)


def contributors_of(records: Iterable[CommitRecord]) -> Counter[PeerId]:
    """In how many of these rounds each peer's data is."""
    return Counter(peer for record in records for peer, _ in record.contributors)


def furthest(records: Iterable[CommitRecord], unless: int) -> int:
    """Epoch that the last of these rounds led to; ``unless`` there is none."""
    return max((record.epoch + 1 for record in records), default=unless)


async def who_has_contributed(
    transport: Transport, errands: Errands, backbones: Iterable[PeerId]
) -> frozenset[PeerId]:
    """Those whom the first backbone that knows of any has seen contribute; none: nobody knows.

    Args:
        backbones: whose word counts.
    """
    for backbone in backbones:
        try:
            with errands.asking(backbone) as limit_s:
                counts = await _ask(transport, backbone, limit_s)
        except NetworkError as error:
            logger.info("backbone does not say who has contributed peer=%s reason=%s", backbone, error)
            continue
        if counts:
            return steady_of(counts)
    return frozenset()


def steady_of(counts: Mapping[PeerId, int]) -> frozenset[PeerId]:
    """Those of them whose word counts."""
    return frozenset(peer for peer, rounds in counts.items() if rounds >= LEAST_ROUNDS) or frozenset(counts)


async def _ask(transport: Transport, backbone: PeerId, limit_s: float) -> dict[PeerId, int]:
    stream = await transport.open(backbone, VOUCH_PROTOCOL, timeout_s=limit_s)
    try:
        await stream.send(Message("contributors?"), timeout_s=limit_s)
        rows = (await stream.receive(timeout_s=limit_s)).rows("rows", str, int)
        if len(rows) > MAX_MEMBERS or any(rounds < 1 for _, rounds in rows):
            raise BadMessage(f"{backbone} names {len(rows)} contributors, or some of no round")
        await stream.send(Message("thanks"), timeout_s=limit_s)
        return {PeerId(peer): rounds for peer, rounds in rows}
    finally:
        stream.close()
