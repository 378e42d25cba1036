"""Orders that cross each other, and those that are given where a disk is full or a backbone does not answer."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collab.errors import BootstrapFailed, ConfigError
from collab.net.base import Stream
from collab.net.errands import FIRST_S
from collab.net.wire import Message
from collab.swarm.identity import Identity
from collab.swarm.mandate import Mandate
from collab.swarm.order_exchange import ORDERS_PROTOCOL, OrderExchange, read_orders
from collab.swarm.orders import OrderBook
from collab.swarm.progress import SwarmView
from collab.swarm.statements import Ban, End, Statement
from collab.types import PeerId, Role
from peers import owner, passing_key
from peers.commanding import ban
from peers.organising import init_run
from peers.owner import Estate, Session, open_to_order
from peers.places import ORDERS
from tests.fakes import NOW, FakeNetwork, make_ports, run
from tests.swarm.people import PEOPLE, record

OWNER = Identity.from_seed(b"o" * 32)
EVE, BOB = PEOPLE[1].peer_id, PEOPLE[2].peer_id
START_S = 1.0
"""That a command takes to find out who is there."""
Opening = Callable[..., AbstractAsyncContextManager[Any]]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a run whose owner's key is always the same, and with it the marks of orders."""
    directory = tmp_path / "run"
    (directory / "backbone").mkdir(parents=True)
    (directory / "owner.key").write_bytes(OWNER.to_libp2p())
    init_run(directory, "a-run")
    (directory / "backbone" / "addresses.json").write_text('["/ip4/127.0.0.1/tcp/1/p2p/x"]')
    return directory


def mandate_of(directory: Path) -> Mandate:
    return Mandate(Estate.at(directory).bundle)


def kept(directory: Path) -> Mandate:
    mandate = mandate_of(directory)
    mandate.take(0, read_orders(directory / ORDERS))
    return mandate


@asynccontextmanager
async def nobody(*_: Any) -> AsyncIterator[Any]:
    await asyncio.sleep(START_S)
    raise BootstrapFailed("none of the addresses answered")
    yield


def into(network: FakeNetwork, *bootstrap_peers: str) -> Opening:
    """How a command comes into a network in which these have let it in."""
    numbers = count()

    @asynccontextmanager
    async def start(*_: Any) -> AsyncIterator[Any]:
        await asyncio.sleep(START_S)
        ports = make_ports(network.join(f"organiser-{next(numbers)}"))
        yield SimpleNamespace(ports=ports, identity=PEOPLE[7], bootstrap_peers=tuple(map(PeerId, bootstrap_peers)))

    return start


async def backbone(network: FakeNetwork, directory: Path) -> Mandate:
    """The orders of one that serves."""
    mandate = mandate_of(directory)
    ports = make_ports(network.join("backbone"))
    await OrderExchange(ports, mandate, lambda: SwarmView((), NOW), None).serve()
    return mandate


def rival_of(what: Statement, session: Session) -> bytes:
    """The order that a backbone gives at the same moment, and that everybody keeps of the two."""
    book = session.mandate.book
    ours = book.extended([book.signed(what, OWNER, session.now())]).mark

    def counts(packed: bytes) -> bool:
        return OrderBook(book.fingerprint, book.owner).extended([packed]).mark < ours

    return next(filter(counts, (book.signed(End(at_epoch=epoch), OWNER, session.now()) for epoch in count(100))))


async def give_at_once(directory: Path) -> None:
    await asyncio.gather(*(ban(directory, who, reason="noise", days=None) for who in (EVE, BOB)))


