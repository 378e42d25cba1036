"""A picture of how full every link was in one round: time to the right, a strip for each peer's up and each down."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from xml.sax.saxutils import escape

from netlab import Lab
from netlab_links import Link, Traffic

INTERVAL_S = 0.1
"""Five times a bucket of the lab's, so that a burst does not look like a link that is too fast."""
MARGIN_S = 0.3
STRIP, GAP, LEFT, TOP, WIDTH, RIGHT = 11, 2, 130, 46, 800, 80
"""Pixels."""
COLOUR = "#0b5c8a"
MIN_SHARE = 0.02
"""Of a link in use; less is not drawn."""


class Sampler:
    """Reads the counters of a lab in a thread of its own until it is left."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.links = lab.links
        self.samples: list[tuple[float, tuple[Traffic, ...]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        is_over = False
        while not is_over:
            self.samples.append((time.monotonic(), self._lab.traffic()))
            is_over = self._over.wait(INTERVAL_S)


@dataclass(frozen=True, slots=True)
class Use:
    """Shares of the links in use from ``start_s`` to ``stop_s``, seconds since the round began."""

    start_s: float
    stop_s: float
    up: tuple[float, ...]
    down: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One engine's round."""

    title: str
    links: tuple[Link, ...]
    uses: tuple[Use, ...]
    seconds: float
    optimum_s: float

    @property
    def height(self) -> int:
        """Pixels."""
        return TOP + len(self.links) * (2 * STRIP + GAP) + 30


def uses_between(sampler: Sampler, began_s: float, ended_s: float) -> tuple[Use, ...]:
    """What the samples say of one round, with a margin on both sides."""
    found = []
    for (from_s, old), (to_s, new) in zip(sampler.samples, sampler.samples[1:], strict=False):
        if to_s < began_s - MARGIN_S or from_s > ended_s + MARGIN_S:
            continue
        pairs = list(zip(old, new, sampler.links, strict=True))
        up = [(b.sent_bytes - a.sent_bytes) / (link.up_mbit_per_s * 1e6 / 8) for a, b, link in pairs]
        down = [(b.received_bytes - a.received_bytes) / (link.down_mbit_per_s * 1e6 / 8) for a, b, link in pairs]
        shares = [tuple(min(1.0, share / (to_s - from_s)) for share in each) for each in (up, down)]
        found.append(Use(from_s - began_s, to_s - began_s, *shares))
    return tuple(found)


def draw(panels: Sequence[Panel]) -> str:
    """All rounds on one time scale, as SVG."""
    longest_s = max(panel.seconds for panel in panels) + 2 * MARGIN_S
    scale = WIDTH / longest_s
    bodies, top = [], 0
    for panel in panels:
        bodies.append(f'<g transform="translate({LEFT},{top})">{_panel(panel, scale, longest_s)}</g>')
        top += panel.height
    width = LEFT + WIDTH + RIGHT
    size = f'width="{width}" height="{top}" viewBox="0 0 {width} {top}"'
    style = 'font-family="sans-serif" font-size="10"'
    background = '<rect width="100%" height="100%" fill="#fff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{background}\n' + "\n".join(bodies) + "\n</svg>\n"


def _panel(panel: Panel, scale: float, longest_s: float) -> str:
    lines = [f'<text y="18" font-size="13">{escape(panel.title)}</text>']
    for index, link in enumerate(panel.links):
        y = TOP + index * (2 * STRIP + GAP)
        label = f"{index}  {link.up_mbit_per_s:g} up, {link.down_mbit_per_s:g} down"
        lines.append(f'<text x="-6" y="{y + STRIP + 3}" text-anchor="end">{label}</text>')
        for offset, name in ((0, "up"), (STRIP, "down")):
            lines.append(f'<rect y="{y + offset}" width="{WIDTH}" height="{STRIP - 1}" fill="#eee"/>')
            lines += _strip([(use, getattr(use, name)[index]) for use in panel.uses], y + offset, scale)
    bottom = TOP + len(panel.links) * (2 * STRIP + GAP)
    for name, at_s in (("group", 0.0), ("optimum", panel.optimum_s), ("whole", panel.seconds)):
        x = (at_s + MARGIN_S) * scale
        colour = "#070" if name == "optimum" else "#b00"
        side, shift = ("end", -2) if name == "optimum" else ("start", 2)
        lines.append(f'<path d="M{x:.1f} {TOP - 4}V{bottom}" stroke="{colour}"/>')
        text = f"{name} {at_s:.2f} s"
        lines.append(f'<text x="{x + shift:.1f}" y="{TOP - 6}" fill="{colour}" text-anchor="{side}">{text}</text>')
    for second in range(int(longest_s) + 1):
        x = (second + MARGIN_S) * scale
        if x <= WIDTH:
            lines.append(f'<text x="{x:.1f}" y="{bottom + 12}" text-anchor="middle">{second} s</text>')
    return "\n".join(lines)


def _strip(shares: list[tuple[Use, float]], y: int, scale: float) -> list[str]:
    boxes = []
    for use, share in shares:
        left, right = ((at_s + MARGIN_S) * scale for at_s in (use.start_s, use.stop_s))
        left, right = max(0.0, left), min(float(WIDTH), right)
        if share >= MIN_SHARE and right > left:
            shape = f'x="{left:.1f}" y="{y}" width="{right - left:.1f}" height="{STRIP - 1}"'
            boxes.append(f'<rect {shape} fill="{COLOUR}" fill-opacity="{share:.2f}"/>')
    return boxes


def save(panels: Sequence[Panel], path: Path) -> None:
    """Write the picture, the whole of it or none."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(draw(panels), "utf-8")
    unfinished.replace(path)
