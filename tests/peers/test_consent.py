"""What a volunteer reads before a machine takes part for the first time, what it will cost, and what a no means."""

import asyncio
import io
import math
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collab.config import About, Run, parse_run
from collab.errors import ConfigError
from collab.swarm.address_book import AddressBook
from collab.swarm.bundle import Bundle
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerState
from collab.types import Reachability, Role
from peers import asking, joined_backbone
from peers.asking import others_in, usual_unit_s
from peers.consent import Others, can_ask, has_agreed, load_of, note_agreed, row, says_yes, terms, traffic_words
from peers.join_options import JoinOptions
from peers.places import DataDir
from peers.process import Declined, leaves
from peers.screen import Style
from peers.wiring import Reach
from tests.fakes import NOW
from tests.swarm.people import PEOPLE, backbone, record

MILLION = 1_000_000
THREE = Others(dialled=3)


def run(**fields: Any) -> Run:
    base = parse_run("{run_id: my-run, task: {name: image_classification}}", origin="the test")
    return Run.model_validate({**base.model_dump(), **fields})


def test_whoever_only_dials_sends_a_vector_and_takes_one_a_step() -> None:
    exact = run(averaging={"compression": "exact"})
    load = load_of(exact, MILLION, THREE, can_reduce=False, step_s=10.0)
    assert load.bytes_per_step == 2 * 4 * MILLION
    assert load.gb_per_day == pytest.approx(8e6 * 8640 / 1e9)
    half = load_of(run(averaging={"compression": "half"}), MILLION, THREE, can_reduce=False, step_s=10.0)
    assert half.bytes_per_step == load.bytes_per_step / 2


def test_whoever_averages_for_others_too_does_both_for_all_but_itself() -> None:
    exact = run(averaging={"compression": "exact"})
    load = load_of(exact, MILLION, THREE, can_reduce=True, step_s=10.0)
    assert load.bytes_per_step == 2 * 2 * 4 * MILLION * 3 / 4
    assert load_of(exact, MILLION, Others(), can_reduce=True, step_s=10.0).bytes_per_step == 0.0


@pytest.mark.parametrize(
    ("role", "others", "vectors"),
    [
        (Role.TRAINER, Others(dialling=9), 18),
        (Role.TRAINER, Others(dialling=9, helpers=1), 2 * (1 / 2 + 9 / 2)),
        (Role.TRAINER, Others(dialled=1, dialling=8, helpers=1), 2 * (2 / 3 + 9 / 3)),
        (Role.AUXILIARY, Others(dialling=10), 20),
        (Role.AUXILIARY, Others(dialled=4, dialling=6, helpers=3), 20 / 8),
    ],
)
def test_the_fewer_can_be_dialled_the_more_each_of_them_averages_and_a_helper_as_much(
    role: Role, others: Others, vectors: float
) -> None:
    """Of V sent by each and R = V got by each: in a round of n trainers V (1 - w) + (n - 1) R w go up, and
    (n - 1) V w + R (1 - w) down; of a helper n R w and n V w.
    """
    exact = run(averaging={"compression": "exact"})
    load = load_of(exact, MILLION, others, role=role, can_reduce=True, step_s=10.0)
    assert load.bytes_per_step == pytest.approx(4 * MILLION * vectors)
    trainers = others.dialled + others.dialling + (role is Role.TRAINER)
    able = others.dialled + others.helpers + 1
    assert f"while it is one of {able} that average for {trainers} trainers" in traffic_words(load)
    only_dials = load_of(exact, MILLION, others, can_reduce=False, step_s=10.0)
    assert only_dials.bytes_per_step == 2 * 4 * MILLION
    assert "average" not in traffic_words(only_dials)


def test_who_is_there_decides_and_this_machine_does_not_count_twice() -> None:
    records = (
        *(record(person, can_be_dialled=person < 3) for person in range(5)),
        backbone(5),
        backbone(6, without="reducer"),
        backbone(7, state=PeerState.LEFT),
    )
    found = others_in(SwarmView(records, NOW), PEOPLE[0].peer_id, can_reduce=True)
    assert found == Others(dialled=2, dialling=2, helpers=1)
    for can_reduce in (True, False):
        first = others_in(SwarmView((backbone(5),), NOW), PEOPLE[0].peer_id, can_reduce=can_reduce)
        assert first == Others(dialled=int(can_reduce), dialling=int(not can_reduce), helpers=1)


