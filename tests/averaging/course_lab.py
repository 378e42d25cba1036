"""One round's course, with members that the test plays: they do what they are told, and answer when it says so."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from collab.averaging.agreement import CommitRecord
from collab.averaging.ballots import Acceptor, Ballot
from collab.averaging.course import Course
from collab.averaging.division import Division
from collab.averaging.messages import Group, Member
from collab.averaging.seats import RecordSeat
from collab.averaging.steps import Action, Commit, Halt, Lead, Mend, Prepare, Report
from collab.types import Lineage, PeerId
from tests.averaging.spans import equal_shares

A, B, C, D, H = (PeerId(name) for name in "abcdh")
PART = 10
NUM_ELEMENTS = 95
FIRST = Ballot(1, A)
ALL = frozenset((A, B, C))
FOUR = (Member(A, 1.0), Member(B, 2.0), Member(C, 3.0), Member(D, 4.0))


def make_group(
    members: Sequence[Member] = (Member(A, 1.0), Member(B, 2.0), Member(C, 3.0)),
    *,
    idle: Sequence[PeerId] = (),
    electors: tuple[PeerId, ...] = (),
) -> Group:
    """All members that reduce share the vector, those of ``idle`` apart; the first one leads."""
    reducers = tuple(member.peer for member in members if member.reduces and member.peer not in idle)
    return Group(
        round_id="r",
        epoch=0,
        lineage=Lineage("l"),
        num_elements=NUM_ELEMENTS,
        leader=members[0].peer,
        members=tuple(members),
        spans=equal_shares(NUM_ELEMENTS, reducers),
        part_elements=PART,
        electors=electors,
    )


def report_of(
    division: Division, *, lies: Sequence[int] = (), gaps: tuple[tuple[PeerId, int, int], ...] = ()
) -> Report:
    """Of a member that holds everything; other bytes than the others of the jobs in ``lies``."""
    digests = tuple(("x" if index in lies else "d") + str(index) for index in range(len(division.jobs)))
    return Report(digests, gaps)


def promised(ballot: Ballot = FIRST) -> RecordSeat:
    """The seat of an elector that has voted for nothing yet."""
    return Acceptor[CommitRecord]().promise(ballot)


def actions_of(course: Course) -> list[Action]:
    """All that the leader does now."""
    actions: list[Action] = []
    while (action := course.next_action()) is not None:
        actions.append(action)
    return actions


@dataclass(slots=True)
class Crowd:
    """Honest members that hear what the leader says, and answer one at a time."""

    course: Course
    ballot: Ballot = FIRST
    has_seat: frozenset[PeerId] = frozenset()
    prepared: list[Prepare] = field(default_factory=list)
    done: list[Action] = field(default_factory=list)
    seats: dict[PeerId, RecordSeat] = field(default_factory=dict)
    generation: int = 0
    mended: int = 0

    def __post_init__(self) -> None:
        for peer in self.has_seat:
            self.seats.setdefault(peer, promised(self.ballot))

    def hear(self) -> None:
        """Let the leader do all that it wants to, and check that it makes sense."""
        for action in actions_of(self.course):
            assert not any(isinstance(earlier, Commit) for earlier in self.done)
            self.done.append(action)
            if isinstance(action, Halt) and action.broken:
                assert action.generation == self.generation + 1
                self.generation = action.generation
            elif isinstance(action, Mend):
                assert action.generation == self.generation
                assert action.division.is_sound(NUM_ELEMENTS)
                self.mended += 1
            elif isinstance(action, Prepare):
                assert CommitRecord.from_fields(action.record.to_fields()) == action.record
                self.prepared.append(action)
            elif isinstance(action, Lead):
                self.seats = {peer: seat.promise(action.ballot) for peer, seat in self.seats.items()}

    def answer(self, peer: PeerId, held: int = 0, lies: Sequence[int] = ()) -> None:
        """One member answers what the stage asks of it.

        Args:
            held: parts that it has of every job that is stopped.
        """
        course, seat = self.course, self.seats.get(peer)
        match course.stage:
            case "promising":
                course.take_promise(peer, seat)
            case "working":
                course.take_report(peer, course.generation, report_of(course.division, lies=lies), seat)
            case "halted":
                course.take_held(peer, course.generation, [held] * len(self._broken))
            case "voting":
                if seat is not None and self.prepared:
                    seat = self.seats[peer] = seat.accept(course.proposal.ballot, self.prepared[-1].record)
                course.take_vote(peer, seat)
        self.hear()

    def answer_all(self) -> None:
        """Everybody answers until nobody is asked any more."""
        self.hear()
        for _ in range(1000):
            awaited = self.course.awaited()
            if not awaited:
                return
            self.answer(min(awaited))
        raise AssertionError(f"the round never ends: it is {self.course.stage}")

    @property
    def _broken(self) -> tuple[int, ...]:
        return next(action.broken for action in reversed(self.done) if isinstance(action, Halt))


def crowd(course: Course | None = None, voters: frozenset[PeerId] = ALL) -> Crowd:
    """Of three members by default, who all have a seat."""
    return Crowd(course or Course.of(make_group()), has_seat=voters)


def halted_by_losing(peer: PeerId) -> Crowd:
    """Three members that were told to stop since one of them is gone."""
    those = crowd()
    those.hear()
    those.course.lose(peer, "dead", f"{peer} is dead")
    those.hear()
    return those
