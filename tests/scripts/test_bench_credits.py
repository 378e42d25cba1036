"""The benchmark of the book of contributors: both ways end with the same book, and it says what each costs."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from peers.credit_file import CreditFile
from scripts.bench_credits import __file__ as script, peer, table, whole


def test_both_ways_write_down_the_same(tmp_path: Path) -> None:
    for way in (table, whole):
        turn = way(tmp_path, 20, 3)
        for number in range(3):
            turn(number)
    with closing(CreditFile.open(tmp_path / "credits.sqlite")) as file:
        table_says = {one: (credit.samples, credit.is_seen) for one, credit in file.all().items()}
    whole_says = json.loads((tmp_path / "credits.json").read_bytes())
    assert table_says == {one: (credit["samples"], credit["is_seen"]) for one, credit in whole_says.items()}
    assert table_says[peer(1)] == (300, True)
    assert table_says[peer(19)] == (119, True)


def test_it_prints_what_each_costs() -> None:
    command = [sys.executable, script, "--known", "200", "--here", "4", "--writes", "3"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout)
    assert told["setup"]["known"] == 200
    assert 0 < told["table"]["kb_written"] < told["whole"]["kb_written"]
    assert all(told[kind]["processor_ms"] > 0 for kind in ("table", "whole"))


@pytest.mark.parametrize("wrong", [("--here", "0"), ("--known", "3"), ("--writes", "0")])
def test_what_cannot_be_measured_is_said(wrong: tuple[str, str]) -> None:
    done = subprocess.run([sys.executable, script, *wrong], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "expected 1 <= --here" in done.stderr
