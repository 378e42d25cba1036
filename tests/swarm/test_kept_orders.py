"""The owner's orders on a disk: whole, damaged, and of somebody else."""

import errno
import os
from pathlib import Path

import msgpack
import pytest

from collab.config import parse_run
from collab.metrics.records import Event, Notice
from collab.swarm.bundle import Bundle
from collab.swarm.mandate import Mandate
from collab.swarm.order_exchange import OrderExchange, read_orders, restore_orders, write_orders
from collab.swarm.orders import OrderBook
from collab.swarm.progress import SwarmView
from collab.swarm.statements import Amend, End
from tests.fakes import NOW, FakeNetwork, FakeObserver, make_ports, run
from tests.swarm.people import PEOPLE

OWNER, STRANGER = PEOPLE[0], PEOPLE[1]
RUN = parse_run(
    "{run_id: abc, task: {name: image_classification}, optimizer: {learning_rate: 0.1},"
    " strategy: {name: dedloc, target_batch_size: 64}}",
    origin="the test",
)


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


DAMAGED = [b"", b"\x00" * 300, b"nonsense", msgpack.packb(list(book().packed))[:-20], msgpack.packb([1]), b"\xc0"]


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders", book())
    ours = mandate()
    assert restore_orders(tmp_path / "orders", ours) == ""
    assert ours.book == book()
    assert restore_orders(tmp_path / "none", ours) == "", "nobody has ever ordered anything"


@pytest.mark.parametrize("content", [*DAMAGED, of_another_owner()])
def test_a_file_that_cannot_be_used_is_put_aside_and_said_and_nothing_is_written_over_it(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "orders"
    for number in (1, 2):
        path.write_bytes(content)
        ours = mandate()
        trouble = restore_orders(path, ours)
        assert f"the organiser's orders in {path} cannot be used" in trouble
        assert f"orders.unusable-{number}" in trouble
        assert ours.book.orders == ()
        write_orders(path, book())
    assert [(tmp_path / f"orders.unusable-{number}").read_bytes() for number in (1, 2)] == [content] * 2
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
