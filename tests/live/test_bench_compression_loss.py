"""The benchmark of training loss: its policies differ in encodings and in nothing else."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from compression_loss_swarm import trainers_on_links  # noqa: E402

EPOCHS = 2


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    """The JSON object in the program's last line."""
    options = ("--epochs", str(EPOCHS), "--microbatches", "1", "--json")
    command = [sys.executable, str(SCRIPTS / "bench_compression_loss.py"), *options]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout.splitlines()[-1]))


def test_each_policy_encodes_as_it_says_and_auto_mostly_in_integers(content: dict[str, Any]) -> None:
    policies = content["policies"]
    assert policies["exact"]["sent_fractions"] == {"none": 1.0}
    assert policies["half"]["sent_fractions"] == {"float16": 1.0}
    auto = policies["auto"]["sent_fractions"]
    assert auto.get("int4", 0.0) > 0.5
    assert auto.get("int4", 0.0) + auto.get("int8", 0.0) > 0.9
    assert policies["auto"]["sent_mb"] < 0.3 * policies["exact"]["sent_mb"]
    assert policies["sparse"]["sent_fractions"] == {"topk": 1.0}
    assert policies["sparse"]["sent_mb"] < policies["auto"]["sent_mb"]


def test_every_peer_is_in_every_round_and_ends_with_the_same_parameters(content: dict[str, Any]) -> None:
    for found in content["policies"].values():
        assert found["rounds"] == EPOCHS
        assert [sum(sender["codecs"].values()) for sender in found["senders"]] == [EPOCHS] * 6
        assert sum(found["result_codecs"].values()) == EPOCHS
        assert found["replicas_equal"]


def test_policies_begin_with_the_same_loss_and_are_compared_with_exact(content: dict[str, Any]) -> None:
    policies, ratios = content["policies"], content["ratios"]
    assert len({found["first_loss"] for found in policies.values()}) == 1
    assert set(ratios) == {"half", "auto", "sparse"}
    for policy, ratio in ratios.items():
        for name, value in ratio.items():
            assert value == pytest.approx(policies[policy][name] / policies["exact"][name], abs=1e-4)


@pytest.mark.parametrize("links", ["loopback:2", "50:aux,50,50", "50", "what"])
def test_links_on_which_not_everybody_trains_are_refused(links: str) -> None:
    with pytest.raises(ValueError):
        trainers_on_links(links)
