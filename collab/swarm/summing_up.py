"""Summing up a crowd: how a backbone that has read everybody's records tells of them."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping

from collab.averaging.claims import believed
from collab.swarm.crowd import HELPERS, MAX_TALLIES, SAMPLE, SAMPLE_EPOCHS, Crowd, Tally, level_for
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord
from collab.types import Lineage, PeerId, Role


def sum_up(
    view: SwarmView, raw: Mapping[PeerId, bytes], *, fingerprint: str, now: float, life_s: float
) -> Crowd:
    """All trainers in few words.

    Args:
        view: of everybody.
        raw: the signed records.
    """
    trainers = view.all_trainers()
    groups: dict[tuple[int, Lineage], list[PeerRecord]] = defaultdict(list)
    for record in trainers:
        groups[record.epoch, record.lineage].append(record)
    tallies = [
        Tally(
            *history,
            trainers=len(group),
            seated=sum(r.has_seat for r in group),
            samples=int(believed({r.peer: r.samples for r in group}, view.max_share)),
            samples_per_s=believed({r.peer: r.samples_per_s for r in group}, view.max_share),
        )
        for history, group in groups.items()
    ]
    tallies.sort(key=lambda tally: (tally.trainers, tally.epoch, tally.lineage), reverse=True)
    newest = max(tallies, key=lambda tally: (tally.epoch, tally.lineage), default=None)
    told = list(dict.fromkeys([*tallies[: MAX_TALLIES - 1], *([newest] if newest else [])]))
    most = (told[0].epoch, told[0].lineage) if told else None
    near = [r for r in trainers if most is not None and abs(r.epoch - most[0]) <= 1]  # a word may be as old as a step
    able = [r for r in near if r.can_be_dialled and r.peer in raw]
    helpers = sorted((r for r in view.helpers() if r.peer in raw), key=lambda r: (r.role is not Role.BACKBONE, r.peer))
    turn = most[0] // SAMPLE_EPOCHS if most else 0
    able.sort(key=lambda r: hashlib.sha256(f"{fingerprint}:{turn}:{r.peer}".encode()).digest())
    return Crowd(
        fingerprint=fingerprint,
        said_at=now,
        life_s=life_s,
        level=level_for(len(trainers)),
        peers=len(view.records),
        tallies=tuple(told),
        left=tuple(sorted(Counter(view.left.values()).items(), reverse=True)[:MAX_TALLIES]),
        sample=tuple((r.peer, raw[r.peer]) for r in (*helpers[:HELPERS], *able[:SAMPLE])),
    )
