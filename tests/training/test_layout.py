"""The order of the vector."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from collab.errors import ShapeMismatch
from collab.training.layout import VectorLayout
from tests.training.toy import Plain, Toy, seeded


def test_the_vector_holds_each_trainable_parameter_once_in_the_model_s_order() -> None:
    layout = VectorLayout(seeded(Toy))
    assert [slot.name for slot in layout.slots] == [
        "first.weight", "first.bias", "norm.weight", "norm.bias", "second.weight", "unused.weight", "unused.bias",
        "last.weight", "last.bias",
    ]  # fmt: skip
    edges = [(slot.start, slot.stop) for slot in layout.slots]
    assert edges[0][0] == 0
    assert all(stop == start for (_, stop), (start, _) in pairwise(edges))
    assert layout.num_elements == edges[-1][1] == 16 * 6 + 16 + 16 + 16 + 256 + 6 + 3 + 48 + 3


def test_gradients_come_back_from_where_they_were_put() -> None:
    model = seeded(Plain)
    layout = VectorLayout(model)
    vector = np.arange(layout.num_elements, dtype=np.float32)
    layout.scatter_gradients(vector)
    out = torch.full((layout.num_elements,), -1.0)
    layout.gather_gradients(out)
    assert np.array_equal(out.numpy(), vector)
    first = dict(model.named_parameters())["first.weight"].grad
    assert first is not None
    assert first.shape == (16, 6)
    assert first[0].tolist() == [0, 1, 2, 3, 4, 5]


def test_the_scattered_gradient_is_a_copy() -> None:
    layout = VectorLayout(seeded(Plain))
    vector = np.ones(layout.num_elements, np.float32)
    layout.scatter_gradients(vector)
    vector[:] = 7
    out = torch.zeros(layout.num_elements)
    layout.gather_gradients(out)
    assert out.eq(1).all()


def test_an_absent_gradient_counts_as_zero_and_overwrites_what_was_there() -> None:
    model = seeded(Plain)
    layout = VectorLayout(model)
    bias = dict(model.named_parameters())["last.bias"]
    bias.grad = torch.tensor([1.0, 2.0, 3.0])
    out = torch.full((layout.num_elements,), 9.0)
    layout.gather_gradients(out)
    assert out[:-3].eq(0).all()
    assert out[-3:].tolist() == [1, 2, 3]


def test_a_gradient_that_is_not_contiguous_keeps_its_order() -> None:
    model = seeded(Plain)
    layout = VectorLayout(model)
    weight = dict(model.named_parameters())["first.weight"]
    weight.grad = torch.arange(96.0).reshape(6, 16).t()
    out = torch.zeros(layout.num_elements)
    layout.gather_gradients(out)
    assert out[:7].tolist() == [0, 16, 32, 48, 64, 80, 1]


@pytest.mark.parametrize("shape", [(0,), (162,), (164,), (1, 163), ()])
def test_a_gradient_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    layout = VectorLayout(seeded(Plain))
    assert layout.num_elements == 163
    with pytest.raises(ShapeMismatch, match="163"):
        layout.scatter_gradients(np.zeros(shape, np.float32))


def test_a_model_with_nothing_to_train_is_refused() -> None:
    model = seeded(Plain).requires_grad_(False)
    with pytest.raises(ShapeMismatch, match="no trainable"):
        VectorLayout(model)


def test_the_parameters_as_one_vector_are_a_copy_in_the_same_order() -> None:
    model = seeded(Plain)
    vector = VectorLayout(model).parameters_vector()
    expected = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()
    assert np.array_equal(vector, expected)
    vector[:] = 0
    assert dict(model.named_parameters())["first.weight"].abs().sum() > 0
