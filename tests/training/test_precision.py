"""Half precision: where it is used, and how its loss scale moves."""

import pytest
import torch

from collab.training.precision import GROWTH_INTERVAL, LossScale, Precision, best_precision

CPU = torch.device("cpu")


def test_a_cpu_computes_in_float32() -> None:
    assert best_precision(CPU) is Precision.FLOAT32
    with Precision.FLOAT32.autocast(CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "capability", "precision"),
    [
        ("P100", (6, 0), Precision.FLOAT16),
        ("T4", (7, 5), Precision.FLOAT16),
        ("A100", (8, 0), Precision.BFLOAT16),
        ("RTX 4090", (8, 9), Precision.BFLOAT16),
        ("B200", (10, 0), Precision.BFLOAT16),
    ],
)
def test_a_gpu_computes_in_bfloat16_only_where_it_does_not_emulate_it(
    monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int], precision: Precision
) -> None:
    second = torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)  # of the first, and with emulation
    monkeypatch.setattr(torch.cuda, "get_device_capability", {second: capability}.__getitem__)
    assert best_precision(second) is precision, name


def test_bfloat16_casts_the_forward_pass_and_ends_with_it() -> None:
    with Precision.BFLOAT16.autocast(CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_the_scale_halves_on_overflow_and_never_falls_below_one() -> None:
    scale = LossScale()
    start = scale.value
    scale.update(False)
    assert scale.value == start / 2
    for _ in range(100):
        scale.update(False)
    assert scale.value == 1.0


def test_the_scale_doubles_only_after_a_long_time_without_overflow() -> None:
    scale = LossScale()
    start = scale.value
    for _ in range(GROWTH_INTERVAL - 1):
        scale.update(True)
    assert scale.value == start
    scale.update(True)
    assert scale.value == 2 * start
    for _ in range(GROWTH_INTERVAL - 1):
        scale.update(True)
    scale.update(False)
    scale.update(True)
    assert scale.value == start


def test_the_scale_is_a_power_of_two_so_that_dividing_it_out_is_exact() -> None:
    scale = LossScale()
    for was_finite in [False] * 5 + [True] * GROWTH_INTERVAL:
        scale.update(was_finite)
        assert float(scale.value).hex().startswith("0x1.0000000000000p")
