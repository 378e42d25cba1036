"""A trainer's compute beside rounds: how much of its speed it keeps in the process that also averages."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from averaging_gauges import Period, Periods
from numpy.typing import NDArray

WIDTH, HEADS, BATCH, TOKENS = 256, 4, 8, 32
"""Of one transformer layer: some 20 ms a step on one core, in operations of up to a few milliseconds each."""
WARM_UP_STEPS = 5
START_LIMIT_S = 60.0
MIN_STEPS = 10
"""While vectors travelled; fewer say nothing."""

Steps = NDArray[np.float64]
"""[num_steps, 3]: when each step ended by the monotonic clock; until then, the CPU seconds of its thread, and its
seconds in the queue for a core."""


class Computing:
    """Implements ``Gauge``: a thread that trains all the time; its operations let go of the GIL."""

    name = "compute"

    def __init__(self, core: int | None, seed: int) -> None:
        """
        Args:
            core: the thread's own; None: it shares those of its process.
        """
        self._core, self._seed = core, seed
        self._steps: list[tuple[float, float, float]] = []
        self._is_warm = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()
        if not self._is_warm.wait(START_LIMIT_S):
            raise RuntimeError(f"no {WARM_UP_STEPS} steps within {START_LIMIT_S:.0f} s")

    def read(self, periods: Periods) -> dict[str, Any]:
        return kept(np.array(list(self._steps)), periods)

    def _run(self) -> None:
        if self._core is not None:
            os.sched_setaffinity(threading.get_native_id(), {self._core})
        step = training_step(self._seed)
        while True:
            step()
            self._steps.append((time.monotonic(), time.thread_time(), core_wait_s()))
            if len(self._steps) == WARM_UP_STEPS:
                self._is_warm.set()


def core_wait_s() -> float:
    """How long the calling thread has stood in the queue for a core so far; 0 where the kernel does not say."""
    try:
        return int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def training_step(seed: int) -> Callable[[], None]:
    """Forward, backward and update of a small transformer layer, in one thread of torch."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    tokens = torch.randn(BATCH, TOKENS, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        layer(tokens).square().mean().backward()
        optimizer.step()

    return step


def kept(steps: Steps, periods: Periods) -> dict[str, Any]:
    """Speed while vectors travelled, by the speed at quiet times.

    What slowed it down: for ``core_wait_share`` of the time another thread had its core; for what is left beside that
    and ``cpu_share`` it waited for the GIL. ``share_kept_of_core`` leaves the first out: on a core of the thread's own,
    that was some other program.
    """
    columns = {"steps": np.arange(len(steps)), "cpu_s": steps[:, 1], "core_wait_s": steps[:, 2]}
    spans = {"round": periods.rounds, "quiet": periods.quiet}
    grown = {name: {when: amount(steps, column, spans[when]) for when in spans} for name, column in columns.items()}
    num_steps, cpu_s, wait_s = (grown[name] for name in columns)
    if min(num_steps.values()) < MIN_STEPS:
        return {"share_kept": None, "num_steps": _rounded(num_steps)}
    seconds = {when: sum(stop_s - start_s for start_s, stop_s in spans[when]) for when in spans}
    per_s = _by(num_steps, seconds)
    per_core_s = _by(num_steps, {when: seconds[when] - wait_s[when] for when in spans})
    by_round = [amount(steps, columns["steps"], [span]) / (span[1] - span[0]) for span in periods.rounds]
    return {
        "share_kept": round(per_s["round"] / per_s["quiet"], 4),
        "share_kept_of_core": round(per_core_s["round"] / per_core_s["quiet"], 4),
        "worst_round_share": round(min(by_round) / per_s["quiet"], 4),
        "steps_per_s": _rounded(per_s),
        "cpu_share": _rounded(_by(cpu_s, seconds)),
        "core_wait_share": _rounded(_by(wait_s, seconds)),
        "num_steps": _rounded(num_steps),
        "seconds": _rounded(seconds),
    }


def amount(steps: Steps, grown: NDArray[Any], spans: Sequence[Period]) -> float:
    """How much ``grown``, a value for each step, grew in ``spans``; a step that lies across an edge counts in part."""
    edges = np.interp(np.array(spans).reshape(-1, 2), steps[:, 0], grown)
    return float((edges[:, 1] - edges[:, 0]).sum())


def _by(amounts: dict[str, float], seconds: dict[str, float]) -> dict[str, float]:
    return {when: amounts[when] / seconds[when] for when in seconds}


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}
