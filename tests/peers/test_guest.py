"""A guest: what it does when its owner's reasons come and go, and what 'pause' and 'resume' hear of it."""

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from collab.errors import ConfigError
from collab.simulation.virtual_time import VirtualLoop
from peers.guest import Condition, Guest, Wait, condition_of
from peers.occasions import by_command
from peers.pausing import pause, resume
from peers.places import DataDir, claim_data_dir
from peers.traffic import SAVED_EVERY_BYTES, MonthlyTraffic
from tests.full_disk import no_file_larger_than


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a user who has no other peers."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualLoop]:
    """Virtual time, in which looking around costs none."""
    loop = VirtualLoop()
    monkeypatch.setattr(time, "clock_gettime", lambda _: loop.time())

    async def at_once(_self: Any, _executor: Any, work: Callable[[], Any]) -> Any:
        return work()

    monkeypatch.setattr(VirtualLoop, "run_in_executor", at_once)
    yield loop
    loop.close()


class House:
    """A guest, the reason of its owner, and what it said."""

    def __init__(self, directory: Path) -> None:
        self.place = DataDir(directory)
        self.reason, self.month, self.said = "", "", list[Wait]()
        occasions = [by_command(self.place.pause_mark), lambda: self.month, lambda: self.reason]
        traffic = MonthlyTraffic(self.place.traffic)
        self.guest = Guest(self.place, occasions, traffic, self.said.append)
        self.stop = asyncio.Event()

    @property
    def condition(self) -> Condition | None:
        told = condition_of(self.place)
        return told.condition if told else None


def within(loop: VirtualLoop, life: Coroutine[Any, Any, None]) -> None:
    loop.run_until_complete(life)


def test_a_session_is_asked_to_pause_when_a_reason_comes_and_another_may_begin_when_it_goes(
    tmp_path: Path, loop: VirtualLoop
) -> None:
    house = House(tmp_path)

    async def life() -> None:
        async with house.guest.stay():
            assert await house.guest.may_begin(house.stop)
            house.guest.take_device()
            assert house.condition is Condition.WORKING
            first = house.guest.pause
            house.reason = "the machine runs on battery"
            await asyncio.sleep(1.0)
            assert first.wanted.is_set()
            assert first.reason == house.reason
            assert house.condition is Condition.MAKING_ROOM
            first.has_made_room.set()
            await asyncio.sleep(1.0)
            assert house.condition is Condition.HANDING_IN
            house.guest.end_session()
            assert house.condition is Condition.PAUSED
            beginning = asyncio.ensure_future(house.guest.may_begin(house.stop))
            await asyncio.sleep(60.0)
            assert not beginning.done()
            house.reason = ""
            assert await beginning
            assert house.guest.pause is not first
            assert not house.guest.pause.wanted.is_set()
            assert house.guest.paused_s == pytest.approx(62.0, abs=1.1)
            assert house.condition is Condition.WORKING
        assert house.condition is None, "a process that has ended says nothing"

    within(loop, life())
    assert house.said == [Wait(reason="the machine runs on battery", is_start=False, is_known=True)]


