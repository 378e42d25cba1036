import json

import pytest
import torch

from collab.config import ImageClassificationTask
from collab.tasks.image_classification import ImageClassification


def task(**fields: object) -> ImageClassification:
    return ImageClassification(ImageClassificationTask.model_validate({"name": "image_classification"} | fields))


def test_batch_is_the_same_for_the_same_ids_and_in_their_order() -> None:
    digits = task()
    batch = digits.batch((5, 3, 5))
    assert batch.sample_ids == (5, 3, 5)
    assert batch.tensors["pixels"].shape == (3, 64)
    assert batch.tensors["pixels"].dtype == torch.float32
    assert batch.tensors["labels"].dtype == torch.int64
    assert torch.equal(batch.tensors["pixels"][0], batch.tensors["pixels"][2])
    assert torch.equal(batch.tensors["pixels"], task().batch((5, 3, 5)).tensors["pixels"])


def test_all_images_are_used_once_and_pixels_are_between_zero_and_one() -> None:
    digits = task(eval_samples=297)
    assert digits.num_samples == 1500
    everything = digits.batch(tuple(range(1500))).tensors
    assert (everything["pixels"].min().item(), everything["pixels"].max().item()) == (0.0, 1.0)
    assert sorted(everything["labels"].unique().tolist()) == list(range(10))


def test_held_out_images_do_not_depend_on_seeds() -> None:
    torch.manual_seed(1)
    net = task().build_model()
    first = task().evaluate(net)
    torch.manual_seed(2)
    assert task().evaluate(net) == first


def test_loss_is_the_mean_so_that_means_compose() -> None:
    digits = task()
    torch.manual_seed(0)
    net = digits.build_model()
    loss = {ids: digits.loss(net, digits.batch(ids).tensors).item() for ids in [(0, 1, 2), (3,), (0, 1, 2, 3)]}
    assert loss[0, 1, 2, 3] == pytest.approx((3 * loss[0, 1, 2] + loss[3,]) / 4, rel=1e-6)


@pytest.mark.parametrize("is_training", [True, False])
def test_evaluating_leaves_the_mode_of_every_module_and_no_gradients(is_training: bool) -> None:
    digits = task()
    net = digits.build_model().train(is_training)
    net[1].train(not is_training)
    digits.evaluate(net)
    assert net.training is is_training
    assert net[1].training is not is_training
    assert all(parameter.grad is None for parameter in net.parameters())


def test_checkpoint_config_describes_the_model() -> None:
    digits = task(hidden_sizes=[20, 12])
    config = json.loads(digits.checkpoint_files()["config.json"])
    assert config == {"task": "image_classification", "num_inputs": 64, "hidden_sizes": [20, 12], "num_classes": 10}
    shapes = [tuple(parameter.shape) for parameter in digits.build_model().parameters()]
    assert shapes == [(20, 64), (20,), (12, 20), (12,), (10, 12), (10,)]