def test_of_two_commands_at_once_both_orders_are_kept_where_nobody_answers(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(owner, "start_peer", nobody)
    run(give_at_once(directory))
    assert kept(directory).book.bans().keys() == {EVE, BOB}
    assert capsys.readouterr().err.count("another command gives orders in") == 1


def test_of_two_commands_at_once_the_swarm_hears_both(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            heard = await backbone(network, directory)
            monkeypatch.setattr(owner, "start_peer", into(network, "backbone"))
            await give_at_once(directory)
            assert heard.book.bans().keys() == {EVE, BOB}

    run(main())


@pytest.mark.parametrize("is_meanwhile", [False, True])
def test_an_order_that_another_one_of_the_same_number_has_displaced_is_given_again_after_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_meanwhile: bool
) -> None:
    """A backbone gives one, too, when the run has reached its goal: before ours comes, or while it is on its way."""

    async def main() -> None:
        async with FakeNetwork() as network:
            heard, what = await backbone(network, directory), Ban(who=EVE, reason="noise")
            monkeypatch.setattr(owner, "start_peer", into(network, "backbone"))
            async with open_to_order(directory) as session:
                rival, spoken = rival_of(what, session), count()

                def on_the_way(sender: PeerId, _: PeerId, __: str, message: Message) -> Message:
                    if sender != "backbone" and next(spoken) == 1:
                        heard.take(0, [rival])
                    return message

                if is_meanwhile:
                    network.tamper = on_the_way
                else:
                    heard.take(0, [rival])
                assert await session.say(what)
                assert session.mandate.book == heard.book
            assert [type(order.what) for order in heard.book.orders] == [End, Ban]
            assert kept(directory).book == heard.book

    run(main())
    assert "this one comes after it" in capsys.readouterr().err


def test_what_is_to_be_ready_before_an_order_is_made_ready_for_each_time_that_it_is_signed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> list[str]:
        marks: list[str] = []
        async with FakeNetwork() as network:
            heard, what = await backbone(network, directory), Ban(who=EVE, reason="noise")
            monkeypatch.setattr(owner, "start_peer", into(network, "backbone"))
            async with open_to_order(directory) as session:
                heard.take(0, [rival_of(what, session)])
                await session.say(what, lambda book: marks.append(book.mark))
            assert marks[-1] == heard.book.mark
        return marks

    assert len(set(run(main()))) == 2


def test_helpers_that_never_answer_hold_up_no_order(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can be many of them, and banning such a one is what an organiser wants to do then."""

    async def never(_: Stream) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with FakeNetwork() as network:
            heard = await backbone(network, directory)
            silent = [PeerId(f"a-helper-{number:02d}") for number in range(20)]
            for peer in silent:
                await network.join(peer).serve(ORDERS_PROTOCOL, never)
            monkeypatch.setattr(owner, "start_peer", into(network, "backbone"))
            async with open_to_order(directory) as session:
                helpers = tuple(record(0, peer=peer, role=Role.AUXILIARY) for peer in silent)
                session.view, began_s = SwarmView(helpers, NOW), asyncio.get_running_loop().time()
                assert await session.say(Ban(who=EVE, reason="noise"))
                assert asyncio.get_running_loop().time() - began_s < 2 * FIRST_S
            assert heard.book.bans().keys() == {EVE}

    run(main())


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_swarm_hears_of_a_ban_though_the_disk_is_full(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            heard = await backbone(network, directory)
            monkeypatch.setattr(owner, "start_peer", into(network, "backbone"))
            monkeypatch.setattr(owner, "write_orders", full)
            await ban(directory, EVE, reason="noise", days=None)
            assert heard.book.bans().keys() == {EVE}

    run(main())
    said = capsys.readouterr().err
    assert f"problem: cannot write {directory / ORDERS}: No space left on device; the swarm has the order" in said
    assert "-> free some space" in said


def test_an_order_that_nobody_has_and_no_disk_takes_is_an_error(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "start_peer", nobody)
    monkeypatch.setattr(owner, "write_orders", full)
    with pytest.raises(ConfigError, match="nobody has this order") as refused:
        run(ban(directory, EVE, reason="noise", days=None))
    assert "free some space" in refused.value.hint


def test_where_no_temporary_file_can_be_written_that_is_said(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing_key, "tempfile", SimpleNamespace(TemporaryDirectory=full))
    with pytest.raises(ConfigError, match="No space left") as refused:
        run(ban(directory, EVE, reason="noise", days=None))
    assert "TMPDIR" in refused.value.hint


def test_an_order_is_kept_where_the_backbone_that_let_us_in_says_nothing_more(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            monkeypatch.setattr(owner, "start_peer", into(network, "gone"))
            await ban(directory, EVE, reason="noise", days=None)

    run(main())
    assert kept(directory).book.bans().keys() == {EVE}
    assert "no backbone answers: it is kept" in capsys.readouterr().err
