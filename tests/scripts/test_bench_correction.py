"""The table of corrections: what its rules are."""

import pytest

from collab.config import Optimizer
from scripts.bench_correction import Course, corrected, without


def course(workers: int, *, steps: int = 60) -> Course:
    section = Optimizer(name="sgd", learning_rate=0.2, momentum=0.0)
    return Course(seed=0, steps=steps, workers=workers, batch=8, hidden=16, optimizer=section)


@pytest.mark.parametrize("delay", [1, 7])
def test_one_worker_s_own_mean_is_no_news_to_it(delay: int) -> None:
    assert corrected(course(1), delay) == pytest.approx(without(course(1), 0), abs=0.004)


def test_late_gradients_need_the_correction() -> None:
    together = course(4, steps=200)
    plain, late = without(together, 0), without(together, 10)
    assert late < plain - 0.2
    assert corrected(together, 10) > plain - 0.03
