"""An organiser's commands, and who only looks, go by the word of those who may take part."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from collab.averaging.messages import VERDICT_PROTOCOL
from collab.errors import ConfigError
from collab.net.base import Stream
from collab.net.wire import Message
from collab.swarm.board import ProgressBoard
from collab.swarm.mandate import Mandate
from collab.swarm.order_exchange import OrderExchange, write_orders
from collab.swarm.progress import SwarmView
from collab.swarm.statements import Amend, Ban
from collab.types import Lineage, PeerId, Reachability, Role
from peers import asking, owner, status
from peers.commanding import Change, amend, end
from peers.consent import Load
from peers.organising import init_run
from peers.owner import Estate, open_session
from peers.places import ORDERS, RUN_FILE
from tests.averaging.records import X, make_record
from tests.fakes import NOW, FakeDirectory, FakeNetwork, make_ports, run
from tests.swarm.people import PEOPLE, record

EVE = PEOPLE[1]
FAR = 10**9


class Swarm:
    """A run's directory on its owner's machine, and what is said in its swarm."""

    def __init__(self, directory: Path, network: FakeNetwork) -> None:
        self.directory, self.network, self.said = directory, network, FakeDirectory()
        self.estate = Estate.at(directory)
        self.heard = Mandate(self.estate.bundle)

    async def serve(self) -> None:
        """Be its backbone, as far as orders go."""
        ports = make_ports(self.network.join("backbone"))
        await OrderExchange(ports, self.heard, lambda: SwarmView((), NOW), None).serve()

    async def tell(self, person: int, **changes: Any) -> None:
        fingerprint = self.estate.bundle.fingerprint
        ports = make_ports(self.network.join(PEOPLE[person].peer_id), self.said)
        board = ProgressBoard(ports, PEOPLE[person], fingerprint)
        await board.publish(record(person, fingerprint=fingerprint, **changes))

    def ban_eve(self) -> None:
        book = self.heard.book
        self.heard.take(0, [book.signed(Ban(who=EVE.peer_id, reason="noise"), self.estate.owner, NOW)])

    @asynccontextmanager
    async def start(self, *_: Any) -> AsyncIterator[Any]:
        """How a command comes in."""
        ports = make_ports(self.network.join("organiser"), self.said)
        yield SimpleNamespace(ports=ports, identity=PEOPLE[7], bootstrap_peers=(PeerId("backbone"),))


@asynccontextmanager
async def swarm_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **run_fields: Any) -> AsyncIterator[Swarm]:
    directory = tmp_path / "run"
    (directory / "backbone").mkdir(parents=True)
    init_run(directory, "a-run")
    path = directory / RUN_FILE
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | run_fields))
    (directory / "backbone" / "addresses.json").write_text('["/ip4/127.0.0.1/tcp/1/p2p/x"]')
    async with FakeNetwork() as network:
        swarm = Swarm(directory, network)
        await swarm.serve()
        monkeypatch.setattr(owner, "start_peer", swarm.start)
        yield swarm


@pytest.mark.parametrize("is_closed", [False, True])
def test_no_far_off_epoch_of_the_banned_or_of_strangers_ends_the_run_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    async def main() -> None:
        async with swarm_of(tmp_path, monkeypatch, access="invite_only" if is_closed else "open") as swarm:
            if not is_closed:
                swarm.ban_eve()
            await swarm.tell(1, epoch=FAR)
            await end(swarm.directory, None)
            assert (swarm.heard.until_epoch or 0) < FAR
            await amend(swarm.directory, Change(learning_rate=0.5), 40)  # it is before FAR
            assert swarm.heard.book.amendments()[0].from_epoch == 40

    run(main())


def test_nor_does_who_calls_itself_a_backbone_where_no_trainer_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with swarm_of(tmp_path, monkeypatch) as swarm:
            await swarm.tell(1, epoch=FAR, role="backbone", state="serving", lineage="")
            async with open_session(swarm.estate) as session:
                assert session.epoch() == 0

    run(main())


def test_what_the_owner_has_kept_is_known_before_anybody_s_word_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with swarm_of(tmp_path, monkeypatch) as swarm:
            swarm.ban_eve()
            write_orders(swarm.directory / ORDERS, swarm.heard.book)
            swarm.heard.book = Mandate(swarm.estate.bundle).book
            await swarm.tell(1, epoch=FAR)
            async with open_session(swarm.estate) as session:
                assert session.view.records == ()

    run(main())


def test_where_each_push_is_a_step_the_newest_says_how_far_the_run_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with swarm_of(tmp_path, monkeypatch, strategy={"name": "vc_asgd"}) as swarm:
            for person, epoch in ((1, 5), (2, 5), (3, 9)):
                await swarm.tell(person, epoch=epoch)
            async with open_session(swarm.estate) as session:
                assert session.epoch() == 9

    run(main())


def test_status_shows_a_guest_nothing_of_what_the_banned_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with swarm_of(tmp_path, monkeypatch) as swarm:
            swarm.ban_eve()
            await swarm.tell(1, epoch=FAR)
            await swarm.tell(2, epoch=7)

            @asynccontextmanager
            async def start(*_: Any, **__: Any) -> AsyncIterator[Any]:
                async with swarm.start() as started:
                    yield started, swarm.estate.bundle

            monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
            monkeypatch.setattr(status, "invite_from", lambda _: SimpleNamespace(run_id="a-run"))
            monkeypatch.setattr(status, "start_from_invite", start)
            report = await status._look_as_guest("an invite")
            assert report["epoch"] == 7
            assert [peer["id"] for peer in report["peers"]] == [PEOPLE[2].peer_id]

    run(main())


def test_an_epoch_that_no_order_can_say_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with swarm_of(tmp_path, monkeypatch) as swarm:
            for epoch in (2**64, 10**400):
                with pytest.raises(ConfigError, match="at most"):
                    await end(swarm.directory, epoch)
            assert swarm.heard.book.orders == ()

    run(main())


def test_who_is_asked_to_take_part_is_told_the_traffic_of_the_batch_that_is_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> list[float]:
        steps_s: list[float] = []

        def load_of(*_: Any, step_s: float, **__: Any) -> None:
            steps_s.append(step_s)

        monkeypatch.setattr(asking, "load_of", load_of)
        async with swarm_of(tmp_path, monkeypatch) as swarm:
            await swarm.tell(2, epoch=7, samples_per_s=10.0)
            options: Any = SimpleNamespace(role=Role.TRAINER, allowed_modules=())
            for order in (None, Amend(from_epoch=5, target_batch_size=640)):
                if order is not None:
                    swarm.heard.take(0, [swarm.heard.book.signed(order, swarm.estate.owner, NOW)])
                async with swarm.start() as started:
                    started.verdict = SimpleNamespace(reach=Reachability.CLIENT)
                    await asking.forecast(started, swarm.estate.bundle, options)
            return [*steps_s, float(swarm.estate.bundle.run.strategy.target_batch_size)]

    before_s, amended_s, batch = run(main())
    assert before_s == batch / 10.0
    assert amended_s == 64.0


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_helper_is_told_its_traffic_by_the_last_round_and_loads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    made = make_record(epoch=6, pieces=((X, 0, 1_000_000),))

    async def answer(stream: Stream) -> None:
        question = await stream.receive(timeout_s=1.0)
        is_it = question.get("lineage", str) == made.next_lineage()
        await stream.send(Message("made", {"record": made.to_fields()}) if is_it else Message("unknown"), timeout_s=1.0)

    async def main() -> Load | None:
        async with swarm_of(tmp_path, monkeypatch) as swarm:
            for person in (2, 3):
                await swarm.tell(person, epoch=7, lineage=lineage, samples_per_s=10.0, can_be_dialled=person == 2)
            options: Any = SimpleNamespace(role=Role.AUXILIARY, allowed_modules=())
            async with swarm.start() as started:
                started.verdict = SimpleNamespace(reach=Reachability.DIRECT)
                started.ports.compute.run = lambda _: pytest.fail("PyTorch is loaded")
                return await asking.forecast(started, swarm.estate.bundle, options)

    async def tell_and_serve(swarm: Swarm, person: int, **changes: Any) -> None:
        ports = make_ports(swarm.network.join(PEOPLE[person].peer_id), swarm.said)
        await ports.transport.serve(VERDICT_PROTOCOL, answer)
        fingerprint = swarm.estate.bundle.fingerprint
        board = ProgressBoard(ports, PEOPLE[person], fingerprint)
        await board.publish(record(person, fingerprint=fingerprint, **changes))

    monkeypatch.setattr(Swarm, "tell", tell_and_serve)
    lineage = made.next_lineage() if has_begun else Lineage("of the beginning")
    load = run(main())
    assert (load is not None) is has_begun
    assert load is None or (load.gb_per_day is not None and load.bytes_per_step > 0)


def test_in_runs_of_units_the_traffic_goes_by_what_others_say_of_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with swarm_of(tmp_path, monkeypatch) as swarm:
            monkeypatch.setattr(asking, "VcAsgd", type(swarm.estate.bundle.run.strategy))
            monkeypatch.setattr(asking, "load_of", lambda *_, step_s, **__: steps_s.append(step_s))
            await swarm.tell(2, samples_per_s=10.0, epochs_contributed=4, total_samples=400)
            options: Any = SimpleNamespace(role=Role.TRAINER, allowed_modules=())
            async with swarm.start() as started:
                started.verdict = SimpleNamespace(reach=Reachability.CLIENT)
                await asking.forecast(started, swarm.estate.bundle, options)

    steps_s = list[float]()
    run(main())
    assert steps_s == [10.0]
