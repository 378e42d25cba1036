#!/usr/bin/env python3
"""Draw how full every link is while a simulated swarm trains, each way of training of a swarm file below the other.

    python scripts/draw_link_use.py docs/swarms/link-use.yaml docs/pictures/link-use.svg [--from 30] [--seconds 14]

The swarm is that of 'collab-peer simulate': the very trainers and rounds of a real run, over links in virtual time.
The picture shows what each trainer's uplink carries, as a share of its rate, over some seconds. The same file gives the
same picture. Figures of the same window go to standard output as one JSON line.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import torch

from collab.metrics.records import Event, RoundEnded
from collab.simulation.links import Access
from collab.simulation.peer import SimPeer
from collab.simulation.swarm_file import Contender, SwarmFile, load_swarm
from collab.simulation.virtual_time import EPOCH_S
from peers.simulating import Simulation
from peers.trying import learnt

LOOK_S = 0.1
"""Between two looks at the counters: some pieces of a slow link."""
WIDTH, ROW, STRIP, LEFT, RIGHT, TOP, BOTTOM = 640, 18, 14, 92, 12, 40, 26
"""Pixels."""
FULL, FIELD, ROUND = "#0b5c8a", "#eeeeee", "#c2410c"


@dataclass(slots=True)
class Use:
    """Of one way of training, within the window."""

    title: str
    mbit_per_s: list[float]
    """Of each trainer's uplink."""
    shares: list[list[float]]
    """[trainers][looks], 0 to 1."""
    rounds: list[tuple[float, float]] = field(default_factory=list)
    """Begin and end of the rounds that committed, seconds since the window began, by whoever was there longest."""

    @property
    def height(self) -> int:
        return TOP + ROW * len(self.shares) + BOTTOM

    def figures(self, seconds: float) -> dict[str, Any]:
        """What the picture shows, in numbers."""
        carried = sum(rate * sum(row) / len(row) for rate, row in zip(self.mbit_per_s, self.shares, strict=True))
        whole = [end - begin for begin, end in self.rounds if begin >= 0 and end <= seconds]
        return {
            "title": self.title,
            "rounds_s": [round(length, 2) for length in whole],
            "uplink_use": round(carried / sum(self.mbit_per_s), 3),
        }


def watch(swarm: SwarmFile, contender: Contender, begin_s: float, seconds: float) -> Use:
    """Train that way until the window is over."""
    task, assets = learnt(swarm, Path())
    ended: dict[str, tuple[float, float]] = {}

    def note(_: SimPeer, event: Event) -> None:
        if isinstance(event, RoundEnded) and event.committed:
            end_s = event.at_s - EPOCH_S - begin_s
            old = ended.get(event.round_id, (end_s, end_s))
            ended[event.round_id] = min(old[0], end_s - event.seconds), max(old[1], end_s)

    with tempfile.TemporaryDirectory(prefix="collab-simulation-") as folder:
        simulation = Simulation(swarm, contender, task, assets, Path(folder))
        simulation.world.subscribe(note)
        simulation.begin()
        with simulation.world as world:
            world.run(until_s=begin_s)
            names = [world.peers[index].name for index in sorted(simulation.roles.replicas)]
            accesses = [simulation.account.tallies[name].accesses[-1] for name in names]
            shares: list[list[float]] = [[] for _ in accesses]
            for number in range(round(seconds / LOOK_S)):
                before = [access.sent_bytes for access in accesses]
                world.run(until_s=begin_s + (number + 1) * LOOK_S)
                for row, access, old in zip(shares, accesses, before, strict=True):
                    row.append(min((access.sent_bytes - old) / (access.link.up_bytes_per_s * LOOK_S), 1.0))
    rates = [mbit_per_s(access) for access in accesses]
    order = sorted(range(len(rates)), key=lambda index: -rates[index])
    seen = sorted(span for span in ended.values() if span[1] > 0 and span[0] < seconds)
    return Use(contender.title, [rates[index] for index in order], [shares[index] for index in order], seen)


def mbit_per_s(access: Access) -> float:
    """Up."""
    return access.link.up_bytes_per_s * 8 / 1e6


def draw(uses: list[Use], seconds: float) -> str:
    """All of them on one time scale, as SVG."""
    width, height, top, parts = LEFT + WIDTH + RIGHT, sum(use.height for use in uses), 0, []
    for use in uses:
        parts.append(f'<g transform="translate({LEFT} {top})">{_panel(use, seconds)}</g>')
        top += use.height
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>"]) + "\n"


def _panel(use: Use, seconds: float) -> str:
    scale, bottom = WIDTH / seconds, TOP + ROW * len(use.shares)
    lines = [f'<text y="16" font-size="13">{escape(use.title)}: what each uplink carries</text>']
    for number, (rate, row) in enumerate(zip(use.mbit_per_s, use.shares, strict=True)):
        y = TOP + ROW * number
        lines.append(f'<text x="-6" y="{y + STRIP - 3}" text-anchor="end">{rate:g} Mbit/s</text>')
        lines.append(f'<rect y="{y}" width="{WIDTH}" height="{STRIP}" fill="{FIELD}"/>')
        look, low = LOOK_S * scale, y + STRIP
        steps = "".join(f"V{low - STRIP * share:.1f}H{at * look:.1f}" for at, share in enumerate(row, start=1))
        lines.append(f'<path d="M0 {low}{steps}V{low}Z" fill="{FULL}"/>')
    for begin, end in use.rounds:
        left, right = (min(max(at_s, 0.0), seconds) * scale for at_s in (begin, end))
        lines.append(f'<path d="M{left:.1f} {TOP - 4}H{right:.1f}" stroke="{ROUND}" stroke-width="3"/>')
        if begin >= 0 and end <= seconds:
            middle, text = (left + right) / 2, f"round {end - begin:.1f} s"
            lines.append(f'<text x="{middle:.1f}" y="{TOP - 9}" text-anchor="middle" fill="{ROUND}">{text}</text>')
    marks = [f'<text x="{at_s * scale:.1f}" y="{bottom + 14}">{at_s} s</text>' for at_s in range(0, int(seconds), 2)]
    return "\n".join([*lines, *marks])


def main() -> int:
    """Body of the program; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("swarm", type=Path, help="a swarm file, see docs/simulator.md")
    parser.add_argument("picture", type=Path, help="SVG file to write")
    parser.add_argument("--from", dest="begin_s", type=float, default=30.0, help="virtual seconds before the window")
    parser.add_argument("--seconds", type=float, default=14.0, help="length of the window")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the order of sums does not depend on the machine then
    swarm = load_swarm(options.swarm)
    uses = [watch(swarm, contender, options.begin_s, options.seconds) for contender in swarm.contenders(())]
    options.picture.write_text(draw(uses, options.seconds), encoding="utf-8")
    print(json.dumps({"swarm": str(options.swarm), "uses": [use.figures(options.seconds) for use in uses]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
