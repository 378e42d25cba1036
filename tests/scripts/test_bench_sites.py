"""What DTS learns at four sites: the benchmark's two rules, in short."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from sites_swarm import Course, train, train_synchronously


def test_both_rules_learn_in_as_many_steps() -> None:
    course = Course(seed=1, is_skewed=False, rounds=40, step_ms=100.0)
    seen = train(course)
    assert seen.steps > 4 * course.rounds, "rounds go on beside steps"
    plain = train_synchronously(course, seen.steps)
    assert plain.accuracy > 0.9, "guessing has 0.1"
    assert seen.result.accuracy > plain.accuracy - 0.03


def test_each_label_is_at_one_site_when_data_are_skewed_and_at_all_when_pooled() -> None:
    def labels(is_skewed: bool) -> list[set[int]]:
        tasks = Course(seed=0, is_skewed=is_skewed, rounds=1, step_ms=50.0).tasks()
        return [set(task.batch(tuple(range(task.num_samples))).tensors["labels"].tolist()) for task in tasks]

    skewed = labels(True)
    assert sum(len(own) for own in skewed) == 10
    assert set().union(*skewed) == set(range(10))
    assert labels(False) == [set(range(10))] * 4
