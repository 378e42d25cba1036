"""What a backbone expects of a state, from one that it has or from the run's model alone."""

import numpy as np
import pytest
import torch

from collab import config
from collab.swarm.forms import check_forms, forms_of, header_bytes
from collab.swarm.snapshots import PackedSnapshot, pack
from collab.training.shared_state import model_forms
from collab.types import Lineage
from peers.fetching import Expected
from tests.training.toy import Toy, replica, seeded


def packed(num_steps: int) -> PackedSnapshot:
    ours = replica(seeded(Toy), config.Optimizer(name="adamw", learning_rate=0.01))
    for number in range(num_steps):
        ours.step(np.ones(ours.layout.num_elements, np.float32), Lineage(f"{number}"))
    return pack(ours.snapshot(), fingerprint="f")


@pytest.mark.parametrize("num_steps", [0, 1])
def test_a_state_of_the_model_is_as_expected_before_and_after_the_first_step(num_steps: int) -> None:
    state = packed(num_steps)
    for expected in (Expected.of(model_forms(Toy)), Expected.like(packed(0)), Expected.like(packed(1))):
        check_forms(forms_of(state, expected.most_header_bytes), expected.forms)
        assert state.manifest.num_bytes <= expected.most_bytes
        assert header_bytes(state) <= expected.most_header_bytes


def test_what_is_expected_of_a_model_is_bounded_by_its_size() -> None:
    expected = Expected.of(model_forms(lambda: torch.nn.Linear(1000, 1000)))
    assert expected.most_bytes < 200 * 10**6
    assert expected.most_header_bytes < 2 * 10**6


def test_a_model_of_any_size_is_known_without_its_numbers() -> None:
    forms = model_forms(lambda: torch.nn.Linear(10**7, 10**6))
    assert forms == {"model.weight": ("F32", (10**6, 10**7)), "model.bias": ("F32", (10**6,))}


def test_a_model_that_looks_at_its_numbers_is_known_too_and_draws_none_of_others() -> None:
    def build() -> torch.nn.Module:
        model = torch.nn.Linear(3, 2)
        assert model.weight.sum().item() != 0
        return model

    before = torch.random.get_rng_state()
    assert model_forms(build) == {"model.weight": ("F32", (2, 3)), "model.bias": ("F32", (2,))}
    assert torch.equal(torch.random.get_rng_state(), before)
