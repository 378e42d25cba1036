"""A short form of the benchmark of attacks: real gradients, real rules, two of ten lie."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from attack_kinds import KINDS, Attack, Knowledge  # noqa: E402
from attack_swarm import AttackedSwarm, Result, Setup, part_places  # noqa: E402

from collab.averaging.robust import RULES  # noqa: E402
from collab.config import Optimizer  # noqa: E402

EPOCHS = 30
SETUP = Setup(
    num_peers=10,
    num_attackers=2,
    epochs=EPOCHS,
    seed=0,
    optimizer=Optimizer(name="sgd", learning_rate=2.0),
    hidden_sizes=(32,),
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def clean() -> Result:
    return AttackedSwarm(SETUP, RULES["mean"], None).run()


def attacked(rule: str, attack: str) -> Result:
    return AttackedSwarm(SETUP, RULES[rule], Attack.parse(attack)).run()


def test_the_model_learns_when_nobody_lies(clean: Result) -> None:
    assert clean.held_out_loss < 0.8
    assert clean.refused == 0


def test_the_same_seed_gives_the_same_training(clean: Result) -> None:
    assert AttackedSwarm(SETUP, RULES["mean"], None).run() == clean


def test_what_is_not_finite_is_refused_in_every_round_and_costs_only_its_sender(clean: Result) -> None:
    found = attacked("mean", "nan")
    assert found.refused == 2 * EPOCHS
    assert found.held_out_loss < 1.1 * clean.held_out_loss


@pytest.mark.parametrize("attack", ["sign_flip", "constant"])
def test_long_lies_spoil_the_mean(attack: str, clean: Result) -> None:
    assert attacked("mean", attack).held_out_loss > 1.4 * clean.held_out_loss


@pytest.mark.parametrize("attack", KINDS)
def test_centered_clip_learns_under_every_attack(attack: str, clean: Result) -> None:
    assert attacked("centered_clip", attack).held_out_loss < 1.5 * clean.held_out_loss


def test_a_cap_takes_from_liars_what_they_claimed() -> None:
    from dataclasses import replace

    greedy = replace(SETUP, claimed=16.0)
    attack = Attack.parse("sign_flip")
    owned = AttackedSwarm(greedy, RULES["centered_clip"], attack).run()
    safe = AttackedSwarm(replace(greedy, max_share=0.1), RULES["centered_clip"], attack).run()
    assert safe.held_out_loss < 0.5 * owned.held_out_loss


def test_attacks_are_what_their_papers_say() -> None:
    honest = [np.array(values, np.float32) for values in ([1, 2], [3, 2])]
    own, flipped, delayed = (np.array([value, value], np.float32) for value in (5, 6, 7))
    known = Knowledge(honest=honest, weights=[1.0, 3.0], own=own, flipped=flipped, delayed=delayed)
    lies = {name: Attack.parse(f"{name}:2").vector(known).tolist() for name in KINDS if name != "nan"}
    assert lies == {
        "sign_flip": [-10, -10],
        "little_is_enough": [0.5, 2],
        "inner_product": [-5, -4],
        "label_flip": [12, 12],
        "delayed": [14, 14],
        "zero": [0, 0],
        "constant": [2, 2],
    }
    assert np.isnan(Attack.parse("nan").vector(known)).any()
    with pytest.raises(ValueError, match="unknown attack"):
        Attack.parse("bribery")


def test_parts_cover_the_vector_once_in_spans_of_equal_length() -> None:
    places = list(part_places(200_000, 3))
    assert [start for start, _ in places] == [0, *(stop for _, stop in places[:-1])]
    assert places[-1][1] == 200_000
    assert max(stop - start for start, stop in places) == 16_384
