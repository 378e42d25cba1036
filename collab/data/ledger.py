"""How many samples each peer has brought into committed rounds: what its word about trained blocks is worth."""

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

from collab.averaging.agreement import CommitRecord
from collab.errors import StateError
from collab.types import PeerId

REMEMBERED_PEERS = 4096
WRITTEN_PEERS = 512
"""Of these, in a file that is written often: 75 KB."""
REMEMBERED_ROUNDS = 64
"""Rounds may be told twice, by the round itself and by a state that is taken over."""
HALF_LIFE_S = 300.0
"""Of what a peer's speed is measured over."""
FORGOTTEN_S = 1800.0
"""Whoever has brought nothing into a round for so long begins anew: what it said it had trained is proven by then, or
never will be, and a sixtieth of its speed is left.
"""
SHORTEST_S = 30.0
"""A speed is measured over: some steps, or one large one."""
OVERDRAFT_BLOCKS = 1.0
"""What a peer may have trained that we did not see committed: we may have missed a round of it."""


MOST_BATCHES = 4.0
"""Target batches that are believed of one peer in one round: who carries much over brings more than its part."""


@dataclass(slots=True)
class Account:
    """Of one peer."""

    samples: float = 0.0
    """Committed, and not yet believed of any block."""
    total: float = 0.0
    """Committed, as far as we know."""
    recent: float = 0.0
    """Committed samples, each worth half as much after every half life."""
    at_s: float = 0.0
    """When ``recent`` was true."""
    since_s: float = 0.0
    """When the first of them was committed."""

    def rate(self, now_s: float) -> float:
        """Samples per second, over the last minutes or since the peer came."""
        left, memory_s = self.factors(now_s)
        return self.recent * left / memory_s

    def factors(self, now_s: float) -> tuple[float, float]:
        """What ``recent`` is multiplied with for a rate, and what it is divided by (s)."""
        return _left(now_s - self.at_s), _memory_s(max(now_s - self.since_s, SHORTEST_S))

    def fresh(self, now_s: float) -> float:
        """``recent`` as of now."""
        return self.recent * _left(now_s - self.at_s)


def contributions(record: CommitRecord) -> list[tuple[PeerId, float]]:
    """Peers and the samples of theirs that a round has used, by the share of the elements that came."""
    whole = dict(record.contributors)
    missing = dict.fromkeys(whole, 0)
    for peer, start, stop in record.gaps:
        missing[peer] += stop - start
    return [(peer, weight * (1 - missing[peer] / record.num_elements)) for peer, weight in record.contributors]


def _memory_s(seconds: float) -> float:
    """What a sample per second adds up to in so long, if each is worth half as much after every half life."""
    return HALF_LIFE_S / math.log(2) * (1.0 - _left(seconds))


def _left(seconds: float) -> float:
    """Of what was worth 1 so long ago."""
    return math.exp2(-max(0.0, seconds) / HALF_LIFE_S)


