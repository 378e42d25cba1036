"""Where events go."""

import json
import logging
import math
import resource
from pathlib import Path

import pytest

from collab.metrics.records import EpochFinished, EvaluationDone, Event, Notice, Phase, PhaseReached
from collab.metrics.sinks import Fanout, JsonLines, event_fields
from collab.types import Lineage
from tests.fakes import FakeObserver


def notice(text: str) -> Notice:
    return Notice(at_s=1.5, text=text)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_sink_sees_every_event_in_order() -> None:
    first, second = FakeObserver(), FakeObserver()
    fanout = Fanout(first, second)
    events: list[Event] = [notice("a"), notice("b")]
    for event in events:
        fanout.observe(event)
    assert first.events == second.events == events


def test_an_event_becomes_plain_values_under_its_name() -> None:
    event = EpochFinished(
        at_s=2.0, epoch=3, lineage=Lineage("l"), loss=0.5, own_samples=2, own_weight=2.0, sample_ids=(4, 5),
        sample_epochs=(2, 2), used_in=("r",), swarm_samples=7.0, contributors=2, learning_rate=0.1, seconds=1.0,
    )  # fmt: skip
    fields = event_fields(event)
    assert fields["event"] == "EpochFinished"
    assert fields["sample_ids"] == [4, 5]
    assert fields["epoch"] == 3
    assert json.loads(json.dumps(fields)) == fields


def test_each_event_is_one_json_line_and_phases_are_left_out(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "events.jsonl")
    sink.observe(notice("line\nbreak ü \u2028"))
    sink.observe(PhaseReached(at_s=1.0, phase=Phase.COMMIT, epoch=1))
    sink.observe(EvaluationDone(at_s=2.0, epoch=1, loss=0.25, seconds=0.1))
    assert len((tmp_path / "events.jsonl").read_bytes().split(b"\n")) == 3
    seen = lines(tmp_path / "events.jsonl")
    assert [line["event"] for line in seen] == ["Notice", "EvaluationDone"]
    assert seen[0]["text"] == "line\nbreak ü \u2028"


def test_a_second_process_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for text in "ab":
        JsonLines(tmp_path / "events.jsonl").observe(notice(text))
    assert [line["text"] for line in lines(tmp_path / "events.jsonl")] == ["a", "b"]


def test_at_most_two_files_are_kept_and_the_newest_events_are_among_them(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "events.jsonl", max_bytes=500)
    for number in range(100):
        sink.observe(notice(f"{number}"))
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["events.jsonl", "events.old.jsonl"]
    kept = [*lines(tmp_path / "events.old.jsonl"), *lines(tmp_path / "events.jsonl")]
    texts = [str(line["text"]) for line in kept]
    assert texts == [f"{number}" for number in range(100 - len(texts), 100)]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 * 700


def test_a_disk_that_cannot_be_written_is_said_once_and_never_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = JsonLines(tmp_path / "missing" / "events.jsonl")
    with caplog.at_level(logging.WARNING):
        for text in "abc":
            sink.observe(notice(text))
    assert len(caplog.records) == 1
    assert "missing" in caplog.text
    (tmp_path / "missing").mkdir()
    sink.observe(notice("d"))
    assert [line["text"] for line in lines(tmp_path / "missing" / "events.jsonl")] == ["d"]


def test_a_loss_that_is_not_known_yet_is_null_in_strict_json(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "events.jsonl")
    sink.observe(EvaluationDone(at_s=2.0, epoch=1, loss=math.nan, seconds=0.1))
    assert lines(tmp_path / "events.jsonl")[0]["loss"] is None
    assert "NaN" not in (tmp_path / "events.jsonl").read_text()


def test_half_a_line_spoils_no_other_one_whether_the_disk_was_full_or_the_power_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event": "Notice", "text": "cut o')
    sink = JsonLines(path)
    sink.observe(notice("first"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))  # so many bytes are taken yet
    try:
        for _ in range(2):
            sink.observe(notice("on a full disk"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    for text in ("second", "third"):
        sink.observe(notice(text))
    cut, *lines = path.read_bytes().splitlines()
    assert cut.endswith(b"cut o")
    assert [json.loads(line)["text"] for line in lines if line.endswith(b"}")] == ["first", "second", "third"]
    assert len(lines) == 4, "and one that is torn"
