import copy
import math
import sys

import pytest
import torch

from collab.config import ImageClassificationTask, Optimizer
from collab.data.sampling import SampleSampler
from collab.errors import ConfigError
from collab.tasks.image_classification import ImageClassification
from collab.training.lamb import Lamb
from collab.training.optimizers import build_optimizer

NAMES = ["sgd", "adamw", "lamb", "adamw8bit"]


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))


def section(name: str, **fields: object) -> Optimizer:
    return Optimizer.model_validate({"name": name} | fields)


@pytest.mark.parametrize("name", NAMES)
def test_matrices_decay_and_vectors_do_not_in_the_order_of_the_model(name: str) -> None:
    net = model()
    optimizer = build_optimizer(section(name, learning_rate=0.25, weight_decay=0.1), net)
    matrices, vectors = optimizer.param_groups
    named = dict(net.named_parameters())
    order = {id(parameter): key for key, parameter in named.items()}
    assert [order[id(parameter)] for parameter in matrices["params"]] == ["0.weight", "2.weight"]
    assert [order[id(parameter)] for parameter in vectors["params"]] == ["0.bias", "1.weight", "1.bias", "2.bias"]
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)
    assert {group["lr"] for group in optimizer.param_groups} == {0.25}


@pytest.mark.parametrize("name", NAMES)
def test_decay_shrinks_matrices_only_when_gradients_are_zero(name: str) -> None:
    net = model()
    before = {key: parameter.detach().clone() for key, parameter in net.named_parameters()}
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    build_optimizer(section(name, learning_rate=0.1, weight_decay=0.5), net).step()
    for key, parameter in net.named_parameters():
        # Without a gradient LAMB's update is the decay alone, and the ratio of norms makes it a step of 0.1 ||x||.
        factor = 1 if parameter.ndim < 2 else 0.9 if name == "lamb" else 0.95
        torch.testing.assert_close(parameter.detach(), factor * before[key])


def test_frozen_parameters_are_left_out() -> None:
    net = model()
    net[0].requires_grad_(False)
    optimizer = build_optimizer(section("adamw"), net)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 3]


def test_model_without_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="no parameter"):
        build_optimizer(section("sgd"), torch.nn.ReLU())


def test_settings_of_the_run_reach_the_optimizer() -> None:
    sgd = build_optimizer(section("sgd", momentum=0.9), model())
    assert sgd.param_groups[0]["momentum"] == 0.9
    for name in NAMES[1:]:
        group = build_optimizer(section(name, betas=[0.8, 0.95], epsilon=1e-5), model()).param_groups[1]
        assert (tuple(group["betas"]), group["eps"]) == ((0.8, 0.95), 1e-5)


def test_missing_bitsandbytes_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(ConfigError, match="bitsandbytes") as caught:
        build_optimizer(section("adamw8bit"), model())
    assert caught.value.hint == f"{sys.executable} -m pip install bitsandbytes"


def test_first_step_of_lamb_is_the_one_computed_by_hand() -> None:
    # x = (3, 4), ||x|| = 5; g = (0.1, -0.2). After bias correction m_hat = g and v_hat = g^2, so with epsilon 0 Adam's
    # direction is (1, -1). Decay 0.5 adds (1.5, 2): u = (2.5, 1), ||u|| = sqrt(7.25), trust = 5 / sqrt(7.25).
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    weight.grad = torch.tensor([0.1, -0.2])
    Lamb([weight], lr=0.01, eps=0.0, weight_decay=0.5).step()
    trust = 5 / math.sqrt(7.25)
    torch.testing.assert_close(weight.detach(), torch.tensor([3 - 0.01 * trust * 2.5, 4 - 0.01 * trust * 1.0]))


def test_second_step_of_lamb_is_the_one_computed_by_hand() -> None:
    # betas (0.5, 0.5), epsilon 0, no decay, gradients 1 then 3 on x = 2.
    # Step 1: direction 1, trust 2, x = 2 - 0.1 * 2 = 1.8.
    # Step 2: m = 0.5 * 0.5 + 0.5 * 3 = 1.75, m_hat = 1.75 / 0.75; v = 0.5 * 0.5 + 0.5 * 9 = 4.75, v_hat = 4.75 / 0.75.
    # For one element trust * u = |x| sign(u): x = 1.8 - 0.1 * 1.8 = 1.62.
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = Lamb([weight], lr=0.1, betas=(0.5, 0.5), eps=0.0)
    for gradient in (1.0, 3.0):
        weight.grad = torch.tensor([gradient])
        optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.tensor([1.62]))
    state = optimizer.state[weight]
    assert (state["step"].item(), state["exp_avg"].item(), state["exp_avg_sq"].item()) == (2.0, 1.75, 4.75)


def test_lamb_step_has_the_size_of_the_weights_whatever_the_size_of_the_gradient() -> None:
    for scale in (1e-3, 1.0, 1e3):
        weight = torch.nn.Parameter(torch.full((8, 4), 0.5))
        before = weight.detach().clone()
        weight.grad = scale * torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
        Lamb([weight], lr=0.01).step()
        moved = torch.linalg.vector_norm(weight.detach() - before)
        torch.testing.assert_close(moved, 0.01 * torch.linalg.vector_norm(before), rtol=1e-3, atol=0)


def test_lamb_moves_tensors_that_start_at_zero_and_leaves_those_without_gradient() -> None:
    bias, unused = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.ones(2))
    bias.grad = torch.tensor([1.0, -1.0])
    optimizer = Lamb([bias, unused], lr=0.1)
    optimizer.step()
    torch.testing.assert_close(bias.detach(), torch.tensor([-0.1, 0.1]))
    assert unused.tolist() == [1.0, 1.0]
    assert unused not in optimizer.state


def test_lamb_goes_on_from_its_saved_state_as_if_nothing_had_happened() -> None:
    def run(steps: range, weight: torch.nn.Parameter, optimizer: Lamb) -> None:
        for step in steps:
            weight.grad = torch.tensor([0.3, -0.1 * step])
            optimizer.step()

    first = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = Lamb([first], lr=0.1)
    run(range(3), first, optimizer)
    second = torch.nn.Parameter(first.detach().clone())
    restored = Lamb([second], lr=0.1)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # torch would share the tensors
    run(range(3, 6), first, optimizer)
    run(range(3, 6), second, restored)
    assert torch.equal(first, second)


@pytest.mark.parametrize("settings", [{"lr": -1.0}, {"lr": 1.0, "betas": (0.9, 1.0)}, {"lr": 1.0, "eps": -1.0}])
def test_impossible_lamb_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="LAMB"):
        Lamb([torch.nn.Parameter(torch.zeros(1))], **settings)


@pytest.mark.parametrize(("name", "rate"), [("sgd", 0.5), ("lamb", 0.02), ("adamw8bit", 0.01)])
def test_digits_are_learnt_to_more_than_nine_in_ten(name: str, rate: float) -> None:
    task = ImageClassification(ImageClassificationTask(name="image_classification"))
    torch.manual_seed(0)
    net = task.build_model()
    optimizer = build_optimizer(section(name, learning_rate=rate, momentum=0.9 if name == "sgd" else 0.0), net)
    sampler = SampleSampler(task.num_samples, seed=0, peer_id="a")
    assert task.evaluate(net).accuracy < 0.3
    first_loss = task.evaluate(net).loss
    for _ in range(300):
        optimizer.zero_grad()
        task.loss(net, task.batch(sampler.next(64)).tensors).backward()
        optimizer.step()
    assert task.evaluate(net).accuracy > 0.9
    assert task.evaluate(net).loss < first_loss / 4
