from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from collab.config import Schedule
from collab.training.schedule import learning_rate_factor


@pytest.mark.parametrize(("section", "expected"), [
    (Schedule(), {0: 1.0, 10**6: 1.0}),
    (Schedule(warmup_epochs=4), {0: 0.25, 1: 0.5, 3: 1.0, 4: 1.0, 100: 1.0}),
    (Schedule(name="linear", total_epochs=10), {0: 1.0, 5: 0.5, 9: 0.1, 10: 0.0, 11: 0.0}),
    (Schedule(name="linear", warmup_epochs=2, total_epochs=12, final_factor=0.2),
     {0: 0.5, 1: 1.0, 2: 1.0, 7: 0.6, 12: 0.2, 99: 0.2}),
    (Schedule(name="cosine", total_epochs=12, final_factor=0.1), {0: 1.0, 4: 0.775, 6: 0.55, 8: 0.325, 12: 0.1}),
    (Schedule(name="cosine", warmup_epochs=1, total_epochs=5), {0: 1.0, 1: 1.0, 3: 0.5, 5: 0.0}),
])
def test_factor_is_what_the_formula_gives_by_hand(section: Schedule, expected: dict[int, float]) -> None:
    assert {epoch: learning_rate_factor(section, epoch) for epoch in expected} == pytest.approx(expected)


@given(name=st.sampled_from(["constant", "linear", "cosine"]), warmup=st.integers(0, 20), length=st.integers(1, 50),
       final=st.floats(0, 1))
def test_factor_rises_then_falls_and_stays_in_its_bounds(name: str, warmup: int, length: int, final: float) -> None:
    section = Schedule.model_validate({"name": name, "warmup_epochs": warmup, "total_epochs": warmup + length,
                                       "final_factor": final})
    factors = [learning_rate_factor(section, epoch) for epoch in range(warmup + length + 3)]
    rise, fall = factors[:warmup], factors[warmup:]
    assert rise == sorted(rise)
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(fall))
    assert all(0 < factor <= 1 for factor in rise)
    assert all(min(final, 1.0) - 1e-12 <= factor <= 1 + 1e-12 for factor in fall)


def test_negative_epoch_is_refused() -> None:
    with pytest.raises(ValueError, match="epoch"):
        learning_rate_factor(Schedule(), -1)
