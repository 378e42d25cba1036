"""DeDLOC's linear program for averaging, solved in full: what ``collab.averaging.shares`` must equal.

In the paper's words a_ij is the rate at which peer i sends its gradient to reducer j, g_ij the rate at which reducer i
sends averages to peer j, and g_ij <= min over contributors k of a_ki, since nobody can send what has not arrived. Here
rates are counted in vectors per second, so that each sender's payload and the result may be encoded differently; own
parts travel nowhere. The paper's throughput is the least that any peer receives.

The program as published lets two reducers average the same part, each for other receivers. A round has one reducer for
each part, so that all end with the same bytes: ``ONE_REDUCER_PER_PART`` adds that row.
"""

from collections.abc import Sequence
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from collab.averaging.shares import PeerLink
from collab.types import PeerId

Row = NDArray[np.float64]


class Reducing(Enum):
    ONE_REDUCER_PER_PART = "one reducer per part"
    AS_PUBLISHED = "as published"


def fastest_round_s(
    links: Sequence[PeerLink], result_bytes: float, reducing: Reducing = Reducing.ONE_REDUCER_PER_PART
) -> float:
    """Seconds of the fastest round. The second solution is in units of the first, where the tolerances are relative."""
    guess_s = sum(link.payload_bytes for link in links) / max(link.down_bytes_per_s for link in links)
    for _ in range(2):
        guess_s = guess_s / _Program(links, result_bytes, guess_s).throughput(reducing)
    return guess_s


class _Program:
    def __init__(self, links: Sequence[PeerLink], result_bytes: float, unit_s: float) -> None:
        everybody = range(len(links))
        self.links, self.result_bytes, self.unit_s = links, result_bytes, unit_s
        self.reducers = [i for i in everybody if links[i].can_reduce]
        self.senders = [i for i in everybody if links[i].payload_bytes > 0]
        self.receivers = [i for i in everybody if links[i].receives]
        names: list[tuple[str, int, int]] = [("throughput", 0, 0)]
        names += [("reduces", i, i) for i in self.reducers]
        names += [("a", k, i) for k in self.senders for i in self.reducers if k != i]
        names += [("g", i, j) for i in self.reducers for j in self.receivers]
        self.column = {name: index for index, name in enumerate(names)}
        self.rows: list[Row] = []
        self.limits: list[float] = []

    def at_most(self, limit: float, terms: dict[tuple[str, int, int], float]) -> None:
        row = np.zeros(len(self.column))
        for name, factor in terms.items():
            row[self.column[name]] = factor
        self.rows.append(row)
        self.limits.append(limit)

    def throughput(self, reducing: Reducing) -> float:
        for i in self.reducers:
            for k in self.senders:
                if k != i:
                    self.at_most(0.0, {("reduces", i, i): 1.0, ("a", k, i): -1.0})
            for j in self.receivers:
                self.at_most(0.0, {("g", i, j): 1.0, ("reduces", i, i): -1.0})
        for j in self.receivers:
            self.at_most(0.0, {("throughput", 0, 0): 1.0} | {("g", i, j): -1.0 for i in self.reducers})
        if reducing is Reducing.ONE_REDUCER_PER_PART:
            self.at_most(0.0, {("reduces", i, i): 1.0 for i in self.reducers} | {("throughput", 0, 0): -1.0})
        for i, link in enumerate(self.links):
            self.at_most(link.up_bytes_per_s * self.unit_s, self.traffic(i, position=1))
            self.at_most(link.down_bytes_per_s * self.unit_s, self.traffic(i, position=2))
        cost = np.zeros(len(self.column))
        cost[0] = -1.0
        scale = [max(float(np.abs(row).max()), 1.0) for row in self.rows]
        options = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
        found = linprog(
            cost,
            A_ub=np.array([row / size for row, size in zip(self.rows, scale, strict=True)]),
            b_ub=np.array([limit / size for limit, size in zip(self.limits, scale, strict=True)]),
            method="highs",
            options=options,
        )
        if found.status != 0:
            raise ArithmeticError(found.message)
        return float(-found.fun)

    def traffic(self, peer: int, position: int) -> dict[tuple[str, int, int], float]:
        """Bytes through one direction of one link: names hold the sending peer at 1 and the receiving one at 2."""
        return {
            name: self.links[name[1]].payload_bytes if name[0] == "a" else self.result_bytes
            for name in self.column
            if name[0] in ("a", "g") and name[position] == peer and name[1] != name[2]
        }


def random_swarm(rng: np.random.Generator, num_peers: int) -> tuple[list[PeerLink], float]:
    """All roles, links from 2 to 1,000 Mbit/s, payloads of all codecs and some passed on: links and result bytes."""
    sizes = 8e6 * np.array([1.0, 0.5, 0.26, 0.14])
    roles = ["trainer", "client", "auxiliary", "follower", "idle"]
    chosen = [*rng.choice(roles, num_peers - 2, p=[0.5, 0.2, 0.15, 0.1, 0.05]), "trainer", "client"]
    links = []
    for index, role in enumerate(chosen):
        up, down = np.exp(rng.uniform(np.log(0.25e6), np.log(125e6), 2))
        sends = role in ("trainer", "client")
        passed_on = rng.choice(sizes) if rng.random() < 0.1 else 0.0
        links.append(
            PeerLink(
                peer=PeerId(f"peer{index}"),
                up_bytes_per_s=float(up),
                down_bytes_per_s=float(down),
                payload_bytes=float(rng.choice(sizes) + passed_on) if sends else 0.0,
                can_reduce=role in ("trainer", "auxiliary", "follower"),
                receives=role != "auxiliary",
            )
        )
    return links, float(rng.choice(sizes[:3]))
