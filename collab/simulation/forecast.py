"""What a swarm will do, by calculation: rounds as leaders plan them, and each strategy's time model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from collab import config
from collab.simulation import pacing
from collab.simulation.attendance import Attendance, Usual
from collab.simulation.residents import Resident, residents_of
from collab.simulation.round_forecast import RoundForecast, plan_round
from collab.simulation.swarm_file import Contender, SwarmFile

FLOAT_BYTES = 4
DAY_S = 86_400.0
"""Over which comings and goings are averaged where no minutes are given."""
UNIT_TRIPS = 8.0
"""Ways between a client and a server for each unit: asking for it, parameters, pushing, and the answer, each over a
stream that is opened for it. From ``scripts/bench_forecast.py``."""


MOST_LOST = 0.95
"""Share of the samples: who loses more than it keeps learns nothing, however the rest is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What a forecast must know of the task."""

    num_elements: int
    """Of the vector."""
    num_samples: int
    """In a pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turnover:
    """What comes of it that machines come and go; means over the time."""

    trainers: float
    """That compute."""
    joining: float
    """Trainers that fetch the swarm's state."""
    lost_share: float
    """Of what trainers compute, that is in no step, since they have gone with it."""


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
    turnover: Turnover | None = None
    """None: everybody is there from the beginning to the end."""


def forecast(swarm: SwarmFile, contender: Contender, model: Model) -> Forecast:
    """Of one contender. Where machines come and go: the mean over usual moments, less what goes with those who go.

    Raises:
        ValueError: there is never a trainer, or nobody who can reduce or serve.
    """
    end_s = swarm.minutes * 60.0 if swarm.minutes is not None else DAY_S
    residents = residents_of(swarm, end_s=end_s)
    attendance = Attendance(residents, end_s=end_s, state_bytes=_state_bytes(swarm, contender, model))
    moments = attendance.usual()
    found = [(moment, _at(moment.here, swarm, contender, model)) for moment in moments if _is_able(moment, contender)]
    if not found:
        raise ValueError("on average no trainer is there, or nobody for whom it could work")
    if attendance.is_steady:
        return found[0][1]
    one, waits = _mean(found, len(moments)), _waits(contender.strategy)
    trainers = math.fsum(len(moment.speeds) for moment in moments) / len(moments)
    joining = math.fsum(moment.joining for moment in moments) / len(moments)
    left_s, killed_s = _in_hand_s(contender.strategy, one, trainers)
    lost = attendance.lost_samples_per_s(left_s, killed_s, microbatch=swarm.microbatch_size) / one.samples_per_s
    turnover = Turnover(trainers=trainers, joining=joining, lost_share=min(lost, MOST_LOST))
    return replace(_with_loss(one, turnover.lost_share, waits=waits), turnover=turnover)


def _is_able(moment: Usual, contender: Contender) -> bool:
    """Whether those who are there can train at all."""
    if isinstance(contender.strategy, config.VcAsgd) and all(peer.role != "backbone" for peer in moment.here):
        return False
    return bool(moment.speeds) and any(not peer.client_mode for peer in moment.here)


def _at(here: Sequence[Resident], swarm: SwarmFile, contender: Contender, model: Model) -> Forecast:
    """With those who are here, for ever."""
    strategy, speeds = contender.strategy, [peer.samples_per_s for peer in here if peer.role == "trainer"]
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


# -- comings and goings ----------------------------------------------------------------------------------------------


def _state_bytes(swarm: SwarmFile, contender: Contender, model: Model) -> float:
    """That a newcomer fetches: parameters, and what the optimiser of a shared step remembers of each."""
    optimizer, strategy = contender.optimizer or swarm.optimizer, contender.strategy
    vectors = 1
    if isinstance(strategy, config.Dedloc):
        vectors += int(optimizer.momentum > 0) if optimizer.name == "sgd" else 2
    elif isinstance(strategy, config.Diloco):
        vectors += 1
    return float(vectors * FLOAT_BYTES * model.num_elements)


def _waits(strategy: config.Strategy) -> bool:
    return not isinstance(strategy, config.Solo | config.VcAsgd) and config.waits_for_rounds(strategy)


def _mean(found: Sequence[tuple[Usual, Forecast]], moments: int) -> Forecast:
    """Over moments as usual as each other, in some of which nothing can be done; times are means over the steps."""
    ones = [one for _, one in found]
    steps = [1.0 / one.step_s for one in ones]
    usual = ones[len(ones) // 2]

    def of_steps(value: Callable[[Forecast], float]) -> float:
        return math.fsum(n * value(one) for n, one in zip(steps, ones, strict=True)) / math.fsum(steps)

    counts = [len(moment.speeds) for moment, _ in found]
    there = math.fsum(counts) + math.fsum(moment.joining for moment, _ in found)

    def of_time(value: Callable[[Forecast], float]) -> float:
        return math.fsum(n * value(one) for n, one in zip(counts, ones, strict=True)) / there

    return replace(
        usual,
        step_s=moments / math.fsum(steps),
        batch_s=of_steps(lambda one: one.batch_s),
        wait_s=of_steps(lambda one: one.wait_s),
        round_s=of_steps(lambda one: one.round_s),
        samples_per_s=math.fsum(one.samples_per_s for one in ones) / moments,
        compute_use=of_time(lambda one: one.compute_use),
        uplink_use=of_time(lambda one: one.uplink_use),
    )


def _in_hand_s(strategy: config.Strategy, one: Forecast, trainers: float) -> tuple[float, float]:
    """Seconds of computing that a trainer takes along that leaves, after its round, and one that is killed."""
    if isinstance(strategy, config.Solo):
        return 0.0, 0.0
    if isinstance(strategy, config.VcAsgd):
        unit_s = one.step_s * trainers * one.compute_use
        return unit_s / 2, unit_s / 2
    if config.waits_for_rounds(strategy):
        return one.batch_s / 2 * one.batch_s / one.step_s, one.batch_s / 2
    return one.step_s / 2, (one.step_s + min(one.round_s, one.step_s)) / 2


def _with_loss(one: Forecast, lost: float, *, waits: bool) -> Forecast:
    """What is lost is computed again: batches take longer, rounds do not."""
    batch_s = one.batch_s / (1.0 - lost)
    step_s = one.step_s + batch_s - one.batch_s if waits else max(one.step_s, batch_s)
    samples_per_s = one.samples_per_s * (one.step_s / step_s if waits else 1.0 - lost)
    return replace(one, step_s=step_s, batch_s=batch_s, samples_per_s=samples_per_s)
