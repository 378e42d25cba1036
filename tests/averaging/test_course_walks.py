"""Rounds in which anything happens at any time."""

from dataclasses import dataclass
from random import Random

from hypothesis import given, settings, strategies as st

from collab.averaging.ballots import Ballot
from collab.averaging.complaints import Case, Complaint
from collab.averaging.course import Course
from collab.averaging.division import Division
from collab.averaging.messages import Group, Member
from collab.averaging.steps import Abort, Commit, Stage
from collab.types import PeerId
from tests.averaging.course_lab import FIRST, NUM_ELEMENTS, PART, Crowd, make_group

PEERS = tuple(PeerId(name) for name in "abcdef")
SECOND = Ballot(2, PEERS[1])
HAPPENINGS = ("answer",) * 8 + ("lie", "lose", "silence", "relieve", "complain", "judge")


@dataclass
class Walk:
    """What happens to one round, drawn at random."""

    random: Random

    def group(self) -> Group:
        """Two to six members, of which some only help, and some cannot be reached."""
        members = [Member(PEERS[0], 1.0), Member(PEERS[1], 1.0)]
        for peer in PEERS[2 : self.random.randint(2, len(PEERS))]:
            others = (Member(peer, 0.0, receives=False), Member(peer, 1.0, reduces=False), Member(peer, 0.0))
            members.append(self.random.choice((Member(peer, 2.0), Member(peer, 3.0), *others)))
        electors = tuple(member.peer for member in members) if self.random.random() < 0.5 else ()
        return make_group(members, electors=electors)

    def course(self) -> tuple[Course, Ballot]:
        """From its beginning, or taken over by the second member."""
        group = self.group()
        if self.random.random() < 0.7:
            return Course.of(group), FIRST
        old = Division.of(group.spans, PART)
        mended = old.mended([0], {}, {PEERS[1]: 1.0}) or old
        known = [(0, old), (1, old), (1, mended)]
        peers = [member.peer for member in group.members[1:]]
        return Course.resumed(group, SECOND, {peer: self.random.choice(known) for peer in peers}), SECOND

    def happen(self, those: Crowd) -> None:
        """One more thing."""
        course, peers = those.course, [member.peer for member in those.course.group.members]
        peer, other = self.random.choice(peers), self.random.choice(peers)
        match self.random.choice(HAPPENINGS):
            case "answer":
                those.answer(peer, held=self.random.randint(0, NUM_ELEMENTS // PART))
            case "lie":
                those.answer(peer, lies=[self.random.randrange(len(course.division.jobs))])
            case "lose":
                course.lose(peer, "dead", f"{peer} is dead")
            case "silence":
                course.silence(peer)
            case "relieve":
                course.relieve(peer, "slow", "")
            case "complain":
                flags = {"is_hostile": self.random.random() < 0.3, "is_reducer": self.random.random() < 0.5}
                course.complain(Case(peer, Complaint(other, "gone", "it is gone", **flags)))
            case "judge":
                course.judge()
        if self.random.random() < 0.8:
            those.hear()


@given(seed=st.integers(0, 2**32), length=st.integers(0, 60))
@settings(max_examples=400)
def test_whatever_happens_a_round_ends_with_one_record_at_most(seed: int, length: int) -> None:
    walk = Walk(Random(seed))
    course, ballot = walk.course()
    voters = frozenset(m.peer for m in course.group.members if walk.random.random() < 0.9)
    those = Crowd(course, ballot, voters, generation=course.generation)
    for _ in range(length):
        walk.happen(those)
    those.answer_all()
    assert len({prepare.record for prepare in those.prepared}) <= 1
    assert len(those.prepared) <= 1
    aborts = [action for action in those.done if isinstance(action, Abort)]
    assert not (those.prepared and aborts)
    assert course.stage is Stage.COMMITTED or aborts or not course.can_decide()
    if course.stage is Stage.COMMITTED:
        assert those.done[-1] == Commit(those.prepared[0].record)
    assert course.live.isdisjoint(course.gone)
