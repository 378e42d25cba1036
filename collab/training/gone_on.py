"""Whom a straggler asks what followed its history, where trainers do not wait for rounds."""

from collections.abc import Callable, Iterable, Sequence

from collab.averaging.agreement import CommitRecord
from collab.averaging.seats import Instance
from collab.types import PeerId


def who_has_gone_on(
    history: Instance, known: Iterable[CommitRecord], ahead: Sequence[PeerId], *, me: PeerId,
    knows: Callable[[PeerId], bool],
) -> list[PeerId]:  # fmt: skip
    """First who has contributed to what followed, as far as we have heard of that, or to what made it.

    Their last words may be older than their last step. Where trainers wait for rounds they are in the next one already,
    and a straggler that asked them came later than who asks by the words.

    Args:
        history: ours.
        known: committed rounds.
        ahead: who has gone on by their last words, or may have.
        knows: whether the swarm has heard of a peer.
    """
    records = {(record.epoch, record.lineage): record for record in known}
    made = (record for record in records.values() if record.next_lineage() == history[1])
    record = records.get(history) or next(made, None)
    there = {peer for peer, _ in record.contributors} if record is not None else set[PeerId]()
    unsaid = [peer for peer in sorted(there - {me, *ahead}) if knows(peer)]
    return [*(peer for peer in ahead if peer in there), *unsaid, *(peer for peer in ahead if peer not in there)]
