"""``collab-peer simulate``: from a swarm file to a table, a report and pictures."""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from collab.errors import ConfigError
from collab.simulation.swarm_file import NoTask, SwarmFile, load_swarm
from collab.simulation.synthetic import SyntheticTask
from collab.tasks.base import Task
from collab.tasks.registry import build_task, make_assets
from peers.calculating import Calculation
from peers.figures import Outcome, digest_of
from peers.places import cache_dir
from peers.process import announce, settle_heap
from peers.simulating import Simulation
from peers.simulation_report import for_programs, save, table


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What was asked for."""

    file: Path
    strategies: tuple[str, ...] = ()
    out: Path | None = None
    as_json: bool = False
    is_calculated: bool = False
    """Only the trainers are played, and what is between them is calculated."""


def try_out(trial: Trial) -> None:
    """Simulate, and say what came of it.

    Raises:
        ConfigError: the file cannot be used, or the directory does not take what is written.
        DataError: the data cannot be read.
    """
    swarm = load_swarm(trial.file)
    outcomes = simulate(
        swarm, trial.strategies, base_dir=trial.file.parent, tell=announce, is_calculated=trial.is_calculated
    )
    if trial.as_json:
        lines = [json.dumps(for_programs(swarm, outcomes, is_calculated=trial.is_calculated))]
    else:
        lines = [table(outcomes)]
        how = ", rounds calculated" if trial.is_calculated else ""
        lines.append(f"seed {swarm.seed}{how}, digest {digest_of(outcomes)}")
    if trial.out is not None:
        try:
            written = save(swarm, outcomes, trial.out, is_calculated=trial.is_calculated)
        except OSError as error:
            raise ConfigError(f"cannot write to {trial.out}: {error}", hint="name a directory that you own") from error
        announce("written: " + ", ".join(str(path) for path in written))
    sys.stdout.write("\n".join(lines) + "\n")


def simulate(
    swarm: SwarmFile,
    titles: tuple[str, ...] = (),
    *,
    base_dir: Path = Path(),
    tell: Callable[[str], None] = lambda _: None,
    is_calculated: bool = False,
) -> list[Outcome]:
    """The contenders of these names, or all, one after the other.

    Args:
        base_dir: where relative paths of the task start.
        tell: hears how it goes on.
        is_calculated: see ``Trial``.
    """
    torch.set_num_threads(1)  # the order of sums does not depend on the machine then
    outcomes = []
    task, assets = learnt(swarm, base_dir)
    settle_heap()
    for contender in swarm.contenders(titles):
        began_s = time.monotonic()
        if is_calculated:
            outcomes.append(Calculation(swarm, contender, task, assets).run())
        else:
            with tempfile.TemporaryDirectory(prefix="collab-simulation-") as folder:
                outcomes.append(Simulation(swarm, contender, task, assets, Path(folder)).run())
        took_s, virtual_s = time.monotonic() - began_s, outcomes[-1].figures.virtual_s
        tell(f"{contender.title}: {virtual_s / 60:.1f} virtual minutes in {took_s:.1f} s")
    return outcomes


def learnt(swarm: SwarmFile, base_dir: Path) -> tuple[Task, Mapping[str, bytes]]:
    """The task that all contenders share, and what travels with it."""
    if isinstance(swarm.task, NoTask):
        return SyntheticTask(swarm.task), {}
    run = swarm.run_of(swarm.strategies[0])
    assets = make_assets(run, base_dir=base_dir, cache_dir=cache_dir())
    return build_task(run, assets=assets, cache_dir=cache_dir(), peer_id="", base_dir=base_dir), assets