def test_a_pause_is_as_long_as_it_was_where_the_machine_sleeps_meanwhile(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    house, slept_s = House(tmp_path), 0.0
    monkeypatch.setattr(time, "clock_gettime", lambda _: 7.0 + loop.time() + slept_s)

    async def night() -> None:
        nonlocal slept_s
        async with house.guest.stay():
            assert await house.guest.may_begin(house.stop)
            house.reason = "the machine runs on battery"
            await asyncio.sleep(60.0)
            house.guest.end_session()
            slept_s = 8 * 3_600.0
            house.reason = ""
            assert await house.guest.may_begin(house.stop)

    within(loop, night())
    assert house.guest.paused_s == pytest.approx(8 * 3_600.0 + 60.0, abs=1.1)


def test_between_a_pause_that_was_taken_back_and_the_next_session_nobody_is_told_that_it_pauses(
    tmp_path: Path, loop: VirtualLoop
) -> None:
    house = House(tmp_path)

    async def life() -> None:
        async with house.guest.stay():
            assert await house.guest.may_begin(house.stop)
            house.guest.take_device()
            house.reason = "you have paused it"
            await asyncio.sleep(1.0)
            house.guest.pause.has_made_room.set()
            house.reason = ""
            await asyncio.sleep(1.0)
            assert house.condition is Condition.HANDING_IN, "the session that was to pause ends all the same"
            house.guest.end_session()
            assert house.condition is Condition.STARTING
            assert await house.guest.may_begin(house.stop)
            assert house.condition is Condition.WORKING

    within(loop, life())


def test_while_it_waits_each_other_kind_of_reason_is_told_and_no_number_that_changes(
    tmp_path: Path, loop: VirtualLoop
) -> None:
    house = House(tmp_path)

    async def life() -> None:
        house.reason = "it counts as idle in 5 min"
        async with house.guest.stay():
            beginning = asyncio.ensure_future(house.guest.may_begin(house.stop))
            for minute in (4, 3, 2):
                await asyncio.sleep(60.0)
                house.reason = f"it counts as idle in {minute} min"
            house.month = "this month's 5 GB are used up"
            await asyncio.sleep(600.0)
            house.month = ""
            await asyncio.sleep(60.0)
            house.reason = ""
            assert await beginning
            house.month = "this month's 5 GB are used up"
            await asyncio.sleep(60.0)
            assert len(house.said) == 3, "a session tells of its own pause"
            house.guest.end_session()
            beginning = asyncio.ensure_future(house.guest.may_begin(house.stop))
            await asyncio.sleep(60.0)
            house.stop.set()
            await beginning

    within(loop, life())
    assert house.said == [
        Wait(reason="it counts as idle in 5 min", is_start=True, is_known=False),
        Wait(reason="this month's 5 GB are used up", is_start=False, is_known=False),
        Wait(reason="it counts as idle in 2 min", is_start=False, is_known=False),
        Wait(reason="this month's 5 GB are used up", is_start=False, is_known=False),
    ]


def test_one_that_has_only_asked_has_done_nothing_yet(tmp_path: Path, loop: VirtualLoop) -> None:
    house = House(tmp_path)
    house.reason = "it is not the time"

    async def life() -> None:
        async with house.guest.stay():
            house.guest.begin()
            house.guest.end_session()
            house.stop.set()
            beginning = asyncio.ensure_future(house.guest.may_begin(asyncio.Event()))
            await asyncio.sleep(1.0)
            house.reason = ""
            await beginning

    within(loop, life())
    assert [wait.is_start for wait in house.said] == [True]


def test_one_that_is_told_to_leave_while_it_is_paused_begins_nothing(tmp_path: Path, loop: VirtualLoop) -> None:
    house = House(tmp_path)
    house.place.pause_mark.touch()

    async def life() -> None:
        async with house.guest.stay():
            beginning = asyncio.ensure_future(house.guest.may_begin(house.stop))
            await asyncio.sleep(5.0)
            house.stop.set()
            assert not await beginning

    within(loop, life())


def test_before_anything_is_on_the_device_it_is_free(tmp_path: Path, loop: VirtualLoop) -> None:
    house = House(tmp_path)

    async def life() -> None:
        async with house.guest.stay():
            for takes_device in (False, True, False):
                house.reason = ""
                await house.guest.may_begin(house.stop)
                if takes_device:
                    house.guest.take_device()
                house.reason = "the machine runs on battery"
                await asyncio.sleep(1.0)
                assert house.condition is (Condition.MAKING_ROOM if takes_device else Condition.STARTING)
                house.guest.end_session()

    within(loop, life())


def test_one_that_begins_only_to_ask_hears_at_once_that_it_is_to_pause(tmp_path: Path, loop: VirtualLoop) -> None:
    house = House(tmp_path)
    house.reason = "it is not the time"

    async def life() -> None:
        async with house.guest.stay():
            house.guest.begin()
            assert house.guest.pause.wanted.is_set()
            assert house.condition is Condition.STARTING
            house.guest.end_session()
            house.reason = ""
            assert await house.guest.may_begin(house.stop)
            assert not house.guest.pause.wanted.is_set()

    within(loop, life())


def test_a_session_that_goes_on_is_counted_and_the_count_is_kept(tmp_path: Path, loop: VirtualLoop) -> None:
    house, gone = House(tmp_path), [0]

    async def life() -> None:
        async with house.guest.stay():
            await house.guest.may_begin(house.stop)
            with house.guest.metered(lambda: gone[0]):
                for number in range(10):
                    gone[0] = number * SAVED_EVERY_BYTES // 4
                    await asyncio.sleep(1.0)
                used_bytes = MonthlyTraffic(house.place.traffic).used_bytes
                assert used_bytes == 8 * SAVED_EVERY_BYTES // 4, "a power cut may come"
                gone[0] += 7
            house.guest.end_session()

    within(loop, life())
    assert MonthlyTraffic(house.place.traffic).used_bytes == 9 * SAVED_EVERY_BYTES // 4 + 7, "and what went since"


def test_a_disk_that_takes_a_minute_for_the_count_keeps_nobody_from_the_device(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(tmp_path)

    async def apart(_self: Any, _executor: Any, work: Callable[[], Any]) -> Any:
        if work == house.guest.traffic.save:
            await asyncio.sleep(60.0)
        return work()

    monkeypatch.setattr(VirtualLoop, "run_in_executor", apart)

    async def life() -> None:
        async with house.guest.stay():
            await house.guest.may_begin(house.stop)
            with house.guest.metered(lambda: SAVED_EVERY_BYTES):
                await asyncio.sleep(5.0)
                house.reason = "the machine runs on battery"
                await asyncio.sleep(1.0)
                assert house.guest.pause.wanted.is_set()
            house.guest.end_session()

    within(loop, life())


# -- the commands ------------------------------------------------------------------------------------------------------


@contextmanager
def running(directory: Path) -> Iterator[None]:
    """As a process does that has the directory to itself, and pauses."""
    with claim_data_dir(directory, "run", pauses=True):
        yield


async def session(house: House, *, room_s: float, leaving_s: float) -> None:
    """One session after the other, each of which takes so long to make room and to leave."""
    async with house.guest.stay():
        while await house.guest.may_begin(house.stop):
            house.guest.take_device()
            await house.guest.pause.wanted.wait()
            await asyncio.sleep(room_s)
            house.guest.pause.has_made_room.set()
            await asyncio.sleep(leaving_s)
            house.guest.end_session()


def test_pause_waits_until_the_device_is_free_and_resume_until_it_works(
    tmp_path: Path, loop: VirtualLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    house = House(tmp_path)

    async def life() -> None:
        going = asyncio.ensure_future(session(house, room_s=2.0, leaving_s=3.0))
        await asyncio.sleep(1.0)
        await pause(tmp_path)
        assert house.condition is Condition.HANDING_IN
        assert "its device is free" in capsys.readouterr().err
        await resume(tmp_path)
        assert house.condition is Condition.WORKING
        assert "works again" in capsys.readouterr().err
        house.stop.set()
        house.reason = "so that the session ends"
        await going

    with running(tmp_path):
        within(loop, life())


def test_a_peer_answers_on_a_full_disk_too(
    tmp_path: Path, loop: VirtualLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    house = House(tmp_path)

    async def life() -> None:
        going = asyncio.ensure_future(session(house, room_s=2.0, leaving_s=3.0))
        await asyncio.sleep(1.0)
        with no_file_larger_than(0):
            await pause(tmp_path)
            assert "its device is free; what it has computed" in capsys.readouterr().err
            await asyncio.sleep(10.0)
            await pause(tmp_path)
            assert "its device is free, and it is not in the swarm" in capsys.readouterr().err
        await asyncio.sleep(1.0)
        told = condition_of(house.place)
        assert told is not None
        assert told.reason, "there is room again"
        await resume(tmp_path)
        assert "works again" in capsys.readouterr().err
        house.stop.set()
        house.reason = "so that the session ends"
        await going

    with running(tmp_path):
        within(loop, life())


def test_a_peer_that_does_not_make_room_is_told_of(tmp_path: Path, loop: VirtualLoop) -> None:
    with running(tmp_path), pytest.raises(ConfigError, match="not free") as error:
        within(loop, pause(tmp_path))
    assert "microbatch" in error.value.hint


def test_one_that_connects_or_asks_is_paused_at_once(
    tmp_path: Path, loop: VirtualLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    house = House(tmp_path)

    async def life() -> None:
        async with house.guest.stay():
            await house.guest.may_begin(house.stop)
            asked_s = loop.time()
            await pause(tmp_path)
            assert loop.time() - asked_s < 1.0
            await resume(tmp_path)

    with running(tmp_path):
        within(loop, life())
    told = capsys.readouterr().err
    assert "its device is free" in told
    assert "works again as soon as" in told
    assert "computed is in a step" not in told


def test_resume_says_what_else_keeps_it_paused(
    tmp_path: Path, loop: VirtualLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    house = House(tmp_path)
    house.place.pause_mark.touch()
    house.reason = "the machine runs on battery"

    async def life() -> None:
        going = asyncio.ensure_future(session(house, room_s=0.0, leaving_s=0.0))
        await asyncio.sleep(1.0)
        await resume(tmp_path)
        house.stop.set()
        await going

    with running(tmp_path):
        within(loop, life())
    assert "still paused: the machine runs on battery" in capsys.readouterr().err


KILLED = """\
import sys
from pathlib import Path

from peers.places import DataDir, claim_data_dir

with claim_data_dir(Path(sys.argv[1]), "run", pauses=True) as place:
    place.condition.write_text('{"condition": "paused", "reason": "", "pid": 1}')
    print("there", flush=True)
    sys.stdin.readline()
"""


def kill_one_in(directory: Path) -> None:
    """A process had the directory, said that it is paused, and was killed."""
    command = [sys.executable, "-c", KILLED, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdout is not None
        assert peer.stdout.readline() == "there\n"
        peer.kill()
    assert DataDir(directory).condition.exists()


@contextmanager
def backbone(run_id: str) -> Iterator[DataDir]:
    """One that was given no directory."""
    with claim_data_dir(None, run_id) as place:
        yield place


def test_all_peers_of_the_user_that_run_and_pause_are_meant_wherever_they_keep_their_things(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):  # as another notebook
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / f"home-{number}"))
        with claim_data_dir(None, "run", pauses=True) as gone:
            pass
    shutil.rmtree(gone.path)
    elsewhere, killed = tmp_path / "elsewhere", tmp_path / "killed"
    kill_one_in(killed)
    with pytest.raises(ConfigError, match="no peer of yours that pauses runs"):
        within(loop, pause(None))

    async def life(*houses: House) -> None:
        going = [asyncio.ensure_future(session(house, room_s=1.0, leaving_s=100.0)) for house in houses]
        await asyncio.sleep(1.0)
        await pause(None)
        assert [house.condition for house in houses] == [Condition.HANDING_IN] * 2
        capsys.readouterr()
        await resume(None)
        for house in houses:
            house.stop.set()
            house.reason = "so that the session ends"
        await asyncio.gather(*going)

    with (
        claim_data_dir(None, "run", pauses=True) as usual, running(elsewhere),
        backbone("run") as second, backbone("another-run") as third,
    ):  # fmt: skip
        within(loop, life(House(usual.path), House(elsewhere)))
        told = capsys.readouterr().err
        assert not any(place.pause_mark.exists() for place in (usual, second, third, DataDir(killed)))
    for place in (usual.path, elsewhere):
        assert f"{place}: works again" in told
    with pytest.raises(ConfigError, match="was paused"):
        within(loop, resume(None))


def test_those_that_do_not_answer_are_named_together_after_all_others_were_asked(
    tmp_path: Path, loop: VirtualLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    house = House(tmp_path / "b")

    async def life() -> None:
        async with house.guest.stay():
            await house.guest.may_begin(house.stop)
            began_s = loop.time()
            with pytest.raises(ConfigError, match="not free") as error:
                await pause(None)
            assert loop.time() - began_s < 15.0, "all are asked at once"
            assert [str(tmp_path / name) in error.value.message for name in "abc"] == [True, False, True]
            assert error.value.hint.count("microbatch that") == 1

    with running(tmp_path / "a"), running(tmp_path / "b"), running(tmp_path / "c"), backbone("run") as place:
        within(loop, life())
        told = capsys.readouterr().err
        assert f"{tmp_path / 'b'}: paused: its device is free" in told
        assert f"{place.path}: a backbone runs there, and never pauses" in told
        assert not place.pause_mark.exists(), "a trainer that has this directory later would begin paused"


def test_a_backbone_that_is_named_is_an_error_at_once_and_no_mark_is_left(tmp_path: Path, loop: VirtualLoop) -> None:
    began_s = loop.time()
    with backbone("run") as place:
        with pytest.raises(ConfigError, match="never pauses"):
            within(loop, pause(place.path))
        assert loop.time() == began_s
        assert not place.pause_mark.exists()
        place.pause_mark.touch()  # of an earlier version
        within(loop, resume(place.path))
        assert not place.pause_mark.exists()
    with running(place.path), pytest.raises(ConfigError, match="not free"):
        within(loop, pause(place.path))


def test_the_last_word_of_one_that_was_killed_is_not_taken_for_that_of_the_next(
    tmp_path: Path, loop: VirtualLoop
) -> None:
    kill_one_in(tmp_path)
    with running(tmp_path), pytest.raises(ConfigError, match="not free"):
        within(loop, pause(tmp_path))


def test_one_that_is_stopped_later_works_when_it_is_started(
    tmp_path: Path, loop: VirtualLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    house = House(tmp_path)

    async def life() -> None:
        async with house.guest.stay():
            await house.guest.may_begin(house.stop)
            await pause(None)

    with running(tmp_path):
        within(loop, life())
    within(loop, resume(None))
    assert "it works when it is started" in capsys.readouterr().err


def test_one_that_does_not_run_begins_paused(
    tmp_path: Path, loop: VirtualLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    within(loop, pause(tmp_path))
    assert "will begin paused" in capsys.readouterr().err
    assert DataDir(tmp_path).pause_mark.exists()
    with pytest.raises(ConfigError, match="no peer keeps its things"):
        within(loop, pause(tmp_path / "nowhere"))
