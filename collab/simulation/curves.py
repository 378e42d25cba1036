"""Curves as a picture: an SVG file of some kilobytes that every browser shows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 320, 64, 16, 34, 44
"""Pixels: of the field, and of the margins around it."""
ROW = 16
"""Height of a line of the legend."""
COLOURS = ("#0b5c8a", "#c2410c", "#15803d", "#7e22ce", "#b45309", "#0f766e", "#be185d", "#4d4d4d")
TICKS = 6
"""At most so many marks on an axis."""
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
"""Between two marks, times a power of ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line."""

    name: str
    points: tuple[tuple[float, float], ...]
    """From left to right; those that are not finite are left out."""


def draw(curves: Sequence[Curve], *, title: str, across: str, up: str) -> str:
    """All curves in one field, as SVG.

    Args:
        across: what the horizontal axis is.
        up: what the vertical one is.
    """
    found = [(curve.name, [p for p in curve.points if all(map(math.isfinite, p))]) for curve in curves]
    points = [point for _, line in found for point in line] or [(0.0, 0.0)]
    x_marks, y_marks = (marks(min(values), max(values)) for values in zip(*points, strict=True))

    def place(x: float, y: float) -> str:
        left = LEFT + WIDTH * (x - x_marks[0]) / (x_marks[-1] - x_marks[0])
        down = TOP + HEIGHT * (y_marks[-1] - y) / (y_marks[-1] - y_marks[0])
        return f"{left:.1f} {down:.1f}"

    lines = [f'<text x="{LEFT}" y="18" font-size="13">{escape(title)}</text>']
    for mark in x_marks:
        x, _ = place(mark, y_marks[0]).split()
        lines.append(f'<path d="M{x} {TOP}v{HEIGHT}" stroke="#e5e5e5"/>')
        lines.append(f'<text x="{x}" y="{TOP + HEIGHT + 14}" text-anchor="middle">{mark:g}</text>')
    for mark in y_marks:
        _, y = place(x_marks[0], mark).split()
        lines.append(f'<path d="M{LEFT} {y}h{WIDTH}" stroke="#e5e5e5"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{float(y) + 3:.1f}" text-anchor="end">{mark:g}</text>')
    lines.append(f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 32}" text-anchor="middle">{escape(across)}</text>')
    middle = TOP + HEIGHT / 2
    lines.append(f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{escape(up)}</text>')
    for number, (name, line) in enumerate(found):
        colour = COLOURS[number % len(COLOURS)]
        if line:
            path = "L".join(place(*point) for point in line)
            lines.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        row = TOP + HEIGHT + BOTTOM + number * ROW
        lines.append(f'<path d="M{LEFT} {row}h18" stroke="{colour}" stroke-width="3"/>')
        lines.append(f'<text x="{LEFT + 24}" y="{row + 4}">{escape(name)}</text>')
    return _page(lines, LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM + len(found) * ROW)


def _page(lines: list[str], width: int, height: int) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    style = 'font-family="sans-serif" font-size="10"'
    background = '<rect width="100%" height="100%" fill="#fff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{background}\n' + "\n".join(lines) + "\n</svg>\n"


def marks(low: float, high: float) -> list[float]:
    """Round numbers that enclose ``low`` to ``high``, at least two of them."""
    span = high - low or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / TICKS))
    step = next(step * power for step in STEPS if step * power * TICKS >= span)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [step * number for number in range(first, max(last, first + 1) + 1)]
