"""Which snapshot a backbone should have on its disk now, and who can give it. Pure."""

from collections.abc import Collection
from dataclasses import dataclass

from collab.config import Checkpoints
from collab.swarm.backbone_records import BackboneRecord, Publication
from collab.swarm.progress import SwarmView
from collab.types import PeerId, Role


@dataclass(frozen=True, slots=True)
class Due:
    """What should be here, and is not."""

    epoch: int | None
    """None: the newest there is."""
    donors: tuple[PeerId, ...]
    published: Publication | None = None
    """Whose bytes it should be, if a backbone has published it already."""


def due_snapshot(
    others: SwarmView, records: Collection[BackboneRecord], checkpoints: Checkpoints, until_epoch: int | None
) -> tuple[int, Due] | None:
    """The newest snapshot that others have, and that is to be kept, with its epoch; None: nobody has any.

    While trainers go on that is one of every ``every_epochs``, and the last one. Where nobody has gone on since
    everybody was started it is whatever is newest: it may be all that is left.

    Args:
        others: the swarm without ourselves.
        records: of all backbones.
    """
    backbones = [record for record in others.records if record.role is Role.BACKBONE]
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
    told = [r.published for r in records if r.published is not None and r.published.epoch == epoch]
    return epoch, Due(epoch, tuple(donors), max(told, key=lambda publication: publication.tenure, default=None))
