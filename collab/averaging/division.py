"""Who reduces what, as it changes while a round goes on: pure.

A round begins with one job for each reducer. When a reducer is lost in the middle, the parts that somebody holds
already stand, and are fetched from there; the rest is given to others as new jobs, cut where the old one was cut. So
the parts of a job that stand are always its first ones, and together the jobs cover the vector exactly once.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from collab.averaging.plan import Span
from collab.types import PeerId

MAX_JOBS = 4096
"""Of one round, those included that were given to others; a plan of 64 reducers may lose every one of them in turn."""


@dataclass(frozen=True, slots=True)
class Job:
    """One reducer's work."""

    span: Span
    valid: int
    """Parts that stand, from the first one on."""
    holder: PeerId | None = None
    """Who has them all, when it is not the reducer that members get them from any more."""

    @property
    def source(self) -> PeerId:
        """From whom a member that lacks one of its parts gets it."""
        return self.holder or self.span.reducer


@dataclass(frozen=True, slots=True)
class Division:
    """The jobs of one round; later ones replace what earlier ones lost."""

    jobs: tuple[Job, ...]
    part_elements: int

    @classmethod
    def of(cls, spans: Sequence[Span], part_elements: int) -> "Division":
        """As the round begins."""
        return cls(tuple(Job(span, num_parts(span, part_elements)) for span in spans), part_elements)

    def broken(self, lost: Collection[PeerId]) -> tuple[int, ...]:
        """Jobs with parts that somebody may still lack, and nobody brings without ``lost``."""
        return tuple(index for index, job in enumerate(self.jobs) if job.valid and job.source in lost)

    def extent(self, index: int) -> tuple[int, int]:
        """Elements (start, stop) of the parts of a job that stand."""
        job = self.jobs[index]
        return job.span.start, min(job.span.start + job.valid * self.part_elements, job.span.stop)

    def extents_of(self, reducer: PeerId) -> list[tuple[int, int]]:
        """What of the result was reduced by one peer."""
        return [self.extent(i) for i, job in enumerate(self.jobs) if job.span.reducer == reducer and job.valid]

    def mended(
        self, broken: Collection[int], held: Mapping[PeerId, Sequence[int]], reducers: Mapping[PeerId, float]
    ) -> "Division | None":
        """The division to go on with; None when nobody is left to reduce what is missing.

        Args:
            broken: jobs whose source is lost.
            held: for each member that goes on and can hand results on, how many parts it has of each of ``broken``,
                in their order.
            reducers: members that can reduce, with how much of the work each of them should get.
        """
        jobs = list(self.jobs)
        for place, index in enumerate(broken):
            job = jobs[index]
            counts = {peer: min(counts[place], job.valid) for peer, counts in held.items()}
            valid = max(counts.values(), default=0)
            holders = [peer for peer in sorted(counts) if counts[peer] == valid]
            holder = max(holders, key=lambda peer: reducers.get(peer, 0.0)) if valid else None
            jobs[index] = replace(job, valid=valid, holder=holder)
            if valid == job.valid:
                continue
            if not reducers:
                return None
            jobs.extend(self._shared_out(job.span, valid, job.valid, reducers))
        return Division(tuple(jobs), self.part_elements)

    def _shared_out(self, span: Span, first: int, last: int, reducers: Mapping[PeerId, float]) -> list[Job]:
        """Parts ``first .. last - 1`` of a span as jobs for others, in proportion to what each should get."""
        total = sum(reducers.values())
        jobs, reached, share = [], first, 0.0
        for peer in sorted(reducers):
            share += reducers[peer] / total if total else 1.0 / len(reducers)
            until = first + round(min(share, 1.0) * (last - first))
            if until > reached:
                start = span.start + reached * self.part_elements
                stop = min(span.start + until * self.part_elements, span.stop)
                jobs.append(Job(Span(peer, start, stop), until - reached))
                reached = until
        return jobs

    def is_sound(self, num_elements: int) -> bool:
        """Whether what stands covers every element exactly once."""
        if any(not 0 <= job.valid <= num_parts(job.span, self.part_elements) for job in self.jobs):
            return False
        reached = 0
        for start, stop in sorted(self.extent(index) for index, job in enumerate(self.jobs) if job.valid):
            if start != reached:
                return False
            reached = stop
        return reached == num_elements and len(self.jobs) <= MAX_JOBS

    def continues(self, earlier: "Division") -> bool:
        """Whether this can have come of an earlier division: the same jobs, of which no more stands, and others."""
        firsts = self.jobs[: len(earlier.jobs)]
        return len(firsts) == len(earlier.jobs) and all(
            job.span == before.span and job.valid <= before.valid
            for job, before in zip(firsts, earlier.jobs, strict=True)
        )

    def to_rows(self) -> list[list[object]]:
        """As plain values for a message."""
        return [[job.span.reducer, job.span.start, job.span.stop, job.valid, job.holder or ""] for job in self.jobs]

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[str, int, int, int, str]], part_elements: int) -> "Division":
        """From the plain values of a message; whether it is sound is another question."""
        return cls(
            tuple(
                Job(Span(PeerId(reducer), start, stop), valid, PeerId(holder) if holder else None)
                for reducer, start, stop, valid, holder in rows
            ),
            part_elements,
        )


def num_parts(span: Span, part_elements: int) -> int:
    """Into how many parts a span is cut."""
    return max(-(-span.num_elements // part_elements), 0)  # as ``part_edges``, however long a peer says it is
