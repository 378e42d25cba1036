"""One session after the other: pauses between, a run that does not answer after one, and what is said at the end."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collab.errors import BootstrapFailed, ConfigError
from collab.simulation.virtual_time import VirtualClock, VirtualLoop
from collab.swarm.identity import Identity
from collab.swarm.invite import Invite, write_invite
from collab.types import PeerId, Reachability, Role
from peers import guest as guests, joining, session as sessions
from peers.event_words import words
from peers.guest import Guest
from peers.join_options import JoinOptions, Relay
from peers.occasions import HouseRules
from peers.panel import Watched
from peers.places import DataDir
from peers.progress import Ahead
from peers.screen import Style
from peers.session import Given, Session
from peers.traffic import MonthlyTraffic
from peers.wiring import Reach, invite_from
from tests.peers.test_screen import step

PATIENT = HouseRules(works_on_battery=True, is_modest=False)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    monkeypatch.setattr(guests, "monotonic", loop.time)

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
        if deed == "nobody answers":
            raise BootstrapFailed("none of the 1 bootstrap addresses answered")
        if deed == "is paused":
            self._place.pause_mark.touch()
            await session.guest.pause.wanted.wait()
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


def test_after_a_pause_a_run_that_does_not_answer_is_tried_again(
    tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lives = Lives(monkeypatch, DataDir(tmp_path), "is paused", "nobody answers", "nobody answers", "finishes")
    loop.run_until_complete(joining.join(options(tmp_path), asyncio.Event()))
    assert len(lives.begun_s) == 4
    assert lives.begun_s[3] - lives.begun_s[2] == pytest.approx(joining.AGAIN_S)
    told = capsys.readouterr()
    assert "trying again in 30 s" in told.err


def test_the_first_time_that_is_an_error(tmp_path: Path, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    Lives(monkeypatch, DataDir(tmp_path), "nobody answers")
    with pytest.raises(ExceptionGroup) as caught:
        loop.run_until_complete(joining.join(options(tmp_path), asyncio.Event()))
    assert caught.group_contains(BootstrapFailed)


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


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"store": "x.sqlite"}, "--store"),
        ({"hub_repo": "org/name"}, "--hub-repo"),
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
            traffic_bytes=lambda: 0,
            clock_offset_s=0.0,
            verdict=SimpleNamespace(reach=Reachability.DIRECT, text="others can dial it", hint=""),
            reaching=SimpleNamespace(follow=lambda _: None),
            refusals=SimpleNamespace(rows=list),
        )

        @asynccontextmanager
        async def start(*_: Any) -> AsyncIterator[tuple[Any, None]]:
            yield self._started, None

        async def agrees(*_: Any) -> bool:
            return True

        async def train(_session: Session, _started: Any, _bundle: None, relay: Relay, watched: Watched) -> None:
            watched.ahead = lambda: Ahead(epoch=6, until_epoch=None, next_s=70.0, step_s=140.0)
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
