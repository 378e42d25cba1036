"""Who holds a round up: members that are there, but much slower than the others turned out to be. Pure.

Nobody knows beforehand how long a round takes, but the plan lets all finish at about the same time. So as soon as most
have finished something, the others have half as much time again; then the round goes on without what they lack. What
they have sent counts, the rest stays with them for the next round.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from collab.averaging.division import Division
from collab.averaging.messages import Group
from collab.types import PeerId

MOST = 2 / 3
FACTOR = 1.5
"""Times what most took, or what the plan says: measured rates differ from those of the moment by less."""
FACTOR_BLIND = 5.0
"""The same where no rate is known: then spans are equal, and links are not."""
GRACE_S = 1.0
"""Beyond; for rounds that take no time at all."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one member is."""

    came: Mapping[PeerId, int]
    """Parts that it has received as a reducer, of each contributor."""
    held: Sequence[int]
    """Results that it has of each job."""


@dataclass(slots=True)
class Deadline:
    """When those who have not finished are late."""

    at_s: float | None = None

    def has_passed(self, num_finished: int, num_all: int, elapsed_s: float, expected_s: float) -> bool:
        """Whether those who have not finished are late; never before most have."""
        if self.at_s is None and MOST * num_all <= num_finished < num_all:
            factor = FACTOR if expected_s > 0 else FACTOR_BLIND
            self.at_s = factor * max(elapsed_s, expected_s) + GRACE_S
        return self.at_s is not None and elapsed_s >= self.at_s


@dataclass(slots=True)
class Laggards:
    """Watches one round."""

    group: Group
    began_s: float
    _progress: dict[PeerId, Progress] = field(default_factory=dict)
    _sending: Deadline = field(default_factory=Deadline)
    _reducing: dict[int, Deadline] = field(default_factory=dict)
    _finishing: dict[int, Deadline] = field(default_factory=dict)

    def heard(self, peer: PeerId, progress: Progress) -> None:
        """What a member says of itself."""
        self._progress[peer] = progress

    def late_senders(self, live: Collection[PeerId], division: Division, now_s: float) -> tuple[PeerId, ...]:
        """Contributors whose parts of the first division have not come, long after those of most."""
        first = division.jobs[: len(self.group.spans)]
        valid = {job.span.reducer: job.valid for job in first if job.span.reducer in live and job.holder is None}
        num_parts = sum(valid.values())
        expected = {m.peer: num_parts - valid.get(m.peer, 0) for m in self.group.contributors if m.peer in live}
        came = dict.fromkeys(expected, 0)
        for reducer in valid.keys() & self._progress.keys():
            for sender, count in self._progress[reducer].came.items():
                if sender in came and sender != reducer:
                    came[sender] += min(count, valid[reducer])
        finished = [peer for peer in expected if came[peer] >= expected[peer]]
        elapsed_s = now_s - self.began_s
        if not self._sending.has_passed(len(finished), len(expected), elapsed_s, self.group.expected_s):
            return ()
        return tuple(peer for peer in expected if peer not in finished)

    def late_reducers(
        self, live: Collection[PeerId], division: Division, generation: int, now_s: float
    ) -> tuple[PeerId, ...]:
        """Sources whose results most members lack, long after they have those of most others."""
        receivers = [member.peer for member in self.group.members if member.receives and member.peer in live]
        sources: dict[PeerId, bool] = {}
        for index, job in enumerate(division.jobs):
            if job.valid:
                others = [peer for peer in receivers if peer != job.source]
                whole = sum(self._held(peer, index) >= job.valid for peer in others)
                is_whole = 2 * whole >= len(others)
                sources[job.source] = sources.get(job.source, True) and is_whole
        elapsed_s, finished = now_s - self.began_s, [peer for peer, is_whole in sources.items() if is_whole]
        deadline = self._reducing.setdefault(generation, Deadline())
        if not deadline.has_passed(len(finished), len(sources), elapsed_s, self.group.expected_s):
            return ()
        return tuple(peer for peer in sources if peer not in finished)

    def late_members(
        self, live: Collection[PeerId], awaited: Collection[PeerId], stage: int, now_s: float
    ) -> tuple[PeerId, ...]:
        """Those who have not reported, long after most did.

        Args:
            stage: another number for everything that members are asked to report.
        """
        elapsed_s = now_s - self.began_s
        deadline = self._finishing.setdefault(stage, Deadline())
        num_finished = len(live) - len(awaited)
        if not deadline.has_passed(num_finished, len(live), elapsed_s, self.group.expected_s):
            return ()
        return tuple(sorted(awaited))

    def _held(self, peer: PeerId, index: int) -> int:
        progress = self._progress.get(peer)
        return progress.held[index] if progress is not None and index < len(progress.held) else 0