def test_how_long_a_unit_takes_others_say_who_have_pushed_some() -> None:
    pushed = {"epochs_contributed": 4, "total_samples": 400}
    records = (
        record(0, samples_per_s=10.0, **pushed), record(1, samples_per_s=5.0, **pushed), record(2, samples_per_s=9.0),
        record(3, samples_per_s=1e-9, **pushed), record(4, **pushed),
    )  # fmt: skip
    assert usual_unit_s(SwarmView(records, NOW)) == 20.0
    assert usual_unit_s(SwarmView(records[2:3], NOW)) == math.inf
    load = load_of(run(strategy={"name": "vc_asgd"}), MILLION, Others(), can_reduce=True, step_s=20.0)
    words = "about 34.6 GB a day if it works all day, sent and taken (8 MB a unit; if this machine computes a unit as"
    assert words in traffic_words(load)


def test_strategies_of_their_own_kind_have_loads_of_their_own() -> None:
    solo = load_of(run(strategy={"name": "solo"}), MILLION, THREE, can_reduce=True, step_s=1.0)
    assert solo.bytes_per_step == 0.0
    units = load_of(run(strategy={"name": "vc_asgd"}), MILLION, Others(), can_reduce=True, step_s=math.inf)
    assert units.bytes_per_step == 2 * 4 * MILLION
    assert units.gb_per_day is None
    assert "nobody knows yet" in traffic_words(units)
    assert traffic_words(None) == "nobody can say before it has begun"
    much = load_of(run(averaging={"compression": "exact"}), MILLION, THREE, can_reduce=False, step_s=0.1)
    assert "about 6,912 GB a day" in traffic_words(much)


def test_purpose_licences_contact_traffic_and_who_sees_the_address_are_shown() -> None:
    about = {"purpose": "a model of Welsh", "contact": "anna@example.org"}
    about |= {"model_license": "MIT", "data_license": "CC0"}
    text = terms(run(about=about))
    for words in (*about.values(), "IP address", "pause"):
        assert words in text
    load = load_of(run(averaging={"compression": "exact"}), MILLION, THREE, can_reduce=False, step_s=10.0)
    assert "69.1 GB a day" in row("traffic", traffic_words(load))
    bare = terms(run())
    assert "the organiser does not say" in bare
    assert "'about'" in bare
    assert "never pauses" in terms(run(), Role.BACKBONE)
    assert "collab-peer pause" not in terms(run(), Role.BACKBONE)


def test_what_an_organiser_says_cannot_drive_a_terminal() -> None:
    with pytest.raises(ValueError, match="purpose"):
        run(about={"purpose": "\x1b[2Jgone"})
    wild = run().model_copy(update={"about": About.model_construct(purpose="\x1b[2J\u202egone")})
    assert "\x1b" not in terms(wild)
    assert "\u202e" not in terms(wild)


# -- asking ------------------------------------------------------------------------------------------------------------


def answered(text: str, *, stops: bool = False) -> bool:
    """What is made of a line at the terminal."""
    reading, writing = os.pipe()

    async def ask() -> bool:
        stop = asyncio.Event()
        if stops:
            stop.set()
        else:
            os.write(writing, text.encode())
            os.close(writing)
        with os.fdopen(reading) as source:
            return await says_yes(stop, source)

    try:
        return asyncio.run(ask())
    finally:
        if stops:
            os.close(writing)


@pytest.mark.parametrize(
    ("text", "is_yes"), [("y\n", True), ("YES \n", True), ("n\n", False), ("\n", False), ("", False), ("yep\n", False)]
)
def test_only_a_yes_is_a_yes(text: str, is_yes: bool) -> None:
    assert answered(text) is is_yes


def test_ctrl_c_at_the_question_is_a_no() -> None:
    assert not answered("", stops=True)


