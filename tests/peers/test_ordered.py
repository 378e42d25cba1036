"""What ``collab-peer status`` shows of the organiser's orders, and whom it asks for them."""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from collab.config import parse_run
from collab.net.base import Stream
from collab.net.wire import Message
from collab.swarm.bundle import Bundle
from collab.swarm.mandate import Mandate
from collab.swarm.order_exchange import ORDERS_PROTOCOL, OrderExchange
from collab.swarm.progress import SwarmView
from collab.swarm.statements import Amend, Ban, End, Pardon, Rollback, Statement
from collab.types import PeerId, Role
from peers.ordered import NOBODY_ANSWERED, learn_orders, order_lines, orders_report
from peers.status import status_report, table
from tests.fakes import NOW, FakeNetwork, make_ports, run
from tests.swarm.people import PEOPLE, record

OWNER, EVE, BOB = PEOPLE[0], PEOPLE[1].peer_id, PEOPLE[2].peer_id
RUN = parse_run(
    "{run_id: abc, until_epoch: 5000, task: {name: image_classification}, optimizer: {learning_rate: 0.1},"
    " strategy: {name: dedloc, target_batch_size: 64}}",
    origin="the test",
)
BUNDLE = Bundle(RUN, {}, OWNER.peer_id)
WEEK_S = 7 * 86400.0


def mandate_of(*said: Statement) -> Mandate:
    mandate = Mandate(BUNDLE)
    for what in said:
        mandate.take(len(mandate.book.orders), [mandate.book.signed(what, OWNER, NOW)])
    return mandate


def report_of(*said: Statement, epoch: int = 100) -> dict[str, Any]:
    return dict(json.loads(json.dumps(orders_report(mandate_of(*said), RUN, epoch, NOW))))


def test_without_orders_the_run_file_is_in_force() -> None:
    report = report_of()
    assert (report["count"], report["amendments"], report["bans"], report["rollback"]) == (0, [], [], None)
    assert order_lines(report) == ["in force: learning rate 0.1, target batch 64; ends at epoch 5000"]


def test_amendments_are_shown_with_their_epoch_and_what_is_in_force_now() -> None:
    report = report_of(
        Amend(from_epoch=90, learning_rate=0.05),
        Amend(from_epoch=100, minimum_version="0.1.0"),
        Amend(from_epoch=101, target_batch_size=128, learning_rate=0.2),
        End(at_epoch=300),
    )
    assert (report["learning_rate"], report["target_batch_size"], report["minimum_version"]) == (0.05, 64, "0.1.0")
    assert [(what["from_epoch"], what["is_planned"]) for what in report["amendments"]] == [
        (90, False), (100, False), (101, True),
    ]  # fmt: skip
    assert (report["until_epoch"], report["ordered_end"]) == (300, 300)
    assert order_lines(report) == [
        "in force: learning rate 0.05, target batch 64, version 0.1.0 at least; ends at epoch 300",
        "ordered by the run's owner:",
        "  since epoch 90: learning rate 0.05",
        "  since epoch 100: version 0.1.0",
        "  planned from epoch 101 on: learning rate 0.2, target batch 128",
        "  the run ends at epoch 300",
    ]


def test_a_schedule_is_told_beside_the_rate_that_it_changes() -> None:
    run_ = RUN.model_copy(update={"schedule": RUN.schedule.model_copy(update={"warmup_epochs": 200})})
    report = orders_report(Mandate(Bundle(run_, {}, OWNER.peer_id)), run_, 99, NOW)
    assert (report["learning_rate"], report["scheduled_learning_rate"]) == (0.1, 0.05)
    assert order_lines(report)[0].startswith("in force: learning rate 0.1 (0.05 by the schedule), target batch 64")


def test_what_a_rollback_has_made_void_is_not_shown_any_more() -> None:
    report = report_of(Amend(from_epoch=150, learning_rate=9.0), Rollback(to_epoch=80, lineage="a" * 64))
    assert report["amendments"] == []
    assert report["rollback"] == {"to_epoch": 80, "said_at": NOW}
    assert "  went back to epoch 80, ordered at 2023-11-14 22:13 UTC" in order_lines(report)


