"""Curves as SVG."""

import math
from xml.etree import ElementTree as ET

import pytest

from collab.simulation.curves import Curve, draw, marks


def test_a_picture_is_well_formed_and_names_everything() -> None:
    curves = [Curve(name="a < b", points=((0.0, 1.0), (1.0, math.nan), (2.0, 0.5))), Curve(name="none", points=())]
    root = ET.fromstring(draw(curves, title="Loss", across="minutes", up="loss"))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Loss", "minutes", "loss", "a < b", "none"} <= set(texts)
    lines = [e.get("d", "") for e in root.iter("{http://www.w3.org/2000/svg}path") if e.get("fill") == "none"]
    assert len(lines) == 1
    assert lines[0].count("L") == 1, "what is not finite is left out"


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.13, 0.17), (-5.0, 1234.0), (3.0, 3.0), (0.0, 0.0)])
def test_marks_enclose_what_is_drawn(low: float, high: float) -> None:
    found = marks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    assert 2 <= len(found) <= 8


def test_nothing_to_draw_is_an_empty_field() -> None:
    ET.fromstring(draw([], title="", across="", up=""))
