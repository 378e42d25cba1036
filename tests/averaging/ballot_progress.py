"""Whether a quorum of living electors can always end an instance: with a ballot above all that they have heard."""

import itertools
from collections.abc import Iterable

from collab.averaging.ballots import Acceptor, Ballot, Electorate, Proposal, ballot_above
from collab.types import PeerId


def is_quorum(members: tuple[PeerId, ...], voters: frozenset[PeerId]) -> bool:
    """As ``Electorate`` should count, in other words: the first member's voice is worth one and a half."""
    return len(voters) + (members[0] in voters) / 2 > len(members) / 2


def unfinished(
    electorate: Electorate, memories: tuple[Acceptor[str] | None, ...], used: int, decided: frozenset[str]
) -> str | None:
    """A quorum that one more ballot, above all that it has heard, would not bring to the right end, in words.

    Args:
        electorate: of the instance.
        memories: of its electors; None: abstains.
        used: number of the highest ballot that was put to the vote; a peer that has forgotten must not use it again.
        decided: what was decided before; nothing else may come out.
    """
    alive = [(peer, memory) for peer, memory in zip(electorate.members, memories, strict=True) if memory is not None]
    for size in range(1, len(alive) + 1):
        for group in itertools.combinations(alive, size):
            if is_quorum(electorate.members, frozenset(peer for peer, _ in group)):
                ballot = ballot_above(_numbers(memory for _, memory in group), PeerId("last"))
                if ballot.number <= used and not any(memory.decided for _, memory in group):
                    return f"{[peer for peer, _ in group]} know of no ballot {used}"
                end = conclude(electorate, dict(group), ballot)
                if end is None or decided - {end}:
                    return f"{[peer for peer, _ in group]} end with {end} after {sorted(decided)}"
    return None


def _numbers(memories: Iterable[Acceptor[str]]) -> list[int]:
    return [memory.promised.number for memory in memories if memory.promised is not None]


def conclude(electorate: Electorate, quorum: dict[PeerId, Acceptor[str]], ballot: Ballot) -> str | None:
    """What ``ballot`` decides among ``quorum``, with a value of its own where it finds none."""
    proposal: Proposal[str] = Proposal(ballot=ballot, electorate=electorate)
    for peer, memory in quorum.items():
        quorum[peer] = memory.promise(ballot)
        proposal = proposal.hear_promise(peer, quorum[peer])
    if not proposal.is_decided and proposal.has_promises:
        proposal = proposal.propose("new")
        for peer, memory in quorum.items():
            proposal = proposal.hear_vote(peer, memory.accept(ballot, proposal.value or ""))
    return proposal.value if proposal.is_decided else None
