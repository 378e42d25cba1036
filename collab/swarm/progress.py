"""The swarm at one moment: what all peers say about themselves, read together. ``board`` makes it."""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from collab.averaging.claims import believed
from collab.swarm.crowd import Crowd
from collab.swarm.duties import Duty
from collab.swarm.records import PeerRecord, PeerState
from collab.types import Lineage, PeerId, Role

RECORD_LIFE_S = 15.0
"""A peer that has said nothing for this long is gone."""
LEVEL_ASKED = 2
"""Of those who by their last word are where we are, how many are asked what followed."""
TERM_EPOCHS = 32
"""So many rounds the same trainer leads, where there is no backbone: streams to it stand, and it knows who is behind.
In a new term it may be another one, so that nobody whose link is slow, or who leaves others out, leads for ever."""
HEARTBEAT_S = 4.0
"""A third of the life: two lost stores in a row do not make a peer look dead."""
REFRESH_S = 1.0
"""How often everybody's words are read when nothing else reads them."""


@dataclass(frozen=True)  # without slots, which would leave no place for what is computed once
class SwarmView:
    """All fresh records at one moment; of a crowd some, and what a backbone tells of all."""

    records: tuple[PeerRecord, ...]
    """Of peers that are alive, sorted by peer id. Of a crowd: helpers, the sample, and ourselves."""
    at_s: float
    """Swarm time."""
    left: Mapping[PeerId, int] = field(default_factory=dict)
    """Who has just said goodbye, and the epoch in its last word."""
    crowd: Crowd | None = None
    """All trainers in few words; None: all are in ``records``."""
    max_share: float = 1.0
    """Of the run: no trainer's samples count for more of a batch."""
    known_to_all: frozenset[PeerId] | None = None
    """Of a crowd: who may lead, since all know of them. None: all know everybody."""

    def number_at(self, epoch: int, lineage: Lineage) -> int:
        """Trainers that train on this very history."""
        return self.crowd.at(epoch, lineage).trainers if self.crowd else len(self.trainers(epoch, lineage))

    def companions(self, ours: PeerRecord) -> int:
        """Trainers at our history, ourselves among them, whatever our last word was."""
        if self.crowd:
            return max(self.number_at(ours.epoch, ours.lineage), 1)
        return len([r for r in self.trainers(ours.epoch, ours.lineage) if r.peer != ours.peer]) + 1

    @property
    def num_trainers(self) -> int:
        """That hold a state."""
        return self.crowd.trainers if self.crowd else len(self.all_trainers())

    @property
    def num_peers(self) -> int:
        """Everybody who is here."""
        return self.crowd.peers if self.crowd else len(self.records)

    @property
    def samples_per_s(self) -> float:
        """Of all trainers."""
        return self.crowd.samples_per_s if self.crowd else math.fsum(r.samples_per_s for r in self.all_trainers())

    def trainers(self, epoch: int, lineage: Lineage) -> tuple[PeerRecord, ...]:
        """Records of trainers that train on this very history."""
        return tuple(record for record in self.all_trainers() if (record.epoch, record.lineage) == (epoch, lineage))

    def all_trainers(self) -> tuple[PeerRecord, ...]:
        """Records of trainers that hold a state."""
        return self._trainers

    @cached_property
    def _trainers(self) -> tuple[PeerRecord, ...]:
        return tuple(r for r in self.records if r.role is Role.TRAINER and r.state is PeerState.TRAINING)

    def helpers(self) -> tuple[PeerRecord, ...]:
        """Auxiliary and backbone peers."""
        return tuple(record for record in self.records if record.role is not Role.TRAINER)

    def backbones(self, *duties: Duty) -> list[PeerRecord]:
        """Those that do all this for the run."""
        backbones = (record for record in self.records if record.role is Role.BACKBONE)
        return [record for record in backbones if all(map(record.does, duties))]

    def trainers_ahead(self, epoch: int, asker: PeerId) -> list[PeerId]:
        """Other trainers that have gone on from ``epoch``, nearest first, and a few that may have by now.

        Of equally near ones each asker has its own order, so that not all ask the same.
        """
        others = [record for record in self.all_trainers() if record.peer != asker and record.epoch >= epoch]
        others.sort(key=lambda record: (record.epoch, hashlib.sha256(f"{asker}:{record.peer}".encode()).digest()))
        level = [record.peer for record in others if record.epoch == epoch]
        return [record.peer for record in others[len(level) :]] + level[:LEVEL_ASKED]

    def number_behind(self, epoch: int) -> int:
        """Of the trainers that have not taken ``epoch`` steps; who holds no state yet is one of them."""
        states = (PeerState.TRAINING, PeerState.SYNCING)
        return sum(r.role is Role.TRAINER and r.state in states and r.epoch < epoch for r in self.records)

    def is_over(self, until_epoch: int) -> bool:
        """Whether more peers say that they have reached the last epoch, or left there, than train towards it still."""
        if self.crowd:
            here = Counter({epoch: 0 for epoch, _ in self.crowd.left})
            for tally in self.crowd.tallies:
                here[tally.epoch] += tally.trainers
            gone = Counter(dict(self.crowd.left))
        else:
            here, gone = Counter(record.epoch for record in self.all_trainers()), Counter(self.left.values())
        at_work = sum(number for epoch, number in here.items() if epoch < until_epoch)
        return sum(number for epoch, number in (here + gone).items() if epoch >= until_epoch) > at_work

    def samples(self, epoch: int, lineage: Lineage) -> float:
        """Accumulated by all trainers of one history towards its next step, as they last said and are believed."""
        if self.crowd:
            return self.crowd.at(epoch, lineage).samples
        return believed({record.peer: record.samples for record in self.trainers(epoch, lineage)}, self.max_share)

    def expected_samples(self, ours: PeerRecord, now: float, since_s: float) -> float:
        """Samples that all trainers have by now: what they said of this epoch, carried on at their speeds.

        A trainer that was last heard in the epoch before is taken to have gone on when we did.

        Args:
            since_s: swarm time at which we reached our epoch.
        """
        if self.crowd:
            tally = self.crowd.at(ours.epoch, ours.lineage)
            if not tally.trainers:
                return self.crowd.samples_per_s * max(0.0, now - since_s)  # told before the newest step
            late_speed = math.fsum(one.samples_per_s for one in self.crowd.tallies if one.epoch == ours.epoch - 1)
            late = late_speed * max(0.0, now - since_s)
            return tally.samples + tally.samples_per_s * max(0.0, now - self.crowd.said_at) + late
        claims = {ours.peer: float(ours.samples)}
        for other in self.all_trainers():
            if other.peer == ours.peer:
                continue
            if (other.epoch, other.lineage) == (ours.epoch, ours.lineage):
                claims[other.peer] = other.samples + other.samples_per_s * max(0.0, now - other.said_at)
            elif other.epoch == ours.epoch - 1:
                claims[other.peer] = other.samples_per_s * (now - since_s)
        return believed(claims, self.max_share)

    def step_ahead(self, target_samples: float, now: float) -> tuple[float, float]:
        """Seconds until most trainers have their batch, if they compute on as they say, and seconds between two steps.

        Both are infinite while nobody says how fast it computes.
        """
        consensus = self.consensus()
        if consensus is None:
            return math.inf, math.inf
        if self.crowd:
            tally, since_s = self.crowd.at(*consensus), now - self.crowd.said_at
            speed, claims = tally.samples_per_s, {PeerId(""): tally.samples + tally.samples_per_s * since_s}
        else:
            there = self.trainers(*consensus)
            speed = believed({record.peer: record.samples_per_s for record in there}, self.max_share)
            claims = {r.peer: r.samples + r.samples_per_s * max(0.0, now - r.said_at) for r in there}
        if not speed:
            return math.inf, math.inf
        together = math.fsum(claims.values()) if self.crowd else believed(claims, self.max_share)
        return max(target_samples - together, 0.0) / speed, target_samples / speed

    def consensus(self) -> tuple[int, Lineage] | None:
        """Epoch and lineage that most trainers hold; of equally many the later epoch. None without trainers."""
        if self.crowd:
            votes = Counter({(tally.epoch, tally.lineage): tally.trainers for tally in self.crowd.tallies})
        else:
            votes = Counter((record.epoch, record.lineage) for record in self.all_trainers())
        if not votes:
            return None
        return max(votes, key=lambda history: (votes[history], history[0], history[1]))

    def is_at_rest(self) -> bool:
        """Whether no trainer has gone on since its process was started, as after everybody died."""
        if self.crowd:
            return self.crowd.is_at_rest
        return not any(record.has_seat for record in self._holders() if record.role is Role.TRAINER)

    def newest(self) -> tuple[int, Lineage] | None:
        """Epoch and lineage of the newest state that anybody says to hold, on its way into the swarm or not."""
        told = [(tally.epoch, tally.lineage) for tally in self.crowd.tallies] if self.crowd else []
        return max([*((record.epoch, record.lineage) for record in self._holders()), *told], default=None)

    def kept_beyond(self, epoch: int, era: str) -> list[PeerRecord]:
        """Backbones that hold a newer state than that of ``epoch``, if nobody is here any more who has trained it."""
        told = {tally.epoch for tally in self.crowd.tallies} if self.crowd else {r.epoch for r in self.all_trainers()}
        if max(told, default=-1) > epoch:
            return []
        backbones = (r for r in self.records if r.role is Role.BACKBONE and r.state is not PeerState.LEAVING)
        return [record for record in backbones if record.era == era and record.checkpoint_epoch > epoch]

    def donors(self, era: str, *, is_at_rest: bool) -> list[PeerId]:
        """Whom to ask for state, best first: trainers of the majority's history, then backbones.

        Trainers that can be dialled come first: what others give may go through a backbone, which has better to do.

        Args:
            is_at_rest: the newest state is the run's, whoever holds it.
        """
        if is_at_rest:
            newest = self.newest()
            trainers = [r for r in self.records if r.role is Role.TRAINER and (r.epoch, r.lineage) == newest]
        else:
            consensus = self.consensus()
            trainers = list(self.trainers(*consensus)) if consensus else []
        trainers.sort(key=lambda record: not record.can_be_dialled)
        able = [record for record in self.backbones(Duty.STATE) if record.era == era]
        return [record.peer for record in (*trainers, *able)]

    def _holders(self) -> list[PeerRecord]:
        """Trainers and backbones that hold a state and stay."""
        return [r for r in self.records if r.lineage and r.state is not PeerState.LEAVING]

    def leaders(self, epoch: int, lineage: Lineage, makers: Sequence[PeerId] = ()) -> list[PeerId]:
        """Peers to ask to lead a round, best first: those who made the history, and of these backbones.

        All who go on from there know who made it, and not yet who came later, be it a backbone: some would wait at that
        one, and the others elsewhere. Of trainers whoever has led before leads for its term; then they go by an order
        drawn for that.

        Args:
            makers: members of the round that made the history, its leader first. They hold it whatever their last words
                say: rounds follow each other faster than words.
        """
        term = epoch // TERM_EPOCHS

        def rank(record: PeerRecord) -> tuple[bool, bool, bool, bytes]:
            return (
                record.peer not in makers,
                record.role is not Role.BACKBONE,
                record.peer not in makers[: epoch % TERM_EPOCHS > 0],
                hashlib.sha256(f"{term}:{record.peer}".encode()).digest(),
            )

        gone = (PeerState.LEAVING, PeerState.LEFT)
        able = [r for r in self.records if r.can_be_dialled and r.state not in gone]
        there = self.known_to_all  # wherever their last words say that they are
        if there is None:
            there = frozenset(makers).union(r.peer for r in (*self.trainers(epoch, lineage), *self.helpers()))
        serving = (PeerState.SERVING, PeerState.TRAINING)
        able = [r for r in able if r.peer in there and (r.state in serving or r.peer in makers)]
        return [record.peer for record in sorted(able, key=rank)]


def is_fresh(record: PeerRecord, now: float) -> bool:
    """Whether it is not older than its life, nor from a future that no clock error explains."""
    return abs(now - record.said_at) <= record.life_s
