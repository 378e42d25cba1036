"""One session after the other: pauses between, a run that does not answer after one, and what is said at the end."""

import asyncio
import errno
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from threading import Semaphore, Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from collab.errors import (
    AccessDenied,
    BootstrapFailed,
    BrokenOff,
    ConfigError,
    DataError,
    DataUnreachable,
    DeviceFull,
    Dismissed,
    NetworkError,
    PortTaken,
    VersionMismatch,
)
from collab.simulation.virtual_time import VirtualClock, VirtualLoop
from collab.swarm.identity import Identity
from collab.swarm.invite import Invite, write_invite
from collab.swarm.records import PeerRecord, PeerState
from collab.types import Lineage, PeerId, Reachability, Role
from peers import asking, guest as guests, joining, machine, session as sessions
from peers.anew import HandedOn
from peers.consent import note_agreed
from peers.event_words import words
from peers.guest import Guest
from peers.join_options import JoinOptions, Relay
from peers.occasions import HouseRules, by_command
from peers.panel import Watched
from peers.places import DataDir
from peers.process import Declined
from peers.progress import Ahead
from peers.screen import Style
from peers.session import Given, Session
from peers.tally import Tally
from peers.traffic import MonthlyTraffic
from peers.wiring import Reach, invite_from
from tests.peers.test_screen import step

PATIENT = HouseRules(works_on_battery=True, is_modest=False)


PROBLEMS = {
    "nobody answers": BootstrapFailed("none of the 1 bootstrap addresses answered", hint="is it running?"),
    "the device is full": DeviceFull("the model does not fit", hint="end what else uses it"),
    "the daemon does not start": NetworkError("the libp2p daemon did not start: no memory", hint="have memory free"),
    "nobody can dial it": NetworkError("others must be able to dial it", hint="forward a TCP port"),
    "the port is taken": PortTaken("port 4000 is taken", hint="end what else listens there"),
    "the Hub fails": DataUnreachable("the dataset cannot be read: 503", hint="check the network"),
    "the dataset is not there": DataError("the dataset cannot be read: 404", hint="check the names"),
    "it is banned": Dismissed("the organiser has banned this peer"),
    "it is not invited": AccessDenied("this invite has ended"),
    "it is too old": VersionMismatch("the swarm is of another version"),
    "the run file is of no use here": ConfigError("the task cannot be built here"),
}
PASSING = tuple(PROBLEMS)[:6]


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    monkeypatch.setattr(time, "clock_gettime", lambda _: loop.time())

    async def at_once(_self: Any, _executor: Any, work: Any) -> Any:
        return work()

    monkeypatch.setattr(VirtualLoop, "run_in_executor", at_once)
    yield loop
    loop.close()


def options(directory: Path, **fields: Any) -> JoinOptions:
    owner = Identity.from_seed(bytes(32))
    address = f"/ip4/127.0.0.1/tcp/4001/p2p/{owner.peer_id}"
    word = write_invite(Invite(run_id="run", fingerprint="f" * 64, owner=owner.peer_id, addresses=(address,)), owner)
    fields = {"role": Role.TRAINER, "rules": PATIENT, "as_json": True, **fields}
    return JoinOptions(invite=word, name="me", data_dir=DataDir(directory), reach=Reach(), **fields)


