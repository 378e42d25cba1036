"""The strategy that docs/strategies.md teaches, taken from there, in a swarm."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from collab.metrics.records import EvaluationDone
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_faults import assert_equal_ends
from tests.strategies.rule_from_docs import installed


@pytest.fixture
def rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The file as a volunteer has it; the rest of the run file's section."""
    with installed(tmp_path, monkeypatch) as section:
        yield section


def test_it_learns_and_everybody_ends_with_one_model_though_one_dies(tmp_path: Path, rule: str) -> None:
    optimizer = "{name: sgd, learning_rate: 0.01}"
    swarm = SimSwarm(tmp_path / "run", foreign=rule, until=60, optimizer=optimizer, every=20)
    swarm.add_backbone()
    trainers = [swarm.add_trainer(allowed_modules=("sign_rule",)) for _ in range(3)]
    swarm.churn.fail_at(peer=trainers[2].index, time_s=12.0)
    with swarm.world:
        swarm.world.run(until_s=400.0)
    survivors = trainers[:2]
    assert_equal_ends(swarm, survivors, epoch=60)
    last = [event for peer in survivors for event in swarm.events(peer, EvaluationDone)][-1]
    assert last.accuracy > 0.8
