"""The owner's orders on a disk: whole, damaged, and of somebody else."""

import asyncio
import errno
import os
from pathlib import Path

import msgpack
import pytest

from collab.config import parse_run
from collab.errors import BadMessage
from collab.metrics.records import Event, Notice
from collab.swarm import order_exchange
from collab.swarm.bundle import Bundle
from collab.swarm.mandate import Mandate
from collab.swarm.order_exchange import FILE_S, OrderExchange, make_way, read_orders, restore_orders, write_orders
from collab.swarm.orders import OrderBook
from collab.swarm.progress import SwarmView
from collab.swarm.statements import Amend, End
from tests.fakes import NOW, FakeNetwork, FakeObserver, make_ports, run
from tests.swarm.people import PEOPLE

OWNER, STRANGER = PEOPLE[0], PEOPLE[1]
TEXT = (
    "{run_id: abc, task: {name: image_classification}, optimizer: {learning_rate: 0.1},"
    " strategy: {name: dedloc, target_batch_size: 64}}"
)
RUN, OTHER_RUN = (parse_run(text, origin="the test") for text in (TEXT, TEXT.replace("64", "128")))


def mandate() -> Mandate:
    return Mandate(Bundle(RUN, {}, OWNER.peer_id))


def book() -> OrderBook:
    said = mandate().book
    for what in (Amend(from_epoch=3, learning_rate=0.5), End(at_epoch=9)):
        said = said.extended([said.signed(what, OWNER, NOW)])
    return said


def of_another_owner() -> bytes:
    theirs = Mandate(Bundle(RUN, {}, STRANGER.peer_id)).book
    return bytes(msgpack.packb([theirs.signed(End(at_epoch=1), STRANGER, NOW)]))


def of_another_run() -> bytes:
    """Of the same owner: somebody has edited the run file."""
    theirs = Mandate(Bundle(OTHER_RUN, {}, OWNER.peer_id)).book
    return bytes(msgpack.packb([theirs.signed(End(at_epoch=1), OWNER, NOW)]))


DAMAGED = [b"", b"\x00" * 300, b"nonsense", msgpack.packb(list(book().packed))[:-20], msgpack.packb([1]), b"\xc0"]


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders", book())
    ours = mandate()
    assert restore_orders(tmp_path / "orders", ours) == ""
    assert ours.book == book()
    assert restore_orders(tmp_path / "none", ours) == "", "nobody has ever ordered anything"


@pytest.mark.parametrize("content", [*DAMAGED, of_another_owner(), of_another_run()])
def test_a_file_that_cannot_be_used_stays_until_others_are_written_there_and_is_put_aside_then(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "orders"
    for number in (1, 2):
        path.write_bytes(content)
        ours = mandate()
        assert f"the organiser's orders in {path} cannot be used" in restore_orders(path, ours)
        assert ours.book.orders == ()
        assert path.read_bytes() == content
        assert make_way(path, book()) == f"what could not be used in {path} lies in orders.unusable-{number} now"
        write_orders(path, book())
        assert make_way(path, book()) == "", "these can be used"
    assert [(tmp_path / f"orders.unusable-{number}").read_bytes() for number in (1, 2)] == [content] * 2
    assert tuple(read_orders(path)) == book().packed


def test_a_run_file_that_is_changed_back_has_its_orders_again(tmp_path: Path) -> None:
    """Whoever edits it finds out when the backbone does not start, or ``status`` says so."""
    path = tmp_path / "orders"
    write_orders(path, book())

    async def begin(changed: Mandate) -> None:
        OrderExchange(make_ports(FakeNetwork().join("a")), changed, lambda: SwarmView((), NOW), path).restore()

    changed, ours = Mandate(Bundle(OTHER_RUN, {}, OWNER.peer_id)), mandate()
    run(begin(changed))
    assert changed.book.orders == ()
    run(begin(ours))
    assert ours.book == book()


def test_a_peer_puts_aside_what_it_cannot_use_when_it_hears_an_order(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    path.write_bytes(b"nonsense")

    async def events() -> list[Event]:
        ports, ours = make_ports(FakeNetwork().join("a")), mandate()
        OrderExchange(ports, ours, lambda: SwarmView((), NOW), path).restore()
        ours.take(0, book().packed)
        assert isinstance(ports.observer, FakeObserver)
        return ports.observer.events

    told = [event for event in run(events()) if isinstance(event, Notice)]
    assert [event.is_problem for event in told] == [True, False]
    assert "orders.unusable-1" in told[1].text
    assert (tmp_path / "orders.unusable-1").read_bytes() == b"nonsense"
    assert tuple(read_orders(path)) == book().packed


def test_a_peer_says_so_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "orders").write_bytes(b"")

    async def events() -> list[Event]:
        ports = make_ports(FakeNetwork().join("a"))
        OrderExchange(ports, mandate(), lambda: SwarmView((), NOW), tmp_path / "orders").restore()
        assert isinstance(ports.observer, FakeObserver)
        return ports.observer.events

    (told,) = run(events())
    assert isinstance(told, Notice)
    assert told.is_problem
    assert "come from the swarm again" in told.hint


def test_a_backbone_that_runs_takes_what_a_command_leaves_on_its_disk(tmp_path: Path) -> None:
    """The command could not reach it, and said that the order is kept."""
    path, whole = tmp_path / "orders", tmp_path / "whole"
    write_orders(whole, book())

    async def main() -> list[Event]:
        ports, ours = make_ports(FakeNetwork().join("a")), mandate()
        following = asyncio.create_task(OrderExchange(ports, ours, lambda: SwarmView((), NOW), None).follow(path))
        try:
            await asyncio.sleep(2 * FILE_S)
            assert ours.book.orders == ()
            path.write_bytes(whole.read_bytes()[:-20])  # a part, of somebody who copies it
            await asyncio.sleep(3 * FILE_S)
            assert ours.book.orders == ()
            path.write_bytes(whole.read_bytes())
            await asyncio.sleep(2 * FILE_S)
            assert ours.book == book()
            longer = book().extended([book().signed(End(at_epoch=8), OWNER, NOW)])
            write_orders(path, longer)
            await asyncio.sleep(2 * FILE_S)
            assert ours.book == longer
        finally:
            following.cancel()
        assert isinstance(ports.observer, FakeObserver)
        return ports.observer.events

    told = [event for event in run(main()) if isinstance(event, Notice)]
    assert ["cannot be used" in event.text for event in told] == [True], "once"


def test_what_could_not_be_read_is_looked_at_again_though_nobody_has_touched_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "orders"
    write_orders(path, book())

    def fails(_: Path) -> list[bytes]:
        raise BadMessage("Input/output error")

    async def main() -> None:
        ours = mandate()
        exchange = OrderExchange(make_ports(FakeNetwork().join("a")), ours, lambda: SwarmView((), NOW), None)
        with monkeypatch.context() as broken:
            broken.setattr(order_exchange, "read_orders", fails)
            following = asyncio.create_task(exchange.follow(path))
            await asyncio.sleep(2 * FILE_S)
        await asyncio.sleep(2 * FILE_S)
        following.cancel()
        assert ours.book == book()

    run(main())


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_orders(tmp_path / "orders", book())

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_orders(tmp_path / "orders", mandate().book)
    assert [path.name for path in tmp_path.iterdir()] == ["orders"]
    assert tuple(read_orders(tmp_path / "orders")) == book().packed
