"""Code that is not of this package runs only where it lies already, is allowed, and is the very file that was named."""

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collab.config import ForeignStrategy, ForeignTask, Run, parse_run
from collab.errors import ConfigError
from collab.foreign import load_class
from collab.strategies.registry import build_strategy
from collab.tasks.registry import build_task, make_assets
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_faults import assert_equal_ends

MODULE = "tests.strategies.foreign_rule"
FILE = Path(__file__).parent / "strategies" / "foreign_rule.py"
SHA = hashlib.sha256(FILE.read_bytes()).hexdigest()
SAID = "SAID.append(__name__)\nclass Rule: pass\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a module that says when it is executed; its name, digest and what it said."""
    said: list[str] = []
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("builtins.SAID", said, raising=False)

    def write(source: str = SAID, name: str = "volunteers_rule") -> tuple[str, str, list[str]]:
        (tmp_path / f"{name}.py").write_text(source)
        return name, hashlib.sha256(source.encode()).hexdigest(), said

    yield write
    for name in [name for name in sys.modules if name.startswith("volunteers_")]:
        del sys.modules[name]


def test_what_was_allowed_is_executed_once(module: Any) -> None:
    name, sha, said = module()
    assert load_class(name, sha, "Rule", (name,)) is load_class(name, sha, "Rule", (name,))
    assert said == [name]


def test_what_was_not_allowed_is_not_even_read(module: Any) -> None:
    name, sha, said = module()
    with pytest.raises(ConfigError, match="not allowed on this machine") as raised:
        load_class(name, sha, "Rule", ("another",))
    assert f"--allow {name}" in raised.value.hint
    assert said == []


def test_another_file_than_the_named_one_is_not_executed(module: Any) -> None:
    name, sha, said = module()
    module(SAID + "# one byte more\n", name)
    with pytest.raises(ConfigError, match="has the SHA-256"):
        load_class(name, sha, "Rule", (name,))
    assert said == []


@pytest.mark.parametrize("name", ["volunteers_missing", "numpy.linalg._umath_linalg", "volunteers.of.nobody"])
def test_what_is_not_here_as_one_file_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=r"not installed here|cannot be found here"):
        load_class(name, "0" * 64, "Rule", (name,))


def test_a_missing_class_and_a_module_that_fails_are_named(module: Any) -> None:
    name, sha, _ = module()
    with pytest.raises(ConfigError, match="no class 'Other'"):
        load_class(name, sha, "Other", (name,))
    broken, sha, _ = module("1 / 0\n", "volunteers_broken")
    with pytest.raises(ConfigError, match="cannot be executed"):
        load_class(broken, sha, "Rule", (broken,))
    assert broken not in sys.modules


def test_a_strategy_of_ones_own_trains_a_swarm_and_a_peer_that_did_not_allow_it_says_so(tmp_path: Path) -> None:
    ours = f"module, module: {MODULE}, sha256: {SHA}, class_name: HalfSteps, options: {{share: 0.25}}"
    swarm = SimSwarm(tmp_path, foreign=ours, until=8)
    swarm.add_backbone()
    trainers = [swarm.add_trainer(allowed_modules=(MODULE,)) for _ in range(2)]
    with swarm.world:
        swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=8)
    other = SimSwarm(tmp_path / "other", foreign=ours, until=8)
    other.add_backbone()
    other.add_trainer()
    with other.world, pytest.raises(ConfigError, match="not allowed on this machine"):
        other.world.run()


def test_the_options_of_the_run_file_reach_the_class() -> None:
    section = ForeignStrategy(name="module", module=MODULE, sha256=SHA, class_name="HalfSteps", options={"share": 0.25})
    strategy: Any = build_strategy(section, lambda _: 64, (MODULE,))
    assert strategy._share == 0.25
    assert np.isclose(strategy._target(0), 64)


def test_a_task_of_ones_own_needs_to_be_allowed_too(tmp_path: Path) -> None:
    task = ForeignTask(name="module", module="tests.fakes", sha256="0" * 64, class_name="FakeNetwork")
    run = Run.model_validate({"run_id": "foreign", "task": task.model_dump()})
    assert make_assets(run, base_dir=tmp_path, cache_dir=tmp_path) == {}
    with pytest.raises(ConfigError, match="not allowed"):
        build_task(run, assets={}, cache_dir=tmp_path, peer_id="")


@pytest.mark.parametrize("field", ["auto_map", "trust_remote_code", "code_revision"])
def test_a_run_file_cannot_make_transformers_fetch_code(field: str) -> None:
    text = f"run_id: remote\ntask: {{name: causal_lm, model: {{model_type: gpt2, {field}: true}}}}\n"
    with pytest.raises(ConfigError, match="code never travels"):
        parse_run(text, origin="the test")
