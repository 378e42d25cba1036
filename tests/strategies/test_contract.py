"""What is asked of every strategy, in whole swarms of real roles in virtual time.

Rules by hand are beside this file, one for each strategy; what one trainer comes to, states that go round and single
lost rounds are in ``test_contract_alone.py``. Here: who leaves, dies or comes in mid-flight, a backbone that dies,
rounds and answers that are lost, and runs whose ends are written down.
"""

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from collab.averaging.base import Aborted, Outcome, Superseded
from collab.data.work_units import Unit
from collab.metrics.records import (
    EpochFinished,
    EvaluationDone,
    Event,
    MicrobatchDone,
    Phase,
    PhaseReached,
    SamplesUsed,
)
from collab.net.base import Transport
from collab.net.wire import Message
from collab.simulation.peer import SimPeer
from collab.strategies.base import Decision, Replica, Swarm
from collab.strategies.rounds import RoundByRound
from collab.types import PeerId
from tests.simulation.mortal_store import units_done
from tests.simulation.swarm import SimSwarm
from tests.simulation.tapped import TappedTransport
from tests.strategies.rule_from_docs import installed

SHARDS = 8
UNTIL = 32


@dataclass(frozen=True, slots=True)
class Kind:
    """A strategy, as a run file asks for it, and where three trainers of seed 1 get to with it."""

    name: str
    loss: float
    accuracy: float
    options: dict[str, object] = field(default_factory=dict)
    words: str = ""
    """The strategy's section up to its target, where that is more than its name."""
    has_one_model: bool = True
    """Whether all end with the same bytes."""


KINDS = [
    Kind("dedloc", 2.0725, 0.2896),
    Kind("dedloc-delay", 2.0816, 0.2828, words="dedloc, delay: 1"),
    Kind("dts", 0.5279, 0.8822),
    Kind("diloco", 0.3846, 0.9327, words="diloco"),
    Kind("diloco-delay", 0.4018, 0.9360, words="diloco, delay: 1"),
    Kind(
        "vc_asgd",
        0.3945, 0.9024,
        options={"until": 6 * SHARDS, "every": SHARDS, "units": f"shards: {SHARDS}, first_lease_s: 20.0"},
    ),
    Kind("solo", 2.0642, 0.2997, has_one_model=False),
    Kind("own", 1.2516, 0.7172, options={"optimizer": "{name: sgd, learning_rate: 0.01}"}),
]
SWARMS = [kind for kind in KINDS if kind.has_one_model]
by_name = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
by_swarm = pytest.mark.parametrize("kind", SWARMS, ids=lambda kind: kind.name)


@pytest.fixture
def rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A strategy of one's own, as the documents teach it."""
    with installed(tmp_path, monkeypatch) as section:
        yield section


