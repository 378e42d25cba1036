"""The replica around a user's own loop."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from collab import joining
from collab.config import parse_run
from collab.errors import CollabError, Dismissed
from collab.joining import JoinedRun, Local
from collab.swarm.bundle import Bundle
from collab.swarm.invite import Invite
from collab.training.own_loop import replica_around
from collab.types import PeerId, Reachability
from tests.fakes import FakeCompute

LIMIT_S = 10.0

RUN = """\
run_id: joined
task: {name: image_classification}
optimizer: {name: sgd, learning_rate: 0.5}
averaging: {worker_momentum: 0.5}
"""


def test_a_user_s_own_loop_sends_momenta_where_the_run_says_so() -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    ours = replica_around(model, None, Bundle(parse_run(RUN, origin="the test"), {}))
    sent = []
    for epoch, gradient in enumerate([8.0, 4.0]):
        model.weight.grad = torch.full((1, 2), gradient)
        ours.take_gradients((epoch,), None)
        sent.append(ours.hand_over().mean.tolist())
        ours.settle(((0, 2),), f"r{epoch}")
        ours.epoch += 1
    assert sent == [[8.0, 8.0], [6.0, 6.0]]


def test_a_failure_in_what_keeps_the_peer_alive_is_told_to_the_users_next_step_after_a_goodbye(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    invite = Invite(run_id="r", fingerprint="f", owner=PeerId("o"), addresses=())
    done, fails = list[str](), threading.Event()

    class Failing:
        """A participant that has no room for what it is to bring to a round."""

        teller = SimpleNamespace(follow=lambda _: None)
        is_finished = False

        async def nothing(self) -> None:
            """It is there at once."""

        begin = measure_link = synchronise = nothing

        async def keep_alive(self) -> None:
            await asyncio.to_thread(fails.wait, LIMIT_S)
            raise ExceptionGroup("of some tasks", [MemoryError("no room")])

        async def dismissed(self) -> None:
            await asyncio.Event().wait()

        def unwanted(self) -> None:
            return None

        async def leave(self, *, is_urgent: bool) -> None:
            done.append("goodbye")

    @asynccontextmanager
    async def opened(*_: object) -> AsyncIterator[Any]:
        ports = SimpleNamespace(clock=SimpleNamespace(now=lambda: 0.0), compute=FakeCompute())
        verdict = SimpleNamespace(event=lambda *_: None, reach=Reachability.DIRECT)
        reaching = SimpleNamespace(follow=lambda _: None)
        yield SimpleNamespace(ports=ports, verdict=verdict, verdict_s=0.0, identity=None, reaching=reaching), None

    monkeypatch.setattr(joining, "open_run", opened)
    monkeypatch.setattr(joining, "default_host", lambda _: "127.0.0.1")
    monkeypatch.setattr(joining, "replica_around", lambda *_: None)
    monkeypatch.setattr(joining, "Participant", lambda *_: Failing())
    joined = JoinedRun(torch.nn.Linear(2, 1), None, invite, Local(name="me"))
    joined._start()
    fails.set()
    assert joined._thread is not None
    joined._thread.join(LIMIT_S)
    assert done == ["goodbye"]
    with pytest.raises(CollabError, match="this peer has stopped: no room"):
        joined.step(samples=1)


class Dismissing(JoinedRun):
    """One whose peer is sent away as soon as it is there."""

    async def _live(self, identity_path: Path) -> None:
        raise Dismissed("the organiser has banned you")


def test_a_step_that_comes_just_when_the_peer_ends_hears_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for an event loop that does nothing any more."""
    invite = Invite(run_id="r", fingerprint="f", owner=PeerId("o"), addresses=())
    joined = Dismissing(torch.nn.Linear(2, 1), None, invite, Local())
    is_ending, has_come = threading.Event(), threading.Event()
    heard: list[BaseException] = []
    look, hand_over = asyncio.all_tasks, asyncio.run_coroutine_threadsafe

    def looking(loop: asyncio.AbstractEventLoop) -> set[asyncio.Task[Any]]:
        found = look(loop)
        is_ending.set()
        has_come.wait(LIMIT_S)
        return found

    def handing_over(coroutine: Any, loop: asyncio.AbstractEventLoop) -> Any:
        future = hand_over(coroutine, loop)
        has_come.set()
        return future

    def step() -> None:
        is_ending.wait(LIMIT_S)
        try:
            joined._call(asyncio.sleep(0))
        except CollabError as error:
            heard.append(error)
        has_come.set()

    monkeypatch.setattr(asyncio, "all_tasks", looking)
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", handing_over)
    user = threading.Thread(target=step, daemon=True)
    user.start()
    with pytest.raises(Dismissed):
        joined._start()
    user.join(LIMIT_S)
    assert [str(error).partition("\n")[0] for error in heard] == ["this peer has stopped: the organiser has banned you"]
