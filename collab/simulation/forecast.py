"""What a swarm will do, by calculation: rounds as leaders plan them, and each strategy's time model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from collab import config
from collab.simulation import pacing
from collab.simulation.residents import Resident, residents_of
from collab.simulation.round_forecast import RoundForecast, plan_round
from collab.simulation.swarm_file import Contender, SwarmFile

FLOAT_BYTES = 4
DAY_S = 86_400.0
"""Over which comings and goings are averaged where no minutes are given."""
UNIT_TRIPS = 8.0
"""Ways between a client and a server for each unit: asking for it, parameters, pushing, and the answer, each over a
stream that is opened for it. From ``scripts/bench_forecast.py``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What a forecast must know of the task."""

    num_elements: int
    """Of the vector."""
    num_samples: int
    """In a pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """How one way of training goes on a swarm."""

    step_s: float
    """From one step of the swarm to the next."""
    batch_s: float
    """Until the samples of a step are there."""
    wait_s: float
    """For microbatches that are not over then."""
    round_s: float
    """0: there are no rounds. Not part of the step where it goes on beside it."""
    samples_per_s: float
    compute_use: float
    """Share of the time in which trainers compute."""
    uplink_use: float
    """Of the trainers' uplinks, mean."""
    bottleneck: str
    codecs: tuple[str, ...] = ()
    """Of what is sent, from the most exact on; then of the result."""
    left_out: tuple[str, ...] = ()
    """Trainers that do not contribute to every round."""


def present(residents: Sequence[Resident], *, end_s: float) -> list[Resident]:
    """Who is there at a usual moment: all who stay, and of each group that comes and goes as many as on average."""
    found: list[Resident] = []
    for group in dict.fromkeys(resident.group for resident in residents):
        members = [resident for resident in residents if resident.group == group]
        share = math.fsum(member.seconds_until(end_s) for member in members) / (end_s * len(members))
        found += members[: round(share * len(members))]
    return found


def forecast(swarm: SwarmFile, contender: Contender, model: Model) -> Forecast:
    """Of one contender.

    Raises:
        ValueError: on average no trainer is there.
    """
    end_s = swarm.minutes * 60.0 if swarm.minutes is not None else DAY_S
    here = present(residents_of(swarm, end_s=end_s), end_s=end_s)
    speeds = [resident.samples_per_s for resident in here if resident.role == "trainer"]
    if not speeds:
        raise ValueError("on average no trainer is there")
    strategy = contender.strategy
    if isinstance(strategy, config.VcAsgd):
        return _units(here, strategy, model)
    if isinstance(strategy, config.Solo):
        step_s = strategy.target_batch_size / max(speeds)
        return Forecast(
            step_s=step_s, batch_s=step_s, wait_s=0.0, round_s=0.0, samples_per_s=math.fsum(speeds), compute_use=1.0,
            uplink_use=0.0, bottleneck="compute: nothing is sent",
        )  # fmt: skip
    averaging, target = contender.averaging or swarm.averaging, float(strategy.target_batch_size)
    round_ = plan_round(
        here,
        num_elements=model.num_elements,
        policy=averaging.compression,
        batch_s=target / math.fsum(speeds),
        equal_shares=contender.equal_shares,
    )
    if config.waits_for_rounds(strategy):
        return _synchronous(speeds, target, swarm.microbatch_size, round_)
    return _beside(speeds, target, swarm.microbatch_size, round_)


def _synchronous(speeds: Sequence[float], target: float, microbatch: int, round_: RoundForecast) -> Forecast:
    """Batch + what the slowest that is waited for still computes + round, one after the other."""
    pace = pacing.synchronous(speeds, microbatch=microbatch, target=target, round_s=round_.seconds)
    step_s = pace.batch_s + pace.gather_s + round_.seconds
    if round_.seconds > pace.batch_s + pace.gather_s:
        bottleneck = f"the round, by {round_.holds_up}: it takes {round_.seconds / step_s:.0%} of a step"
    else:
        bottleneck = f"compute: {pace.batch_s / step_s:.0%} of a step; the round takes {round_.seconds / step_s:.0%}"
    return Forecast(
        step_s=step_s,
        batch_s=pace.batch_s,
        wait_s=pace.gather_s,
        round_s=round_.seconds,
        samples_per_s=pace.samples / step_s,
        compute_use=min(pace.busy_s / step_s, 1.0),
        uplink_use=round_.uplink_use * round_.seconds / step_s,
        bottleneck=bottleneck,
        codecs=round_.codecs,
        left_out=round_.left_out,
    )


def _beside(speeds: Sequence[float], target: float, microbatch: int, round_: RoundForecast) -> Forecast:
    """The longer of batch and round: everybody computes all the time. A round ends for a trainer with a microbatch."""
    all_speed = math.fsum(speeds)
    batch_s, over_s = target / all_speed, microbatch / min(speeds) / 2
    step_s = max(batch_s, round_.seconds + over_s)
    if step_s > batch_s:
        bottleneck = f"the round, by {round_.holds_up}: a step waits {step_s - batch_s:.3g} s for it, nobody else does"
    else:
        bottleneck = f"compute: the round takes {round_.seconds / step_s:.0%} of a step, beside it"
    return Forecast(
        step_s=step_s,
        batch_s=batch_s,
        wait_s=0.0,
        round_s=round_.seconds,
        samples_per_s=all_speed,
        compute_use=1.0,
        uplink_use=round_.uplink_use * round_.seconds / step_s,
        bottleneck=bottleneck,
        codecs=round_.codecs,
        left_out=round_.left_out,
    )


def _units(here: Sequence[Resident], strategy: config.VcAsgd, model: Model) -> Forecast:
    """Each client computes a unit and carries parameters to a server and back, as fast as servers' links allow."""
    samples = model.num_samples / strategy.shards
    num_bytes = FLOAT_BYTES * model.num_elements
    clients = [resident for resident in here if resident.role == "trainer"]
    servers = [resident for resident in here if resident.role == "backbone"]
    units_per_s, busy, sending = [], [], []
    for client in clients:
        compute_s = samples / client.samples_per_s
        up_s, down_s = num_bytes / client.link.up_bytes_per_s, num_bytes / client.link.down_bytes_per_s
        carry_s = up_s + down_s + UNIT_TRIPS * (client.link.latency_s + min(s.link.latency_s for s in servers))
        unit_s = compute_s + carry_s if strategy.units_at_once == 1 else max(compute_s, up_s, down_s)
        units_per_s.append(1.0 / unit_s)
        busy.append(compute_s / unit_s)
        sending.append(up_s / unit_s)
    wanted = math.fsum(units_per_s)
    up = math.fsum(server.link.up_bytes_per_s for server in servers)
    possible = min(up, math.fsum(server.link.down_bytes_per_s for server in servers)) / num_bytes
    share = min(possible / wanted, 1.0)
    use = share * math.fsum(busy) / len(busy)
    if share < 1.0:
        bottleneck = f"the links of {len(servers)} servers: clients would bring {wanted / possible:.1f} times as much"
    elif use < 0.5:
        bottleneck = "the clients' links: carrying parameters takes longer than computing a unit"
    else:
        bottleneck = f"compute: {use:.0%} of the time"
    return Forecast(
        step_s=1.0 / (share * wanted),
        batch_s=1.0 / (share * wanted),
        wait_s=0.0,
        round_s=0.0,
        samples_per_s=share * wanted * samples,
        compute_use=use,
        uplink_use=share * math.fsum(sending) / len(sending),
        bottleneck=bottleneck,
    )
