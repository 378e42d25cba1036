"""What is downloaded of a dataset counts, however many threads read it, and is named before anybody agrees."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collab.config import FilesData, Run, parse_run
from collab.data.sources import Reader, Split
from collab.data.tokens import BlockRequest, open_blocks, train_tokenizer
from collab.errors import BrokenOff, ConfigError
from collab.swarm.bundle import Bundle
from collab.types import Role
from peers import asking, machine
from peers.consent import download_words
from peers.guest import Guest
from peers.join_options import JoinOptions, Relay
from peers.panel import Watched
from peers.places import DataDir
from peers.reading import Reading, dataset_of
from peers.session import Given, Session
from peers.traffic import MonthlyTraffic
from peers.wiring import Reach
from tests.fakes import FakeClock

LINES = [f"line {number} of a text that is long enough to be cut into samples; {number % 7}\n" for number in range(400)]


def run(data: dict[str, Any], **fields: Any) -> Run:
    base = parse_run("{run_id: my-run, task: {name: image_classification}}", origin="the test")
    task = {"name": "causal_lm", "model": {"model_type": "gpt2"}, "data": data}
    return Run.model_validate({**base.model_dump(), "task": task, **fields})


STREAMED = run({"source": "hub", "dataset": "org/name"})


def test_all_text_that_is_downloaded_counts_that_of_the_other_side_too(tmp_path: Path) -> None:
    for number in range(0, 400, 4):
        (tmp_path / f"{number:03}.txt").write_text("".join(LINES[number : number + 4]))
    section, reader = FilesData(source="files", path="."), Reader(seed=0, peer_id="a", base_dir=tmp_path)
    tokenizer = train_tokenizer(LINES, 300)
    for is_downloaded in (True, False):
        traffic = MonthlyTraffic(tmp_path / "t.json")
        overseen = Reading(traffic).until(lambda: False, is_downloaded=is_downloaded)
        for split in (Split.TRAIN, Split.EVAL, Split.TRAIN):
            request = BlockRequest(section=section, split=split, sequence_length=8, max_blocks=None, reader=reader)
            open_blocks(request, tokenizer, tmp_path / f"cache-{is_downloaded}", overseen=overseen)
        whole = sum(len(line.encode()) for line in LINES)
        assert traffic.used_bytes == (2 * whole if is_downloaded else 0), "once for each side that is not there already"


def test_who_reads_is_known_until_all_have_ended_whatever_they_end_with(tmp_path: Path) -> None:
    reading, is_over = Reading(MonthlyTraffic(tmp_path / "t.json")), list[bool]()
    overseen = reading.until(lambda: bool(is_over), is_downloaded=False)
    first, second, third = (overseen(iter(LINES)) for _ in range(3))
    assert reading.is_still
    assert next(first) == next(second) == next(third) == LINES[0]
    list(first)
    third.close()  # type: ignore[attr-defined]
    assert not reading.is_still
    is_over.append(True)
    with pytest.raises(BrokenOff):
        next(second)
    assert reading.is_still


@pytest.mark.parametrize(("asked", "counts"), [(STREAMED, 5_000), (run({"source": "files", "path": "here"}), 0)])
def test_a_session_counts_what_its_task_reads_of_a_dataset_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Run, counts: int
) -> None:
    async def builds(_started: Any, _bundle: Any, _options: Any, beginning: machine.Beginning) -> Any:
        list(beginning.overseen(iter(["x" * 5_000])))
        raise ConfigError("that will do")

    class Compute:
        async def run(self, work: Any) -> Any:
            return work()

    monkeypatch.setattr(machine, "build_trainer", builds)
    place = DataDir(tmp_path)
    guest = Guest(place, (), MonthlyTraffic(place.traffic), lambda _: None)
    options = JoinOptions(invite="", role=Role.TRAINER, name="me", data_dir=place, reach=Reach())
    invite: Any = None

    async def live() -> None:
        started: Any = SimpleNamespace(ports=SimpleNamespace(compute=Compute(), clock=FakeClock()))
        session = Session(options=options, invite=invite, guest=guest, stop=asyncio.Event(), given=Given({}))
        await session._train(started, Bundle(asked, {}), Relay(), Watched(title="r"))

    with pytest.raises(ConfigError, match="that will do"):
        asyncio.run(live())
    assert guest.traffic.used_bytes == counts


def test_the_forecast_names_a_download_and_how_much_where_that_is_known() -> None:
    assert dataset_of(STREAMED) is not None
    assert download_words(STREAMED) == ", and the dataset's download as it is trained on"
    local = run({"source": "hub", "dataset": "org/name", "placement": "local", "max_megabytes": 50})
    assert "of up to 50 MB of text" in download_words(local)
    assert "of up to 200 MB of text" in download_words(
        run({"source": "hub", "dataset": "org/name"}, strategy={"name": "solo"})
    )
    assert download_words(run({"source": "builtin"})) == ""


@pytest.mark.parametrize(("role", "is_named"), [(Role.TRAINER, True), (Role.AUXILIARY, False)])
def test_whoever_is_to_agree_reads_of_the_download_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: Role, is_named: bool
) -> None:
    async def nobody_knows(*_: object) -> None:
        return None

    said: list[str] = []
    monkeypatch.setattr(asking, "announce", said.append)
    monkeypatch.setattr(asking, "forecast", nobody_knows)
    options = JoinOptions(invite="", role=role, name="me", data_dir=DataDir(tmp_path), reach=Reach())
    nobody: Any = None
    assert asyncio.run(asking.is_welcome(nobody, Bundle(STREAMED, {}), options, asyncio.Event()))
    assert said[-1].split()[0] == "traffic"
    assert ("the dataset's download" in said[-1]) is is_named
