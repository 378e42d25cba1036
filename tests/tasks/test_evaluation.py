"""An evaluation that is left off between its batches."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest
import torch

from collab.config import ImageClassificationTask
from collab.errors import TaskFailed
from collab.tasks.base import Evaluation
from collab.tasks.evaluation import evaluate_unless, evaluating
from collab.tasks.image_classification import ImageClassification

BATCHES = 5


class InBatches(ImageClassification):
    """Evaluates in some batches, of which each is counted when it is done."""

    def __init__(self) -> None:
        super().__init__(ImageClassificationTask(name="image_classification", hidden_sizes=(8,)))
        self.done = 0

    def evaluate(self, model: torch.nn.Module) -> Evaluation:
        with evaluating(model):
            for _ in range(BATCHES):
                model(torch.zeros(1, 64))
                self.done += 1
        return Evaluation(0.5)


def after(batches: int) -> Callable[[], bool]:
    """Wanted back when so many are done."""
    asked: Iterator[int] = count()
    return lambda: next(asked) >= batches


@pytest.mark.parametrize(("batches", "done", "found"), [(0, 0, None), (2, 2, None), (BATCHES, BATCHES, 0.5)])
def test_it_ends_with_the_batch_that_is_under_way(batches: int, done: int, found: float | None) -> None:
    task = InBatches()
    model = task.build_model().train()
    evaluation = evaluate_unless(task, model, after(batches))
    assert task.done == done
    assert (evaluation and evaluation.loss) == found
    assert all(module.training for module in model.modules())
    model(torch.zeros(1, 64))  # nobody is asked any more
    assert task.evaluate(model) == Evaluation(0.5)


class Careless(InBatches):
    """Changes what it should not, and fails."""

    def evaluate(self, model: torch.nn.Module) -> Evaluation:
        model.eval()
        torch.set_grad_enabled(False)
        raise KeyError("labels")


def test_one_that_fails_leaves_the_model_and_gradients_as_they_were() -> None:
    task = Careless()
    model = task.build_model().train()
    with pytest.raises(TaskFailed, match="could not evaluate: KeyError: 'labels'"):
        evaluate_unless(task, model, lambda: False)
    assert all(module.training for module in model.modules())
    assert torch.is_grad_enabled()
