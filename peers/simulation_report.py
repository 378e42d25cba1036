"""``collab-peer simulate``: what is said of simulations, and drawn."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from collab.simulation.account import Look
from collab.simulation.curves import Curve, draw
from collab.simulation.swarm_file import SwarmFile
from peers.figures import Figures, Outcome, digest_of

MEGA = 1e6
COLUMNS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("strategy", lambda f: f.title),
    ("loss", lambda f: number(f.training_loss)),
    ("held out", lambda f: number(f.held_out_loss)),
    ("right", lambda f: percent(f.accuracy)),
    ("to loss", lambda f: seconds(f.seconds_to_loss)),
    ("steps", lambda f: str(f.steps)),
    ("step", lambda f: seconds(f.step_s)),
    ("round", lambda f: seconds(f.round_s)),
    ("samples/s", lambda f: number(f.samples_per_s)),
    ("computed", lambda f: str(f.computed_samples)),
    ("committed", lambda f: f"{f.committed_samples:.0f}"),
    ("lost", lambda f: percent(f.lost_share)),
    ("MB sent each", lambda f: number(f.sent_bytes_of_a_trainer / MEGA)),
    ("computing", lambda f: percent(f.compute_use)),
    ("uplink", lambda f: percent(f.uplink_use)),
    ("money", lambda f: number(f.money)),
)
OPTIONAL = {"loss", "held out", "right", "to loss", "money"}
"""Columns that are left out where nobody has anything to say."""
NOTHING = "-"


def number(value: float) -> str:
    """Three digits that count."""
    if math.isnan(value):
        return NOTHING
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def percent(share: float) -> str:
    """With one digit behind the point."""
    return NOTHING if math.isnan(share) else f"{share:.1%}"


def seconds(value: float) -> str:
    """Or that it never came to that."""
    if math.isinf(value):
        return "never"
    return NOTHING if math.isnan(value) else f"{number(value)} s"


def table(outcomes: list[Outcome]) -> str:
    """One line for each strategy."""
    rows = [[cell(outcome.figures) for _, cell in COLUMNS] for outcome in outcomes]
    kept = [
        place
        for place, (name, _) in enumerate(COLUMNS)
        if name not in OPTIONAL or any(row[place] not in (NOTHING, "0") for row in rows)
    ]
    lines = [[COLUMNS[place][0] for place in kept], *([row[place] for place in kept] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(kept))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def for_programs(swarm: SwarmFile, outcomes: list[Outcome], *, is_calculated: bool = False) -> dict[str, Any]:
    """Everything as plain values; what is not there is null."""
    found: dict[str, Any] = {
        "setup": swarm.model_dump(mode="json"),
        "seed": swarm.seed,
        "rounds": "calculated" if is_calculated else "simulated",
        "strategies": [
            {**asdict(outcome.figures), "looks": [asdict(look) for look in outcome.looks]} for outcome in outcomes
        ],
        "digest": digest_of(outcomes),
    }
    plain: dict[str, Any] = _plain(found)
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -- files -----------------------------------------------------------------------------------------------------------

ACROSS: tuple[tuple[str, str, Callable[[Look], float]], ...] = (
    ("time", "virtual minutes", lambda look: look.at_s / 60),
    ("samples", "samples committed", lambda look: look.samples),
    ("bytes", "MB sent by all peers", lambda look: look.sent_bytes / MEGA),
)


def pictures(swarm: SwarmFile, outcomes: list[Outcome]) -> dict[str, str]:
    """SVG files by name: held-out loss over time, samples and bytes; samples over time where nothing is learnt."""
    if swarm.task.name == "none":
        curves = [_curve(outcome, lambda look: look.at_s / 60, lambda look: look.samples) for outcome in outcomes]
        up = "samples committed"
        return {"samples_by_time.svg": draw(curves, title="How far it is", across="virtual minutes", up=up)}
    found = {}
    for name, across, place in ACROSS:
        curves = [_curve(outcome, place, lambda look: look.loss) for outcome in outcomes]
        found[f"loss_by_{name}.svg"] = draw(
            curves, title="Loss on held-out data", across=across, up="loss on held-out data"
        )
    return found


def _curve(outcome: Outcome, across: Callable[[Look], float], up: Callable[[Look], float]) -> Curve:
    return Curve(name=outcome.figures.title, points=tuple((across(look), up(look)) for look in outcome.looks))


def save(swarm: SwarmFile, outcomes: list[Outcome], directory: Path, *, is_calculated: bool = False) -> list[Path]:
    """Write the report and the pictures; returns what was written.

    Raises:
        OSError: the directory does not take it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    report = json.dumps(for_programs(swarm, outcomes, is_calculated=is_calculated), indent=1)
    files = {"report.json": report + "\n", **pictures(swarm, outcomes)}
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
    return [directory / name for name in files]
