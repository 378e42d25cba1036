"""Which snapshot a backbone should have on its disk now, and who can give it. Pure."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from collab.averaging.agreement import CommitRecord
from collab.config import Checkpoints
from collab.swarm.backbone_records import BackboneRecord, Publication
from collab.swarm.progress import SwarmView
from collab.swarm.vouching import contributors_of, furthest
from collab.types import Lineage, PeerId, Role


@dataclass(frozen=True, slots=True)
class Due:
    """What should be here, and is not."""

    epoch: int | None
    """None: the newest there is."""
    donors: tuple[PeerId, ...]
    published: Publication | None = None
    """Whose bytes it should be, if a backbone has published it already."""
    lineage: Lineage | None = None
    """Of which history it must be; None: not known."""


def due_snapshot(
    others: SwarmView, records: Collection[BackboneRecord], checkpoints: Checkpoints, until_epoch: int | None,
    *, rounds: Sequence[CommitRecord] = (), trusts: Callable[[PeerId], bool] = lambda _: True,
) -> tuple[int, Due] | None:  # fmt: skip
    """The newest snapshot that others have, and that is to be kept, with its epoch; None: nobody has any.

    While trainers go on that is one of every ``every_epochs``, and the last one. Where nobody has gone on since
    everybody was started it is whatever is newest: it may be all that is left.

    What is beyond the rounds that were seen, as after a time without the others, counts if one of them says so whom we
    trust, or have seen in a round: strangers that come when all have left could name any epoch.

    Args:
        others: the swarm without ourselves.
        records: of all backbones.
        rounds: the last ones that committed, as far as we know.
        trusts: whether the word of a backbone counts.
    """
    backbones = [record for record in others.records if record.role is Role.BACKBONE and trusts(record.peer)]
    consensus, is_at_rest = others.consensus(), others.is_at_rest()
    holders = [record for record in others.records if record.role is Role.TRAINER and record.lineage]
    of_trainers = -1
    if is_at_rest:
        of_trainers = max((record.epoch for record in holders), default=-1)
    elif consensus is not None:
        every = checkpoints.every_epochs
        is_over = until_epoch is not None and consensus[0] >= until_epoch
        of_trainers = until_epoch if is_over and until_epoch is not None else consensus[0] // every * every
        holders = list(others.all_trainers())
    kept = [r.checkpoint_epoch for r in backbones if is_at_rest or r.checkpoint_epoch <= of_trainers]
    epoch = max([of_trainers, *kept])
    if epoch < 0:
        return None
    donors = [record.peer for record in backbones if record.checkpoint_epoch == epoch]
    if epoch == of_trainers:
        donors += [record.peer for record in holders if record.epoch >= epoch and record.lineage]
    known = {record.peer for record in backbones} | contributors_of(rounds).keys()
    if epoch > furthest(rounds, epoch) + 1 and known.isdisjoint(donors):
        return None
    told = [r.published for r in records if r.published is not None and r.published.epoch == epoch]
    return epoch, Due(epoch, tuple(donors), max(told, key=lambda publication: publication.tenure, default=None))


def offered_snapshot(
    peer: PeerId, epoch: int, view: SwarmView, rounds: Sequence[CommitRecord], voice_of: Callable[[PeerId], PeerId]
) -> Due | None:
    """What a trainer offers that leaves, and who else may have it; None: only that peer says that the run is there.

    It was in the round that made it, or most trainers stand there by their last words. One that nobody has been in a
    round with could name any epoch, and what is saved of it would take the place of the run's own checkpoints.

    Args:
        rounds: the last ones that committed, as far as we know.
        voice_of: under whom a peer counts.
    """
    there = tuple(record.peer for record in view.all_trainers() if record.epoch >= epoch and record.peer != peer)
    for made in reversed(rounds):  # an earlier one may be of a history that was rolled back
        if made.epoch + 1 == epoch and peer in {*made.members, *dict(made.contributors)}:
            return Due(epoch, (peer, *there), lineage=made.next_lineage())
    said = {record.peer: record.epoch for record in view.records if record.role is Role.TRAINER and record.lineage}
    said |= view.left
    is_known = peer in said and epoch <= _reached(view, said, voice_of)
    return Due(epoch, (peer, *there)) if is_known and epoch <= furthest(rounds, epoch) + 1 else None


def _reached(view: SwarmView, said: dict[PeerId, int], voice_of: Callable[[PeerId], PeerId]) -> int:
    """Where trainers stand, or left: most of them; where nobody has gone on since it was started, the furthest."""
    if view.crowd:
        return (view.consensus() or (-1,))[0]
    if view.is_at_rest():
        return max(said.values())
    votes = Counter(epoch for _, epoch in {(voice_of(peer), epoch) for peer, epoch in said.items()})
    return max(votes, key=lambda epoch: (votes[epoch], epoch))
