"""What a fleet takes and costs to work through a run's units: on machines that stay, and on preemptible ones. Pure."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Machines, work and prices, as an organiser knows them."""

    units: int
    """Work units of the whole run, n_s: shards times passes."""
    clients: int
    """Machines that train, n_c. One that is preempted is replaced at once."""
    at_once: int = 1
    """Units that one machine trains side by side, n_tc."""
    unit_s: float
    """Seconds from a lease to its push, with ``at_once`` of them side by side."""
    preemption: float
    """Probability that a unit's machine is preempted while it trains it, p, below 1."""
    lost_s: float
    """Seconds that a unit loses then, t_o: until its lease is over and another machine has it."""
    price: float
    """Of a machine that stays, per hour."""
    preemptible_price: float
    """Of a preemptible one, per hour."""
    servers: int = 0
    """Parameter servers and backbones, which stay in both cases."""
    server_price: float = 0.0
    """Of each, per hour."""

    @property
    def turns(self) -> float:
        """Units that each place of each machine trains, one after the other: n = n_s / (n_c n_tc)."""
        return self.units / (self.clients * self.at_once)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Expected."""

    seconds: float
    money: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The same work on two kinds of machines."""

    staying: Cost
    preemptible: Cost
    extra_s: float
    """n p / (1 - p) t_o: a unit that is issued again may be preempted again."""
    extra_once_s: float
    """n p t_o, as published, which counts one preemption a unit."""
    spread_s: float
    """Standard deviation of the extra time of one place: t_o sqrt(n p) / (1 - p)."""

    @property
    def gross_saving(self) -> float:
        """Share of the price of a machine's hour."""
        return 1.0 - self._price_ratio

    @property
    def net_saving(self) -> float:
        """Share of what the run costs, with the time that preemptions take and the servers that wait meanwhile."""
        return 1.0 - self.preemptible.money / self.staying.money

    _price_ratio: float


def compare(fleet: Fleet) -> Comparison:
    """Expected time and money.

    Each attempt at a unit fails with probability p, whatever came before, and costs ``lost_s`` then: a unit has
    p / (1 - p) failed attempts in the mean, with variance p / (1 - p)^2.

    Raises:
        ValueError: there is no work, nobody to do it, nothing to pay, or it never ends.

    Source of n p t_o: Atre et al., "Distributed Deep Learning Using Volunteer Computing-Like Paradigm" (2021).
    """
    numbers = (fleet.units, fleet.clients, fleet.at_once, fleet.unit_s, fleet.price)
    if not all(math.isfinite(number) and number > 0 for number in numbers):
        raise ValueError("units, clients, units at once, seconds of a unit and the price are above 0")
    others = (fleet.lost_s, fleet.preemptible_price, fleet.servers, fleet.server_price)
    if not all(math.isfinite(number) and number >= 0 for number in others):
        raise ValueError("seconds that are lost, servers and other prices are not below 0")
    if not 0 <= fleet.preemption < 1:
        raise ValueError(f"a unit is preempted with a probability from 0 to below 1, not {fleet.preemption:g}")
    p, n = fleet.preemption, fleet.turns
    work_s, extra_s = n * fleet.unit_s, n * p / (1 - p) * fleet.lost_s
    servers = fleet.servers * fleet.server_price

    def cost(seconds: float, price: float) -> Cost:
        return Cost(seconds=seconds, money=seconds / 3600 * (fleet.clients * price + servers))

    return Comparison(
        staying=cost(work_s, fleet.price),
        preemptible=cost(work_s + extra_s, fleet.preemptible_price),
        extra_s=extra_s,
        extra_once_s=n * p * fleet.lost_s,
        spread_s=fleet.lost_s * math.sqrt(n * p) / (1 - p),
        _price_ratio=fleet.preemptible_price / fleet.price,
    )