def swarm_of(directory: Path, kind: Kind, rule: str, *, samples_per_s: float = 100.0) -> SimSwarm:
    directory.mkdir(exist_ok=True)
    options: dict[str, object] = {"until": UNTIL, "every": UNTIL // 4, **kind.options}
    options |= {"foreign": rule} if kind.name == "own" else {"strategy": kind.words or kind.name}
    swarm = SimSwarm(directory, **options)  # type: ignore[arg-type]
    swarm.add_backbone()
    for _ in range(3):
        add_trainer(swarm, samples_per_s)
    return swarm


def add_trainer(swarm: SimSwarm, samples_per_s: float = 100.0) -> SimPeer:
    return swarm.add_trainer(samples_per_s=samples_per_s, allowed_modules=("sign_rule",))


def run(swarm: SimSwarm) -> None:
    with swarm.world:
        swarm.world.run(until_s=900.0)


def assert_ends_well(swarm: SimSwarm, kind: Kind, peers: list[SimPeer]) -> None:
    """All at the last epoch; with one model, unless each has its own; and what was computed is in it."""
    until = swarm.bundle.run.until_epoch
    assert {peer.result["epoch"] for peer in peers} == {until}
    vectors = {swarm.replicas[peer.index].layout.parameters_vector().tobytes() for peer in peers}
    assert len(vectors) == (1 if kind.has_one_model else len(peers))
    if kind.name == "vc_asgd":
        assert swarm.store.version() == until
        everything = [Unit(number, shard) for number in range(1, 7) for shard in range(SHARDS)]
        assert units_done(swarm.store, SHARDS) == everything
        return
    for peer in peers:
        computed = sum(event.samples for event in swarm.events(peer, MicrobatchDone))
        used = sum(event.own_samples for event in swarm.events(peer, EpochFinished))
        used += sum(event.samples for event in swarm.events(peer, SamplesUsed))
        assert 0.97 * computed <= used <= computed


def trainers_of(swarm: SimSwarm) -> list[SimPeer]:
    return [swarm.world.peers[index] for index in swarm.participants]


@by_name
def test_a_run_of_one_seed_ends_where_it_always_has(tmp_path: Path, rule: str, kind: Kind) -> None:
    digests = set()
    for name in ("once", "again"):
        swarm = swarm_of(tmp_path / name, kind, rule)
        run(swarm)
        trainers = trainers_of(swarm)
        assert_ends_well(swarm, kind, trainers)
        models = [swarm.replicas[peer.index].layout.parameters_vector().tobytes() for peer in trainers]
        digests.add(hashlib.sha256(b"".join(models)).hexdigest())
        last = swarm.events(trainers[0], EvaluationDone)[-1]
        assert last.loss == pytest.approx(kind.loss, rel=0.01)
        assert last.accuracy == pytest.approx(kind.accuracy, abs=0.01)
    assert len(digests) == 1


@by_swarm
@pytest.mark.parametrize("how", ["leaves", "dies"])
@pytest.mark.parametrize("moment_s", [9.0, 9.37])
def test_others_go_on_when_one_goes_in_mid_flight(
    tmp_path: Path, rule: str, kind: Kind, how: str, moment_s: float
) -> None:
    swarm = swarm_of(tmp_path / "run", kind, rule)
    gone, *others = (swarm.world.peers[index] for index in (1, 2, 3))
    if how == "dies":
        swarm.churn.fail_at(peer=gone.index, time_s=moment_s)
    else:
        swarm.world.call_at(moment_s, lambda: swarm.ask_to_leave(gone))
    run(swarm)
    assert_ends_well(swarm, kind, others)
    if how == "leaves":
        assert 0 < gone.result["epoch"] < swarm.bundle.run.until_epoch


@by_swarm
def test_a_newcomer_takes_the_swarms_state_and_part_in_its_work(tmp_path: Path, rule: str, kind: Kind) -> None:
    swarm = swarm_of(tmp_path / "run", kind, rule)
    late: list[SimPeer] = []
    swarm.world.call_at(9.0, lambda: late.append(add_trainer(swarm)))
    run(swarm)
    assert_ends_well(swarm, kind, trainers_of(swarm))
    steps = swarm.events(late[0], EpochFinished)
    assert steps[0].epoch > 1, "it did not begin at the beginning"
    assert sum(event.own_samples for event in steps) > 0


@by_swarm
@pytest.mark.parametrize("moment_s", [9.0, 9.37])
def test_a_backbone_that_dies_and_comes_back_costs_nothing(
    tmp_path: Path, rule: str, kind: Kind, moment_s: float
) -> None:
    swarm = swarm_of(tmp_path / "run", kind, rule)
    swarm.churn.fail_at(peer=0, time_s=moment_s, restart_after_s=8.0)
    run(swarm)
    assert_ends_well(swarm, kind, trainers_of(swarm))


# -- lost rounds, lost answers -----------------------------------------------------------------------------------------

ROUNDS = [kind for kind in SWARMS if kind.name != "vc_asgd"]
EACH_ALONE = ((0,), (1,), (2,), (3,))
UNHURRIED = 25.0
"""Samples per second: whoever is in doubt trains on by itself for minutes."""
PUSHES = [kind for kind in KINDS if kind.name == "vc_asgd"]
ANSWERS = ("unit", "extended", "parameters", "send", "answer")
"""Of a server to a client."""


def kind_of(outcome: Outcome) -> str:
    if isinstance(outcome, Aborted):
        return "in doubt" if outcome.rounds else "aborted"
    return "superseded" if isinstance(outcome, Superseded) else "committed"


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How the rounds of all trainers ended."""
    seen: Counter[str] = Counter()
    ordinary = RoundByRound.take

    async def taking(self: RoundByRound, replica: Replica, swarm: Swarm, outcome: Outcome) -> Decision:
        seen[kind_of(outcome)] += 1
        return await ordinary(self, replica, swarm, outcome)

    monkeypatch.setattr(RoundByRound, "take", taking)
    return seen


def cut_when(swarm: SimSwarm, phase: Phase, epoch: int) -> None:
    """Everybody is alone for 20 s from when the leader is about to do that."""

    def look(peer: SimPeer, event: Event) -> None:
        if isinstance(event, PhaseReached) and (peer.index, event.phase, event.epoch) == (0, phase, epoch):
            swarm.churn.partition_at(EACH_ALONE, time_s=swarm.world.time_s, for_s=20.0)

    swarm.world.subscribe(look)


@pytest.mark.parametrize("kind", ROUNDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("lost", ["aborted", "in doubt", "superseded"])
def test_a_lost_round_of_each_kind_costs_nobody_its_work(
    tmp_path: Path, rule: str, kind: Kind, lost: str, outcomes: "Counter[str]"
) -> None:
    """Everybody is alone for a while; so they are when the votes are on their way; or one is frozen as it sends."""
    swarm = swarm_of(tmp_path / "run", kind, rule, samples_per_s=UNHURRIED)
    if lost == "aborted":
        swarm.churn.partition_at(EACH_ALONE, time_s=9.0, for_s=20.0)
    elif lost == "in doubt":
        cut_when(swarm, Phase.COMMIT, epoch=12)
    else:
        swarm.churn.freeze_at(peer=2, epoch=6, phase=Phase.SEND_PARTS, for_s=15.0)
    run(swarm)
    assert outcomes[lost]
    assert not swarm.churn.unfired()
    assert_ends_well(swarm, kind, trainers_of(swarm))


@pytest.mark.parametrize("kind", PUSHES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("how", ["lost", "late", "twice"])
def test_units_count_once_whatever_becomes_of_a_servers_answers(
    tmp_path: Path, rule: str, kind: Kind, how: str
) -> None:
    swarm, dice, spoilt = swarm_of(tmp_path / "run", kind, rule), random.Random(how), Counter[str]()

    async def passing(_: PeerId, message: Message) -> list[Message]:
        if message.kind not in ANSWERS or dice.random() > 0.15:
            return [message]
        spoilt[message.kind] += 1
        if how == "late":
            await asyncio.sleep(dice.uniform(1.0, 60.0))
        return {"lost": [], "late": [message], "twice": [message, message]}[how]

    async def passed(_: PeerId, __: Message) -> None:
        pass

    def tap(transport: Transport) -> Transport:
        return TappedTransport(transport, passing, passed)

    swarm.taps[0] = tap
    run(swarm)
    assert_ends_well(swarm, kind, trainers_of(swarm))
    assert min(spoilt[kind] for kind in ("unit", "parameters", "send", "answer")) > 0
    used = sum(event.own_samples for peer in trainers_of(swarm) for event in swarm.events(peer, EpochFinished))
    assert used == 6 * swarm.task.num_samples, "each client knows what of its work counts"