def test_nobody_is_asked_where_nobody_sits() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert can_ask(Terminal(), Terminal())
    assert not can_ask(io.StringIO(), Terminal())
    assert not can_ask(Terminal(), io.StringIO())


def test_agreement_is_to_one_run(tmp_path: Path) -> None:
    place = DataDir(tmp_path)
    assert not has_agreed(place, "f" * 64)
    note_agreed(place, "f" * 64)
    assert has_agreed(place, "f" * 64)
    assert not has_agreed(place, "e" * 64), "the run file was changed"
    place.agreed.write_text("[]")
    assert not has_agreed(place, "f" * 64)
    with pytest.raises(ConfigError):
        note_agreed(DataDir(tmp_path / "nowhere"), "f" * 64)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said at the terminal; the forecast is made elsewhere."""
    said: list[str] = []

    async def nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(asking, "announce", said.append)
    monkeypatch.setattr(asking, "forecast", nothing)
    return said


def welcome(tmp_path: Path, **fields: Any) -> bool:
    options = JoinOptions(
        invite="", role=Role.TRAINER, name="me", data_dir=DataDir(tmp_path), reach=Reach(), **fields
    )
    started: Any = SimpleNamespace()
    return asyncio.run(asking.is_welcome(started, Bundle(run(), {}), options, asyncio.Event()))


def at_the_terminal(monkeypatch: pytest.MonkeyPatch, answer: bool | None) -> None:
    async def says(_stop: asyncio.Event) -> bool:
        assert answer is not None, "nobody should be asked"
        return answer

    monkeypatch.setattr(asking, "can_ask", lambda: True)
    monkeypatch.setattr(asking, "says_yes", says)


def test_a_no_ends_it_and_the_next_time_it_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: list[str]
) -> None:
    at_the_terminal(monkeypatch, answer=False)
    assert not welcome(tmp_path)
    assert "my-run" in shown[0]
    at_the_terminal(monkeypatch, answer=True)
    assert welcome(tmp_path)


def test_a_yes_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: list[str]) -> None:
    at_the_terminal(monkeypatch, answer=True)
    assert welcome(tmp_path)
    shown.clear()
    at_the_terminal(monkeypatch, answer=None)
    assert welcome(tmp_path)
    assert shown == []


def test_the_question_is_there_before_the_forecast_which_comes_while_they_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: list[str]
) -> None:
    released = asyncio.Event()

    async def late(*_: object) -> None:
        await released.wait()

    async def reads_it_all(_stop: asyncio.Event) -> bool:
        assert "IP address" in shown[0]
        assert "Take part?" in shown[-1]
        released.set()
        while not any(words.split()[0] == "traffic" for words in shown):
            await asyncio.sleep(0)
        return True

    monkeypatch.setattr(asking, "forecast", late)
    monkeypatch.setattr(asking, "can_ask", lambda: True)
    monkeypatch.setattr(asking, "says_yes", reads_it_all)
    assert welcome(tmp_path)


def test_a_no_waits_for_no_forecast_and_a_model_that_cannot_be_built_ends_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: list[str]
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    async def fails(*_: object) -> None:
        raise ConfigError("no such task here")

    at_the_terminal(monkeypatch, answer=False)
    monkeypatch.setattr(asking, "forecast", never)
    assert not welcome(tmp_path)
    monkeypatch.setattr(asking, "forecast", fails)
    monkeypatch.setattr(asking, "says_yes", never)
    with pytest.raises(ExceptionGroup) as caught:
        welcome(tmp_path)
    assert caught.group_contains(ConfigError, match="no such task here")


@pytest.mark.parametrize("fields", [{"has_agreed": True}, {"as_json": True}])
def test_whoever_said_yes_beforehand_or_is_a_program_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: list[str], fields: dict[str, Any]
) -> None:
    at_the_terminal(monkeypatch, answer=None)
    assert welcome(tmp_path, **fields)
    assert bool(shown) is ("as_json" not in fields)


def test_a_service_or_a_notebook_reads_it_and_goes_on(tmp_path: Path, shown: list[str]) -> None:
    assert welcome(tmp_path)
    assert "IP address" in shown[0]
    assert "traffic" in shown[1]
    assert has_agreed(DataDir(tmp_path), Bundle(run(), {}).fingerprint)


def test_who_wants_silence_has_it(tmp_path: Path, shown: list[str]) -> None:
    assert welcome(tmp_path, style=Style.QUIET)
    assert shown == []


def test_who_wants_silence_and_is_asked_is_shown_what_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: list[str]
) -> None:
    at_the_terminal(monkeypatch, answer=True)
    assert welcome(tmp_path, style=Style.QUIET)
    assert "IP address" in shown[0]
    assert "traffic" in shown[-1]


def test_a_no_names_what_is_kept(tmp_path: Path) -> None:
    for name in ("traffic.json", "identity.key", ".lock"):
        (tmp_path / name).touch()
    assert str(asking.declined(DataDir(tmp_path))).endswith(f"{tmp_path} holds identity.key, traffic.json")


# -- a backbone --------------------------------------------------------------------------------------------------------


class Papers:
    """Of an invite for a backbone."""

    def role(self, _fingerprint: str, _owner: str) -> Role:
        return Role.BACKBONE


def serve(monkeypatch: pytest.MonkeyPatch, place: DataDir, **fields: Any) -> bool:
    """Join as a backbone, among others that are not there; whether it served."""
    bundle, served = Bundle(run(), {}), list[bool]()
    invite = SimpleNamespace(papers=Papers(), fingerprint=bundle.fingerprint, owner="", run_id="my-run")
    invite.addresses = ("/ip4/127.0.0.1/tcp/4001/p2p/12D3KooW",)

    class Compute:
        async def beside(self, work: Callable[[], Any]) -> Any:
            return work()

    @asynccontextmanager
    async def started(*_: object) -> AsyncIterator[Any]:
        transport = SimpleNamespace(peer_id="me")
        ports = SimpleNamespace(compute=Compute(), transport=transport)
        yield SimpleNamespace(verdict=SimpleNamespace(reach=Reachability.DIRECT), ports=ports)

    async def learned(*_: object) -> Bundle:
        return bundle

    async def nothing(*_: object) -> None:
        pass

    async def serves(*_: object) -> None:
        served.append(True)

    monkeypatch.setattr(joined_backbone, "invite_from", lambda _: invite)
    monkeypatch.setattr(joined_backbone, "start_peer", started)
    monkeypatch.setattr(joined_backbone, "learn_run", learned)
    monkeypatch.setattr(joined_backbone, "serve_backbone", serves)
    monkeypatch.setattr(AddressBook, "follow", nothing)
    options = JoinOptions(invite="", role=Role.BACKBONE, name="me", data_dir=place, reach=Reach(), **fields)
    asyncio.run(joined_backbone.join_as_backbone(options, asyncio.Event()))
    return bool(served)


def test_whoever_is_to_host_a_backbone_is_asked_too_and_a_no_keeps_nothing_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: list[str]
) -> None:
    at_the_terminal(monkeypatch, answer=False)
    with pytest.raises(ExceptionGroup) as refusal:
        serve(monkeypatch, DataDir(tmp_path))
    (declined,) = leaves(refusal.value)
    assert isinstance(declined, Declined)
    assert declined.message.endswith("holds nothing")
    assert "never pauses" in shown[0]
    at_the_terminal(monkeypatch, answer=True)
    assert serve(monkeypatch, DataDir(tmp_path))
    assert DataDir(tmp_path).run.exists()
    at_the_terminal(monkeypatch, answer=None)
    assert serve(monkeypatch, DataDir(tmp_path))


def test_a_backbone_of_a_service_or_with_yes_is_not_asked_and_shows_it_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: list[str]
) -> None:
    assert serve(monkeypatch, DataDir(tmp_path))
    assert "IP address" in shown[0]
    (tmp_path / "other").mkdir()
    at_the_terminal(monkeypatch, answer=None)
    assert serve(monkeypatch, DataDir(tmp_path / "other"), has_agreed=True)