class Lives:
    """Sessions that do what they are told, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: DataDir, *deeds: str) -> None:
        self.begun_s: list[float] = []
        self.paused_s: list[float] = []
        self.was_paused: list[bool] = []
        self._place, self._deeds = place, list(deeds)
        lives = self

        async def live(session: Session) -> None:
            await lives.live(session)

        monkeypatch.setattr(Session, "live", live)

    async def live(self, session: Session) -> None:
        now_s = asyncio.get_running_loop().time
        self.begun_s.append(now_s())
        self.paused_s.append(session.guest.paused_s)
        deed = self._deeds.pop(0)
        self.was_paused.append(session.guest.pause.wanted.is_set())
        if deed in PROBLEMS:
            raise PROBLEMS[deed]
        if deed == "asks, and hears no":
            session.given.is_over = session.given.has_declined = True
            return
        if deed == "asks, and hears yes":
            note_agreed(self._place, session.invite.fingerprint)
            return
        if deed in ("is paused", "is paused on a GPU"):
            session.given.had_gpu = deed.endswith("GPU")
            self._place.pause_mark.touch()
            await session.guest.pause.wanted.wait()
            session.guest.pause.has_made_room.set()
            asyncio.get_running_loop().call_later(100.0, self._place.pause_mark.unlink)
        session.given.add(
            {"role": "trainer", "epoch": 7, "samples": 10, "epochs_contributed": 2},
            ("samples", "epochs_contributed"),
            is_over=deed == "finishes",
        )


def summary(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return dict(json.loads(capsys.readouterr().out.splitlines()[-1]))


def test_what_was_given_before_and_after_a_pause_adds_up(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lives = Lives(monkeypatch, DataDir(tmp_path), "is paused", "finishes")
    loop.run_until_complete(joining.join(options(tmp_path), asyncio.Event()))
    first_s, second_s = lives.begun_s
    assert 100.0 <= second_s - first_s < 103.0
    assert lives.paused_s == [0.0, pytest.approx(100.0, abs=2.0)]
    told = summary(capsys)
    assert (told["samples"], told["epochs_contributed"], told["epoch"]) == (20, 4, 7)


def test_who_had_a_gpu_hands_on_what_was_given_and_what_was_told_and_goes_on_with_that_as_another_program(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lives = Lives(monkeypatch, DataDir(tmp_path), "is paused on a GPU", "finishes")
    asked = options(tmp_path)
    life = loop.run_until_complete(joining.join(asked, asyncio.Event()))
    assert life is not None
    assert (life.invite, life.data_dir, life.lock) == (asked.invite, str(tmp_path), -1)
    assert life.counts == {"samples": 10, "epochs_contributed": 2}
    assert '"Summary"' not in capsys.readouterr().out, "it is not over"
    life = HandedOn(**json.loads(json.dumps(asdict(life))))
    next_life = joining.join(options(tmp_path, life_before=life), asyncio.Event())
    assert loop.run_until_complete(next_life) is None
    assert lives.paused_s == [0.0, pytest.approx(100.0, abs=2.0)], "since the owner's word"
    captured = capsys.readouterr()
    told = json.loads(captured.out.splitlines()[-1])
    assert (told["samples"], told["epochs_contributed"], told["epoch"]) == (20, 4, 7)
    assert paused_events(captured.out) == [], "the life before has told its reason to programs"
    assert captured.err.count("paused: ") == 1


def test_who_had_a_gpu_hands_on_a_months_traffic_that_a_full_disk_has_not_taken(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def live(session: Session) -> None:
        session.guest.traffic.add(3_000)
        used_bytes.append(session.guest.traffic.used_bytes)
        session.given.had_gpu = True
        if len(used_bytes) == 1:
            place.pause_mark.touch()
            await session.guest.pause.wanted.wait()
            loop.call_later(100.0, place.pause_mark.unlink)

    place, used_bytes = DataDir(tmp_path), list[int]()
    monkeypatch.setattr(Session, "live", live)
    monkeypatch.setattr("peers.traffic.replace_file", is_full)
    life = loop.run_until_complete(joining.join(options(tmp_path), asyncio.Event()))
    assert life is not None
    life = HandedOn(**json.loads(json.dumps(asdict(life))))
    assert loop.run_until_complete(joining.join(options(tmp_path, life_before=life), asyncio.Event())) is None
    assert used_bytes == [3_000, 6_000]


def test_who_had_a_gpu_and_may_work_again_by_now_or_is_to_leave_goes_on_in_the_same_program(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = asyncio.Event()

    async def live(session: Session) -> None:
        session.given.had_gpu = True
        place.pause_mark.touch()
        await session.guest.pause.wanted.wait()
        if len(begun) == 0:
            place.pause_mark.unlink()
            await asyncio.sleep(1.0)
        else:
            stop.set()
        begun.append(loop.time())

    place, begun = DataDir(tmp_path), list[float]()
    monkeypatch.setattr(Session, "live", live)
    assert loop.run_until_complete(joining.join(options(tmp_path), stop)) is None
    assert len(begun) == 2


def test_a_tally_goes_on_from_its_sums() -> None:
    tally = Tally()
    tally.observe(step(3, own=5))
    assert Tally.of(json.loads(json.dumps(tally.sums))).sums == tally.sums


@pytest.mark.parametrize("deed", PASSING)
def test_after_a_pause_what_may_pass_is_told_with_the_next_step_and_tried_again(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], deed: str
) -> None:
    lives = Lives(monkeypatch, DataDir(tmp_path), "is paused", deed, deed, "finishes")
    freed_s = list[float]()
    monkeypatch.setattr(joining, "free_memory", lambda: freed_s.append(loop.time()))
    loop.run_until_complete(joining.join(options(tmp_path), asyncio.Event()))
    assert len(lives.begun_s) == 4
    assert freed_s[1:3] == lives.begun_s[1:3], "who waits for memory holds none"
    assert lives.begun_s[3] - lives.begun_s[2] == pytest.approx(joining.AGAIN_S)
    told, problem = capsys.readouterr(), PROBLEMS[deed]
    assert told.err.count(problem.message) == told.err.count("trying again in 30 s") == 2
    assert told.err.count(f"-> if that does not help: {problem.hint}") == 2
    assert json.loads(told.out.splitlines()[-1])["samples"] == 20


@pytest.mark.parametrize("deed", sorted(set(PROBLEMS) - set(PASSING)))
def test_after_a_pause_what_is_wrong_for_good_ends_it_at_once_with_what_it_has_given(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], deed: str
) -> None:
    lives = Lives(monkeypatch, DataDir(tmp_path), "is paused", deed)
    with pytest.raises(ExceptionGroup) as caught:
        loop.run_until_complete(joining.join(options(tmp_path), asyncio.Event()))
    assert caught.group_contains(type(PROBLEMS[deed]))
    assert len(lives.begun_s) == 2
    assert summary(capsys)["samples"] == 10


@pytest.mark.parametrize("deed", PROBLEMS)
def test_the_first_time_that_is_an_error(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], deed: str
) -> None:
    Lives(monkeypatch, DataDir(tmp_path), deed)
    with pytest.raises(ExceptionGroup) as caught:
        loop.run_until_complete(joining.join(options(tmp_path), asyncio.Event()))
    assert caught.group_contains(type(PROBLEMS[deed]))
    assert '"Summary"' not in capsys.readouterr().out, "nothing was given"


def test_one_that_ends_by_itself_is_not_begun_again(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = Lives(monkeypatch, DataDir(tmp_path), "leaves")
    loop.run_until_complete(joining.join(options(tmp_path), asyncio.Event()))
    assert len(lives.begun_s) == 1


def test_ctrl_c_while_it_is_paused_ends_it(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lives = Lives(monkeypatch, DataDir(tmp_path), "is paused")
    stop = asyncio.Event()
    loop.call_at(loop.time() + 20.0, stop.set)
    loop.run_until_complete(joining.join(options(tmp_path), stop))
    assert len(lives.begun_s) == 1
    assert summary(capsys)["samples"] == 10


def at_night(loop: VirtualLoop, place: DataDir) -> None:
    """There is a reason to pause, for 100 s."""
    place.pause_mark.touch()
    loop.call_at(loop.time() + 100.0, place.pause_mark.unlink)


def paused_events(out: str) -> list[str]:
    """The reasons, as a program is told."""
    events = [json.loads(line) for line in out.splitlines()]
    return [event["reason"] for event in events if event["event"] == "Paused"]


def test_a_program_is_told_of_a_start_in_pause_and_of_each_other_reason_and_of_no_pause_twice(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Lives(monkeypatch, DataDir(tmp_path), "is paused", "finishes")
    place, began_s = DataDir(tmp_path), loop.time()

    def battery() -> str:
        return "it runs on battery" if 50.0 < loop.time() - began_s < 120.0 else ""

    monkeypatch.setattr(joining, "occasions", lambda *_: [by_command(place.pause_mark), battery])
    at_night(loop, place)
    loop.run_until_complete(joining.join(options(tmp_path), asyncio.Event()))
    by_hand = by_command(tmp_path)()
    told = capsys.readouterr()
    assert paused_events(told.out) == [by_hand, "it runs on battery"], "of its own pause a session tells"
    assert told.err.count(f"paused: {by_hand}") == 2


def test_who_wants_silence_is_told_of_a_start_in_pause_and_of_no_other(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Lives(monkeypatch, DataDir(tmp_path), "is paused", "finishes")
    at_night(loop, DataDir(tmp_path))
    fields = {"as_json": False, "style": Style.QUIET}
    loop.run_until_complete(joining.join(options(tmp_path, **fields), asyncio.Event()))
    told = capsys.readouterr()
    assert told.err.splitlines() == [f"paused: {by_command(tmp_path)()}"]
    assert told.out == ""


# -- the question ------------------------------------------------------------------------------------------------------


@pytest.fixture
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "can_ask", lambda: True)


@pytest.mark.usefixtures("_terminal")
def test_who_sits_there_is_asked_at_once_and_only_then_it_waits_for_its_time(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = Lives(monkeypatch, DataDir(tmp_path), "asks, and hears yes", "finishes")
    at_night(loop, DataDir(tmp_path))
    began_s = loop.time()
    loop.run_until_complete(joining.join(options(tmp_path, as_json=False), asyncio.Event()))
    first_s, second_s = (begun_s - began_s for begun_s in lives.begun_s)
    assert first_s < 1.0
    assert second_s == pytest.approx(100.0, abs=2.0)
    assert lives.was_paused == [True, False]


@pytest.mark.usefixtures("_terminal")
@pytest.mark.parametrize("fields", [{"has_agreed": True, "as_json": False}, {"as_json": True}])
def test_who_is_not_asked_is_not_connected_before_its_time(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    lives = Lives(monkeypatch, DataDir(tmp_path), "finishes")
    at_night(loop, DataDir(tmp_path))
    began_s = loop.time()
    loop.run_until_complete(joining.join(options(tmp_path, **fields), asyncio.Event()))
    assert [begun_s - began_s for begun_s in lives.begun_s] == [pytest.approx(100.0, abs=2.0)]


@pytest.mark.usefixtures("_terminal")
def test_a_no_ends_it_with_a_word_that_is_no_error(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    Lives(monkeypatch, DataDir(tmp_path), "asks, and hears no")
    monkeypatch.setattr(joining, "free_memory", lambda: pytest.fail("PyTorch may be half loaded, for the forecast"))
    DataDir(tmp_path).pause_mark.touch()
    with pytest.raises(Declined, match="not joined"):
        loop.run_until_complete(joining.join(options(tmp_path, as_json=False), asyncio.Event()))


@pytest.mark.parametrize("answer", [True, False])
def test_a_session_that_began_to_ask_goes_no_further_when_it_is_to_pause(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    went_on = list[Session]()

    @asynccontextmanager
    async def connected(*_: object, **__: object) -> AsyncIterator[Any]:
        transport = SimpleNamespace(peer_id="me")
        verdict = SimpleNamespace(reach="direct", text="", hint="")
        ports = SimpleNamespace(transport=transport, clock=VirtualClock(loop))
        reaching = SimpleNamespace(follow=lambda _: None)
        yield SimpleNamespace(
            ports=ports, clock_offset_s=0.0, verdict=verdict, reaching=reaching,
            refusals=SimpleNamespace(rows=tuple)
        ), None

    async def asked(*_: object) -> bool:
        return answer

    async def train(session: Session, *_: object) -> None:
        went_on.append(session)

    monkeypatch.setattr(sessions, "start_from_invite", connected)
    monkeypatch.setattr(sessions, "is_welcome", asked)
    monkeypatch.setattr(Session, "_train", train)
    monkeypatch.setattr(Session, "_sinks", lambda *_: None)
    place = DataDir(tmp_path)
    guest = guests.Guest(place, [by_command(place.pause_mark)], MonthlyTraffic(place.traffic), lambda _: None)
    given = sessions.Given({})
    invite: Any = SimpleNamespace(run_id="run")

    async def life() -> None:
        session = Session(options=options(tmp_path), invite=invite, guest=guest, stop=asyncio.Event(), given=given)
        async with guest.stay():
            guest.begin()
            await session.live()
            assert bool(went_on) is answer, "nothing stands against it but the answer"
            place.pause_mark.touch()
            await asyncio.sleep(1.0)
            guest.begin()
            await session.live()

    loop.run_until_complete(life())
    assert len(went_on) == int(answer)
    assert given.has_declined is given.is_over is not answer


def test_who_has_left_is_told_the_epoch_of_its_state_and_not_from_which_one_on_it_owes_no_vote(tmp_path: Path) -> None:
    """It was on its way to the last round, and took over what the others had made of it."""
    nobody: Any = None
    session = Session(options=options(tmp_path), invite=nobody, guest=nobody, stop=nobody, given=sessions.Given({}))
    record = SimpleNamespace(
        peer="me", role=Role.TRAINER, state=PeerState.LEFT, epoch=4, lineage="of five", eval_epoch=5, eval_loss=2.0,
        eval_accuracy=0.5,
    )  # fmt: skip
    participant: Any = SimpleNamespace(
        teller=SimpleNamespace(record=lambda: record),
        vitals=SimpleNamespace(epochs_contributed=3, total_samples=24, loss=2.5),
        replica=SimpleNamespace(epoch=5),
        is_finished=True,
    )
    session._add(participant)
    assert (session.given.summary["epoch"], session.given.summary["lineage"]) == (5, "of five")


def test_one_that_is_to_pause_while_it_loads_what_it_needs_takes_no_device(tmp_path: Path, loop: VirtualLoop) -> None:
    place, nobody = DataDir(tmp_path), list[Any]([None, None, None])
    guest = guests.Guest(place, [by_command(place.pause_mark)], MonthlyTraffic(place.traffic), lambda _: None)
    invite: Any = None

    class Compute:
        async def run(self, _work: object) -> None:
            place.pause_mark.touch()
            await asyncio.sleep(1.0)

    async def life() -> None:
        session = Session(
            options=options(tmp_path), invite=invite, guest=guest, stop=asyncio.Event(), given=sessions.Given({})
        )
        started: Any = SimpleNamespace(ports=SimpleNamespace(compute=Compute()))
        async with guest.stay():
            guest.begin()
            await session._train(started, *nobody)
            told = guests.condition_of(place)
            assert told is not None
            assert told.condition is guests.Condition.STARTING

    loop.run_until_complete(life())


def at_work(
    directory: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> tuple[Guest, Callable[[Given], Coroutine[Any, Any, None]]]:
    """What a session does that is connected and agreed to, for what is built by then."""
    nothing: Any = SimpleNamespace(run=None)
    place = DataDir(directory)
    guest = Guest(place, [by_command(place.pause_mark)], MonthlyTraffic(place.traffic), lambda _: None)

    class Compute:
        async def run(self, work: Any) -> Any:
            return work()

    async def live(given: Given) -> None:
        session = Session(options=options(directory), invite=nothing, guest=guest, stop=asyncio.Event(), given=given)
        started: Any = SimpleNamespace(ports=SimpleNamespace(compute=Compute(), clock=VirtualClock(loop)))
        await session._train(started, nothing, Relay(), Watched(title="run"))

    monkeypatch.setattr(sessions, "dataset_of", lambda _: None)
    monkeypatch.setattr(Session, "_begun", lambda *_: None)
    return guest, live


def test_a_pause_while_a_trainer_is_built_waits_for_what_is_put_on_the_device(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def build(_started: Any, _bundle: Any, _options: Any, beginning: machine.Beginning) -> None:
        beginning.takes_device.set()
        guest.pause.ask("the test wants it")
        await put_there.wait()
        assert beginning.is_over()

    async def life() -> None:
        living = asyncio.ensure_future(live(Given({})))
        await asyncio.sleep(1.0)
        assert not living.done()
        put_there.set()
        await living

    put_there = asyncio.Event()
    monkeypatch.setattr(machine, "build_trainer", build)
    guest, live = at_work(tmp_path, loop, monkeypatch)
    loop.run_until_complete(life())


def test_a_trainer_whose_text_another_peer_is_encoding_says_so(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def build(_started: Any, _bundle: Any, _options: Any, beginning: machine.Beginning) -> None:
        beginning.waits(tmp_path / "tokens.lock")
        await asyncio.sleep(1.0)

    async def life() -> None:
        await live(Given({}))
        await asyncio.sleep(1.0)

    told = list[str]()
    monkeypatch.setattr(machine, "build_trainer", build)
    monkeypatch.setattr(Relay, "observe", lambda _, event: told.append(words(event)))
    _, live = at_work(tmp_path, loop, monkeypatch)
    loop.run_until_complete(life())
    (line,) = told
    assert "another peer of yours is encoding this text" in line


def test_a_pause_ends_a_thread_that_reads_text_after_a_piece_and_only_then_the_device_is_free(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, read, piece, reads = DataDir(tmp_path), list[str](), Semaphore(0), Semaphore(0)

    def texts() -> Iterator[str]:
        while True:
            reads.release()
            assert piece.acquire(timeout=10.0)
            yield "a piece of text"

    async def build(_started: Any, _bundle: Any, _options: Any, beginning: machine.Beginning) -> None:
        def work() -> None:
            with suppress(BrokenOff):
                read.extend(beginning.overseen(texts()))

        thread = Thread(target=work)
        threads.append(thread)
        thread.start()
        assert reads.acquire(timeout=10.0)
        await asyncio.Event().wait()

    async def life() -> None:
        async with guest.stay():
            guest.begin()
            living = asyncio.ensure_future(live(Given({})))
            await asyncio.sleep(1.0)
            place.pause_mark.touch()
            await living
            guest.end_session()
            await asyncio.sleep(60.0)
            assert condition() is guests.Condition.MAKING_ROOM, "it is in the middle of a piece"
            piece.release()
            threads[0].join(10.0)
            await asyncio.sleep(1.0)
            assert condition() is guests.Condition.PAUSED

    def condition() -> guests.Condition | None:
        told = guests.condition_of(place)
        return told and told.condition

    threads = list[Thread]()
    monkeypatch.setattr(machine, "build_trainer", build)
    guest, live = at_work(tmp_path, loop, monkeypatch)
    loop.run_until_complete(life())
    assert not threads[0].is_alive()
    assert read == []


class Trained:
    """A trainer that was built on a device; its training ends with an error, if there is one."""

    def __init__(self, device: str, error: Exception | None) -> None:
        record = PeerRecord(
            peer=PeerId("me"), fingerprint="f" * 64, name="me", role=Role.TRAINER, state=PeerState.LEFT, epoch=7,
            lineage=Lineage("l"), said_at=0.0, can_be_dialled=True,
        )  # fmt: skip
        vitals = SimpleNamespace(epochs_contributed=2, total_samples=10, loss=1.5)
        self.participant = SimpleNamespace(
            replica=SimpleNamespace(epoch=1, device=torch.device(device)),
            teller=SimpleNamespace(record=lambda: record),
            vitals=vitals,
            is_finished=False,
        )
        self._error = error

    async def run(self, *_: object) -> None:
        if self._error is not None:
            raise self._error


def test_what_was_given_counts_though_a_session_failed_and_only_a_gpu_that_it_had_is_waited_for(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = DeviceFull("the device's memory is too small: a step of this run does not fit", hint="")
    built = [Trained("cpu", full), Trained("cuda:0", full), Trained("cuda:0", None)]
    begun = list[machine.Beginning]()

    async def build(_started: Any, _bundle: Any, _options: Any, beginning: machine.Beginning) -> Trained:
        begun.append(beginning)
        return built[len(begun) - 1]

    monkeypatch.setattr(machine, "build_trainer", build)
    given, (_, live) = Given({}), at_work(tmp_path, loop, monkeypatch)

    async def lives() -> None:
        for life in built:
            with pytest.raises(DeviceFull) if life is not built[2] else nullcontext():
                await live(given)

    loop.run_until_complete(lives())
    assert [beginning.had_gpu for beginning in begun] == [False, False, True]
    assert [beginning.contributed for beginning in begun] == [0, 2, 4]
    assert (given.summary["samples"], given.summary["epochs_contributed"]) == (30, 6)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"store": "x.sqlite"}, "--store"),
        ({"hub_repo": "org/name"}, "--hub-repo"),
        ({"hub_every_min": 5.0}, "--hub-every"),
        ({"gpu_memory_gb": 4.0, "role": Role.AUXILIARY}, "--gpu-memory"),
        ({"rules": HouseRules(when="at night")}, "22:00-07:00"),
    ],
)
def test_what_this_peer_cannot_do_is_refused_before_anybody_is_dialled(
    tmp_path: Path, loop: VirtualLoop, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as error:
        loop.run_until_complete(joining.join(options(tmp_path, **fields), asyncio.Event()))
    assert said in str(error.value)


class Quiet:
    """A swarm that a session gets into at once, and in which a step takes more than two minutes."""

    def __init__(self, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch) -> None:
        ports = SimpleNamespace(clock=VirtualClock(loop), transport=SimpleNamespace(peer_id=PeerId("me")))
        self._started = SimpleNamespace(
            ports=ports,
            clock_offset_s=0.0,
            verdict=SimpleNamespace(reach=Reachability.DIRECT, text="others can dial it", hint=""),
            reaching=SimpleNamespace(follow=lambda _: None),
            refusals=SimpleNamespace(rows=list),
        )

        @asynccontextmanager
        async def start(*_: Any, **__: Any) -> AsyncIterator[tuple[Any, None]]:
            yield self._started, None

        async def agrees(*_: Any) -> bool:
            return True

        async def train(_session: Session, _started: Any, _bundle: None, relay: Relay, watched: Watched) -> None:
            watched.ahead = lambda: Ahead(epoch=6, until_epoch=None, next_s=70.0, step_s=140.0, share=0.5)
            await asyncio.sleep(130.0)
            relay.observe(step(epoch=7, own=16))

        monkeypatch.setattr(sessions, "start_from_invite", start)
        monkeypatch.setattr(sessions, "is_welcome", agrees)
        monkeypatch.setattr(Session, "_train", train)


def test_a_session_gives_a_sign_of_life_each_minute_and_counts_on_what_was_given_before(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Quiet(loop, monkeypatch)
    asked = options(tmp_path, as_json=False, style=Style.PLAIN)
    traffic = MonthlyTraffic(asked.data_dir.traffic)
    guest = Guest(asked.data_dir, (), traffic, asked.say)
    given = Given({"role": Role.TRAINER})
    for _ in range(2):
        life = Session(options=asked, invite=invite_from(asked.invite), guest=guest, stop=asyncio.Event(), given=given)
        loop.run_until_complete(life.live())
    assert (given.tally.own_samples, given.tally.swarm_samples) == (32, 128.0)
    minute = "epoch 6: 50 % of the batch is there, the next step in about 70 s"
    lines = [line.split("  ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert lines == 2 * [minute, minute, words(step(epoch=7, own=16))]
    assert asked.data_dir.metrics.read_text().count('"StepAwaited"') == 4


def test_what_a_helper_gave_counts_though_its_session_failed(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Assisted:
        """An auxiliary peer that helps in two rounds, and then fails."""

        assistant = SimpleNamespace(rounds_committed=2)
        membership = statutes = SimpleNamespace()

        def __init__(self, *_: object) -> None:
            pass

        async def run(self, _stop: asyncio.Event) -> None:
            raise NetworkError("the libp2p daemon (p2pd) of this peer has died")

        def record(self) -> Any:
            return SimpleNamespace(peer="me", role=Role.AUXILIARY)

    monkeypatch.setattr(sessions, "Auxiliary", Assisted)
    monkeypatch.setattr(Session, "_begun", lambda *_: None)
    given, place = Given({}), DataDir(tmp_path)
    guest = Guest(place, (), MonthlyTraffic(place.traffic), lambda _: None)
    nothing: Any = None
    life = Session(
        options=options(tmp_path, role=Role.AUXILIARY), invite=nothing, guest=guest, stop=asyncio.Event(), given=given
    )
    verdict = SimpleNamespace(reach=Reachability.DIRECT)
    started: Any = SimpleNamespace(ports=SimpleNamespace(clock=VirtualClock(loop)), identity=None, verdict=verdict)
    with pytest.raises(NetworkError):
        loop.run_until_complete(life._assist(started, nothing, Relay(), Watched(title="run")))
    assert given.summary["rounds"] == 2
    assert not given.is_over
