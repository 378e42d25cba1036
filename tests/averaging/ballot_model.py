"""Every interleaving of a few ballots among a few electors, driving the real classes of ``collab.averaging.ballots``.

A state is what every elector remembers, every message that was ever sent, and what every proposer has put to the vote.
Messages are not taken away when they arrive: so each may come at any time, again and again, in any order, or never,
which is what a lossy, duplicating, partitioned network does. (What nobody would listen to any more is left out:
promises after their ballot was put to the vote.) A process that is dead or slow is one that takes no further step, and
every state is also one in which any of the processes has just died. Only a restart is a step of its own, since it
changes what an elector does next.

Proposers hear as late as they can: which of the answers on their way reached one is chosen when it proposes. Electors
that may be exchanged without changing anything are sorted, so that states which differ by names alone count once.
"""

import argparse
import json
import time
from collections.abc import Hashable, Iterator
from typing import Any, TypeAlias

from collab.averaging.ballots import Acceptor, Ballot, Proposal, seat
from collab.types import PeerId
from tests.averaging.ballot_progress import is_quorum, unfinished
from tests.averaging.ballot_search import search
from tests.averaging.ballot_states import Asked, Bounds, Elector, Table, closed, settled

State: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Electors and ballots, each a number in one of the tables of ``Model``."""


class Model:
    """One instance: its first state, the steps from a state, and what is wrong with a state."""

    def __init__(self, bounds: Bounds, *, members: tuple[str, ...] | None = None, values: tuple[str, ...] = ()) -> None:
        self.bounds = bounds
        names = members or tuple(f"e{number}" for number in range(bounds.electors))
        self.electorate = bounds.electorate(tuple(PeerId(name) for name in names))
        self.ballots = tuple(Ballot(number + 1, PeerId(f"p{number}")) for number in range(bounds.ballots))
        self.own = values or tuple("abcdef"[: bounds.ballots])
        self._electors, self._asked = Table(), Table()
        self._memo: dict[Hashable, Any] = {}
        self.pinned = len(names) if members else 1 - len(names) % 2  # the first decides where halves are equal

    def first(self) -> State:
        elector = self._electors.number(Elector(self.bounds.acceptor()))
        asked = (Asked(self.bounds.proposal(ballot=ballot, electorate=self.electorate)) for ballot in self.ballots)
        return (elector,) * len(self.electorate.members), tuple(self._asked.number(one) for one in asked)

    def elector(self, state: State, position: int) -> Elector:
        elector: Elector = self._electors.values[state[0][position]]
        return elector

    def asked(self, state: State, ballot: int) -> Asked:
        asked: Asked = self._asked.values[state[1][ballot]]
        return asked

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Everything that can happen next.

        Raises:
            SplitDecision: an elector was told of a second decision.
        """
        electors, asked = state
        restarts = sum(self._electors.values[number].restarts for number in electors)
        offers = tuple((b, self._asked.values[number].values) for b, number in enumerate(asked))
        decided = self.decided(state) if self.bounds.learns else frozenset()
        tried: set[int] = set()
        for position, number in enumerate(electors):
            if position >= self.pinned:
                if number in tried:
                    continue
                tried.add(number)
            key = (number, offers, decided, restarts < self.bounds.restarts)
            if key not in self._memo:
                self._memo[key] = self._elector_steps(*key)
            for label, after in self._memo[key]:
                yield f"{label} at {position}", (self._sorted(electors, position, after), asked)
        for b, number in enumerate(asked):
            view = (b, number, tuple(self._memoised("answers", elector, b) for elector in electors))
            if view not in self._memo:
                self._memo[view] = self._proposer_steps(*view)
            for label, after in self._memo[view]:
                yield label, (self._without_answers(electors, b), (*asked[:b], after, *asked[b + 1 :]))

    def _sorted(self, electors: tuple[int, ...], position: int, after: int) -> tuple[int, ...]:
        changed = [*electors[:position], after, *electors[position + 1 :]]
        return (*changed[: self.pinned], *sorted(changed[self.pinned :]))

    def is_begun(self, state: State) -> bool:
        """Whether any elector has done anything here."""
        return any(self.elector(state, position).answers for position in range(len(state[0]))) or any(
            self.asked(state, b).values for b in range(len(self.ballots))
        )

    def _without_answers(self, electors: tuple[int, ...], b: int) -> tuple[int, ...]:
        """Electors after ballot ``b`` was put to the vote: nobody listens to answers to its first phase any more."""
        after = [self._forgetting(number, b) for number in electors]
        return (*after[: self.pinned], *sorted(after[self.pinned :]))

    def _forgetting(self, number: int, b: int) -> int:
        key = ("forgetting", number, b)
        if key not in self._memo:
            elector: Elector = self._electors.values[number]
            answers = frozenset(answer for answer in elector.answers if answer.promised != self.ballots[b])
            self._memo[key] = self._electors.number(elector._replace(answers=answers))
        return int(self._memo[key])

    def _elector_steps(
        self,
        number: int,
        offers: tuple[tuple[int, frozenset[str]], ...],
        decided: frozenset[str],
        restarts: bool,
    ) -> list[tuple[str, int]]:
        elector: Elector = self._electors.values[number]
        memory = elector.memory
        if memory is None:
            return []
        steps: list[tuple[str, Elector]] = []
        for b, values in offers:
            answer = memory.promise(self.ballots[b])
            answers = elector.answers if values or answer.promised != self.ballots[b] else elector.answers | {answer}
            steps.append((f"promise {b}", elector._replace(memory=answer, answers=answers)))
        for b, values in offers:
            for value in sorted(values):
                answer = memory.accept(self.ballots[b], value)
                if answer.vote is not None and answer.vote.ballot == self.ballots[b]:
                    votes = {vote for vote in elector.votes if vote.ballot != self.ballots[b]} | {answer.vote}
                    steps.append((f"vote {b} {value}", elector._replace(memory=answer, votes=frozenset(votes))))
        steps += [(f"learn {value}", closed(elector, value)) for value in sorted(decided)]
        if restarts:
            back: Acceptor[str] | None = seat(
                self.electorate.members[0], self.electorate, took_part=self.bounds.comes_back_empty
            )
            steps.append(("restart", elector._replace(memory=back, restarts=elector.restarts + 1)))
        found = ((label, self._electors.number(after)) for label, after in steps)
        return [(label, after) for label, after in found if after != number]

    def _proposer_steps(
        self, b: int, number: int, answers: tuple[frozenset[Acceptor[str]], ...]
    ) -> list[tuple[str, int]]:
        asked: Asked = self._asked.values[number]
        found = set()
        for proposal in self._heard(asked.proposal, answers):
            if proposal.has_promises:
                fixed = settled(proposal.propose(self.own[b]))
                values = asked.values | ({fixed.value} if fixed.value is not None else set())
                found.add(self._asked.number(Asked(fixed, values)))
        return [
            (f"propose {b} {self._asked.values[after].proposal.value}", after) for after in sorted(found - {number})
        ]

    def _heard(self, proposal: Proposal[str], answers: tuple[frozenset[Acceptor[str]], ...]) -> set[Proposal[str]]:
        """The proposal after every choice of answers that may have reached it."""
        heard = {proposal}
        if proposal.is_proposed:
            return heard
        for peer, sent in zip(self.electorate.members, answers, strict=True):
            heard |= {before.hear_promise(peer, answer) for before in heard for answer in sent}
        return heard

    def restarted(self, state: State, peer: PeerId, *, took_part: bool = False) -> State:
        """After ``peer`` has restarted, and sits down again if it may."""
        position = self.electorate.members.index(peer)
        elector = self.elector(state, position)
        memory = seat(peer, self.electorate, took_part=took_part or self.bounds.comes_back_empty)
        after = self._electors.number(elector._replace(memory=memory, restarts=elector.restarts + 1))
        return self._sorted(state[0], position, after), state[1]

    # -- what is true in a state -------------------------------------------------------------------------------------

    def tally(self, state: State, b: int) -> Proposal[str]:
        """Ballot ``b`` when all votes have reached its proposer."""
        votes = tuple(self._memoised("votes", elector, b) for elector in state[0])
        key = ("tally", state[1][b], votes)
        if key not in self._memo:
            proposal = self.asked(state, b).proposal
            for peer, sent in zip(self.electorate.members, votes, strict=True):
                for vote in sent:
                    proposal = proposal.hear_vote(peer, Acceptor(promised=vote.ballot, vote=vote))
            self._memo[key] = proposal
        tally: Proposal[str] = self._memo[key]
        return tally

    def decided(self, state: State) -> frozenset[str]:
        """Values that some proposer may have announced."""
        tallies = (self.tally(state, b) for b in range(len(self.ballots)))
        return frozenset(tally.value for tally in tallies if tally.is_decided and tally.value is not None)

    def fault(self, state: State) -> str | None:
        """The property that does not hold, in words."""
        tallies = [self.tally(state, b) for b in range(len(self.ballots))]
        decided = {tally.value for tally in tallies if tally.is_decided}
        if len(decided) > 1:
            return f"two values decided: {sorted(decided, key=str)}"
        for tally in () if self.bounds.splits_only else tallies:
            if tally.is_decided and not is_quorum(self.electorate.members, tally.supporters):
                return f"{tally.value} was decided by {len(tally.supporters)} votes"
        return None

    def stuck(self, state: State) -> str | None:
        """A quorum of electors that remember, to which one more ballot would not bring the right end."""
        memories = tuple(self.elector(state, position).memory for position in range(len(self.electorate.members)))
        decided = self.decided(state)
        used = max((b + 1 for b in range(len(self.ballots)) if self.asked(state, b).values), default=0)
        key = ("stuck", memories, decided, used)
        if key not in self._memo:
            self._memo[key] = unfinished(self.electorate, memories, used, decided)
        text: str | None = self._memo[key]
        return text

    def _memoised(self, kind: str, elector: int, b: int) -> Any:
        key = (kind, elector, b)
        if key not in self._memo:
            one: Elector = self._electors.values[elector]
            answers = (answer for answer in one.answers if answer.promised == self.ballots[b])
            votes = (vote for vote in one.votes if vote.ballot == self.ballots[b])
            self._memo[key] = frozenset(answers if kind == "answers" else votes)
        return self._memo[key]

    def marks(self, state: State) -> frozenset[str]:
        """What happened on the way, to see that the search got somewhere."""
        tallies = [self.tally(state, b) for b in range(len(self.ballots))]
        return frozenset(f"{tally.value} decided in {b}" for b, tally in enumerate(tallies) if tally.is_decided)


def main() -> None:
    """One search as one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("electors", 5), ("ballots", 2), ("restarts", 0), ("max-states", 10**8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    bounds = Bounds(electors=options.electors, ballots=options.ballots, restarts=options.restarts)
    model, began_s = Model(bounds), time.perf_counter()
    found = search(model, also=model.stuck, max_states=options.max_states)
    report = {"electors": bounds.electors, "ballots": bounds.ballots, "restarts": bounds.restarts}
    report |= {"states": found.states, "transitions": found.transitions, "complete": found.is_complete}
    report |= {"fault": found.fault, "trace": found.trace, "seconds": round(time.perf_counter() - began_s, 1)}
    print(json.dumps(report))  # noqa: T201


if __name__ == "__main__":
    main()