def test_bans_in_force_are_shown_with_who_why_and_until_when() -> None:
    report = report_of(
        Ban(who=EVE, reason="spam", name="eve\x1b[2J"),
        Ban(who=BOB, reason="noise", until_s=NOW + WEEK_S),
        Ban(who="x", reason="over by itself", until_s=NOW - 1),
        Ban(who="y", reason="pardoned"),
        Pardon(who="y"),
    )
    assert report["bans"] == [
        {"who": EVE, "name": "eve\x1b[2J", "reason": "spam", "until": None},
        {"who": BOB, "name": None, "reason": "noise", "until": NOW + WEEK_S},
    ]
    assert order_lines(report)[2:] == [
        f"  banned for good: eve?[2J ({EVE}): spam",
        f"  banned until 2023-11-21 22:13 UTC: {BOB}: noise",
    ]


def test_status_shows_orders_or_that_nobody_knows_them() -> None:
    status = status_report("r", SwarmView((), NOW), {})
    assert "in force" not in table(status)
    assert f"banned for good: {EVE}: spam" in table(status | {"orders": report_of(Ban(who=EVE, reason="spam"))})
    assert NOBODY_ANSWERED in table(status | {"orders": None})


def test_status_shows_which_peers_are_older_than_was_ordered() -> None:
    """A backbone goes on, also when it is too old, until another one does its work."""
    versions = {"old": "0.1.0", "liar": "\x1b[2J", "silent": "", "new": "0.10.0"}
    one = replace(record(0), role=Role.BACKBONE)
    records = (replace(one, peer=PeerId(name), name=name, version=said) for name, said in versions.items())
    status = status_report("r", SwarmView(tuple(records), NOW), {})
    assert {peer["name"]: peer["version"] for peer in status["peers"]} == versions

    def marked(*ordered: Statement) -> list[str]:
        lines = table(status | {"orders": report_of(*ordered)}).splitlines()
        return [f"{line.split()[0]}: {line.partition('  version ')[2]}" for line in lines if "to be upgraded" in line]

    assert marked() == []
    assert marked(Amend(from_epoch=101, minimum_version="0.2.0")) == [], "it is planned"
    assert marked(Amend(from_epoch=90, minimum_version="0.2.0")) == [
        "old: 0.1.0, to be upgraded",
        "liar: ?[2J, to be upgraded",
        "silent: unknown, to be upgraded",
    ]
    assert "to be upgraded" not in table(status | {"orders": None})


def test_a_guest_asks_those_who_let_it_in_and_then_whoever_knows_more() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            knows = {"backbone": mandate_of(End(at_epoch=9)), "ahead": mandate_of(End(at_epoch=9), End(at_epoch=8))}
            for name, mandate in knows.items():
                ports = make_ports(network.join(name))
                await OrderExchange(ports, mandate, lambda: SwarmView((), NOW), None).serve()

            def view(*names: str) -> SwarmView:
                one = replace(record(0), orders=2, role=Role.BACKBONE)
                return SwarmView(tuple(replace(one, peer=PeerId(name)) for name in names), NOW)

            async def learned(view: SwarmView, *let_in: str) -> int | None:
                started = SimpleNamespace(ports=make_ports(network.join("guest")), bootstrap_peers=let_in)
                mandate = Mandate(BUNDLE)
                is_told = await learn_orders(cast(Any, started), mandate, view)
                return len(mandate.book.orders) if is_told else None

            assert await learned(view(), "backbone") == 1
            assert await learned(view("ahead", "backbone"), "backbone") == 2
            assert await learned(view("ahead"), "gone") == 2
            assert await learned(view("gone"), "gone") is None

            async def lie(stream: Stream) -> None:
                await stream.receive(timeout_s=1)
                fields = {"count": 1, "mark": "m", "start": 0, "orders": [b"forged"]}
                await stream.send(Message("orders", fields), timeout_s=1)
                await asyncio.sleep(1)

            await network.join("liar").serve(ORDERS_PROTOCOL, lie)
            assert await learned(view("backbone"), "liar") == 1

    run(main())