def accounts_in(values: Any) -> dict[PeerId, Account]:
    """What ``to_values`` of a ledger said.

    Raises:
        StateError: it is damaged.
    """
    try:
        accounts = {PeerId(peer): Account(*map(float, amounts)) for peer, amounts in values.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise StateError(f"it is damaged: {error!r:.80}") from error
    if not all(math.isfinite(amount) for account in accounts.values() for amount in astuple(account)):
        raise StateError("it is damaged: an account without an amount")
    return accounts


class Ledger:
    """Accounts of all peers, from the rounds that we know of."""

    def __init__(self, *, most_per_round: float) -> None:
        """
        Args:
            most_per_round: samples of one peer that are believed of one round, whatever weight it had.
        """
        self._most = most_per_round
        self._accounts: OrderedDict[PeerId, Account] = OrderedDict()
        self._rounds: deque[str] = deque(maxlen=REMEMBERED_ROUNDS)
        self._now_s = 0.0
        """As we heard last."""
        self.changes = 0
        """How often we have learned of samples that were committed."""

    @classmethod
    def for_batches_of(cls, target_samples: int) -> "Ledger":
        """For a run with this target batch."""
        return cls(most_per_round=MOST_BATCHES * target_samples)

    def note_round(self, round_id: str, contributors: Iterable[tuple[PeerId, float]], now_s: float) -> None:
        """A round has committed; told twice, it counts once.

        Args:
            contributors: peers and the samples of theirs that are in the mean.
        """
        if round_id in self._rounds:
            return
        self._rounds.append(round_id)
        self.changes += 1
        self._hear(now_s)
        for peer, samples in contributors:
            account = self._account(peer)
            believed = min(samples, self._most)
            account.samples += believed
            account.total += believed
            account.recent = account.fresh(now_s) + believed
            account.at_s = now_s
            account.since_s = account.since_s or now_s

    def can_pay(self, peer: PeerId, samples: float, block_samples: float) -> bool:
        """Whether ``peer`` can have trained ``samples`` more; a block's worth is believed in advance."""
        return self.unspent(peer) + OVERDRAFT_BLOCKS * block_samples >= samples

    def unspent(self, peer: PeerId) -> float:
        """Samples that rounds have shown of ``peer``, and that are not believed of any block."""
        account = self._accounts.get(peer)
        return account.samples if account is not None else 0.0

    def pay(self, peer: PeerId, samples: float) -> None:
        """So many are believed to be in blocks that ``peer`` says it has trained."""
        self._account(peer).samples -= samples

    def total(self, peer: PeerId) -> float:
        """Samples that rounds have shown of ``peer``."""
        account = self._accounts.get(peer)
        return account.total if account is not None else 0.0

    def rates(self, now_s: float) -> dict[PeerId, float]:
        """Samples per second of everybody who has committed any."""
        factors: dict[tuple[float, float], tuple[float, float]] = {}
        rates = {}
        for peer, account in self._accounts.items():
            times = account.at_s, account.since_s
            if times not in factors:  # many were in the same first round, and in the same last one
                factors[times] = account.factors(now_s)
            left, memory_s = factors[times]
            rates[peer] = account.recent * left / memory_s
        return rates

    def rows(self, now_s: float) -> list[tuple[PeerId, float, float]]:
        """Peer, samples committed, samples per second: to tell a newcomer, who has not believed any block yet."""
        return [(peer, account.total, account.rate(now_s)) for peer, account in self._accounts.items()]

    def adopt(self, rows: Mapping[PeerId, tuple[float, float]], now_s: float, *, pass_samples: float) -> None:
        """What most others have seen of peers of whom we have seen less: up to twice their share of a pass.

        Which blocks all of that was for we find out as we read what they say; what was for earlier passes is not told.
        """
        self.changes += 1
        self._hear(now_s)
        rates = math.fsum(max(rate, 0.0) for _, rate in rows.values())
        for peer, (samples, rate) in rows.items():
            account = self._account(peer)
            share = 2 * pass_samples * rate / rates if rates > 0 else 0.0
            account.samples = max(account.samples, min(samples, share))
            account.total = max(account.total, samples)
            if rate > account.rate(now_s):
                account.recent, account.at_s = rate * _memory_s(HALF_LIFE_S), now_s
                account.since_s = now_s - HALF_LIFE_S

    def to_values(self) -> dict[str, list[float]]:
        """For a file: the accounts of those of whom we heard last."""
        return {peer: list(astuple(account)) for peer, account in list(self._accounts.items())[-WRITTEN_PEERS:]}

    def restore(self, accounts: Mapping[PeerId, Account]) -> None:
        """Take over what an earlier life has written, and what was committed since with it."""
        self.changes += 1
        for peer, account in accounts.items():
            if (since := self._accounts.get(peer)) is not None:  # a round was quicker than the disk
                account.samples += since.samples
                account.total += since.total
                account.recent, account.at_s = account.fresh(since.at_s) + since.recent, since.at_s
            self._accounts[peer] = account

    def _account(self, peer: PeerId) -> Account:
        account = self._accounts.setdefault(peer, Account(at_s=self._now_s))
        self._accounts.move_to_end(peer)
        while len(self._accounts) > REMEMBERED_PEERS:
            self._accounts.popitem(last=False)
        return account

    def _hear(self, now_s: float) -> None:
        """It is that late; forget who has brought nothing for long."""
        self._now_s = now_s
        while self._accounts and next(iter(self._accounts.values())).at_s < now_s - FORGOTTEN_S:
            self._accounts.popitem(last=False)
