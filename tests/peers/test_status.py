"""What ``collab-peer status`` shows: also of those who were refused, and never markup from strangers."""

import asyncio
import json
import math
from dataclasses import replace

import pytest

from collab.config import parse_run
from collab.data.blocks import BlockPlan
from collab.data.coverage import Coverage
from collab.data.coverage_exchange import serve_coverage
from collab.data.ledger import Ledger
from collab.errors import BadMessage
from collab.metrics.records import PeerRefused
from collab.metrics.refusals import Refusals
from collab.net.base import Stream
from collab.net.errands import Errands
from collab.net.quotas import REPORT_PROTOCOL
from collab.net.refusal_report import MAX_ROWS, fetch_report, serve_report
from collab.net.wire import Message
from collab.swarm.bundle import Bundle
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord, PeerState
from collab.types import Lineage, PeerId, Role
from peers.status import MAX_LINES, ask_for_refusals, ask_how_far, status_report, table
from tests.fakes import FakeClock, FakeNetwork, FakeObserver, run

RUN = "{run_id: abc, task: {name: image_classification}, strategy: {name: dedloc, target_batch_size: 64}}"


def record(name: str, *, role: Role = Role.TRAINER, can_be_dialled: bool = True, shown: str = "") -> PeerRecord:
    return PeerRecord(
        peer=PeerId(name),
        fingerprint="f",
        name=shown or name,
        role=role,
        state=PeerState.TRAINING if role is Role.TRAINER else PeerState.SERVING,
        said_at=0.0,
        can_be_dialled=can_be_dialled,
    )


def refusals_of(*peers: str, reason: str = "too_large") -> Refusals:
    refusals = Refusals(FakeObserver(), FakeClock())
    for peer in peers:
        refusals.observe(PeerRefused(at_s=5.0, epoch=-1, peer=PeerId(peer), reason=reason, text="\x1b[31m"))
    return refusals


def test_status_asks_everybody_who_can_be_dialled_whom_they_refused() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await serve_report(network.join("backbone"), refusals_of("liar", "liar", "other"))
            await serve_report(network.join("trainer"), refusals_of("liar", reason="bad_message"))
            await serve_report(network.join("content"), refusals_of())
            names = ("trainer", "content", "gone")
            view = SwarmView(
                (
                    *(record(name) for name in names),
                    record("client", can_be_dialled=False),
                    record("backbone", role=Role.BACKBONE),
                ),
                10.0,
            )
            found = await ask_for_refusals(network.join("us"), view)
            assert list(found) == ["backbone", "trainer"], "helpers first, and nobody who has nothing to tell"
            report = json.loads(json.dumps(status_report("r", view, found)))
            assert [(row["by"], row["peer"], row["reason"], row["count"]) for row in report["refusals"]] == [
                ("backbone", "liar", "too_large", 2),
                ("backbone", "other", "too_large", 1),
                ("trainer", "liar", "bad_message", 1),
            ]
            lines = table(report).splitlines()
            assert any("too_large" in line and "2 times" in line and "by backbone" in line for line in lines)

    run(main())


def test_the_evaluation_of_a_checkpoint_that_was_rolled_back_is_not_shown() -> None:
    undone = replace(record("late"), epoch=40, eval_epoch=40, eval_loss=0.5, eval_accuracy=0.9)
    back = [replace(record(name), epoch=21, era="back", orders=1) for name in ("a", "b")]
    told = replace(back[0], eval_epoch=20, eval_loss=2.0, eval_accuracy=0.4)

    def shown(*records: PeerRecord) -> tuple[float | None, float | None]:
        report = status_report("r", SwarmView(records, 0.0), {})
        return report["eval_loss"], report["eval_accuracy"]

    assert shown(undone, told, back[1]) == (2.0, 0.4), "as most trainers have it"
    assert shown(undone, told) == (2.0, 0.4), "of as many, those who know more orders"
    assert shown(undone, *back) == (None, None), "nobody has evaluated a state of this era"
    backbone = replace(record("backbone", role=Role.BACKBONE), era="back", orders=1, eval_epoch=20, eval_loss=3.0)
    left = replace(undone, state=PeerState.SYNCING)
    assert shown(left, backbone) == (3.0, None), "without trainers, as backbones have it"


def test_a_dead_trainer_that_still_seems_to_be_there_does_not_say_how_far_a_finished_run_is() -> None:
    dead = replace(record("dead"), epoch=3)
    backbone = replace(record("backbone", role=Role.BACKBONE), epoch=51, checkpoint_epoch=51)

    def told(*records: PeerRecord) -> int:
        return int(status_report("r", SwarmView(records, 0.0), {})["epoch"])

    assert told(dead, backbone) == 51
    assert told(dead, replace(backbone, era="back", checkpoint_epoch=40)) == 3, "of another history"
    assert told(*(replace(record(name), epoch=60) for name in ("a", "b")), backbone) == 60
    assert told(*(replace(record(name), epoch=10) for name in ("a", "b")), replace(dead, epoch=52), backbone) == 10


def test_a_swarm_in_which_nobody_was_refused_says_nothing_of_it() -> None:
    report = status_report("r", SwarmView((record("a"),), 0.0), {})
    assert report["refusals"] == []
    assert "refused" not in table(report)


def test_many_refusals_are_counted_and_a_few_are_shown() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await serve_report(network.join("backbone"), refusals_of(*(f"liar-{number}" for number in range(150))))
            view = SwarmView((record("backbone", role=Role.BACKBONE),), 0.0)
            report = status_report("r", view, await ask_for_refusals(network.join("us"), view))
            assert len(report["refusals"]) == MAX_ROWS
            assert f"and {MAX_ROWS - MAX_LINES} more" in table(report)

    run(main())


@pytest.mark.parametrize(
    "row",
    [
        ["liar", "too_large", -1, 1.0, 2.0],
        ["liar", "too_large", 1 << 60, 1.0, 2.0],
        ["liar", "too_large", 1, math.nan, 2.0],
        ["liar", "too_large", 1, 1.0, math.inf],
        ["liar", "too_large", 1.5, 1.0, 2.0],
        ["liar", 7, 1, 1.0, 2.0],
        ["liar"],
    ],
)
def test_a_report_that_makes_no_sense_is_refused(row: list[object]) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:

            async def lie(stream: Stream) -> None:
                await stream.receive(timeout_s=1)
                await stream.send(Message("refusals", {"rows": [row]}), timeout_s=1)
                await asyncio.sleep(1)

            await network.join("liar").serve(REPORT_PROTOCOL, lie)
            us = network.join("us")
            with pytest.raises(BadMessage):
                await fetch_report(us, PeerId("liar"))
            assert await ask_for_refusals(us, SwarmView((record("liar"),), 0.0)) == {}

    run(main())


def test_what_others_say_of_names_reasons_and_times_is_shown_without_harm() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:

            async def lie(stream: Stream) -> None:
                await stream.receive(timeout_s=1)
                row = ["\x1b[2J" + "x" * 300, "obey\x07me", 3, 1.0, 1e300]
                await stream.send(Message("refusals", {"rows": [row]}), timeout_s=1)
                await asyncio.sleep(1)

            await network.join("liar").serve(REPORT_PROTOCOL, lie)
            liar = replace(record("liar", shown="\x1b[31mred\nrow"), lineage=Lineage("\x1b[2J\x1b[H\n"))
            view = SwarmView((liar,), 0.0)
            report = status_report("r", view, await ask_for_refusals(network.join("us"), view))
            text = table(report)
            assert len(text.splitlines()) == 4
            assert not set(text) & {"\x1b", "\x07"}
            assert "an unknown time" in text

    run(main())


def test_status_says_how_windows_of_own_steps_come_out_where_trainers_have_some() -> None:
    few, many = (replace(record(name), period=steps, delay=5.0 * steps) for name, steps in (("a", 2.0), ("b", 4.0)))
    report = status_report("r", SwarmView((few, many, record("c")), 0.0), {})
    assert [(peer["period"], peer["delay"]) for peer in report["peers"]] == [(2.0, 10.0), (4.0, 20.0), (0.0, 0.0)]
    said = "trainers: windows of about 3 own steps, each averaged about 15 steps after its end (medians)"
    assert said in table(report)
    assert "windows" not in table(status_report("r", SwarmView((record("c"),), 0.0), {}))


def test_status_says_how_far_the_swarm_is_with_the_data() -> None:
    run_ = parse_run(RUN, origin="the test")
    plan = BlockPlan.of(1500, digest="a" * 32, seed=run_.seed, microbatch_size=run_.microbatch_size)

    async def main() -> None:
        async with FakeNetwork() as network:
            bundle, known = Bundle(run_, {}), Coverage(plan)
            known.note(3, 0, 0b1110)
            known.note(3, 0, 0b0010)
            ledger = Ledger.for_batches_of(64)
            backbone = network.join("backbone")
            await serve_coverage(backbone, Errands(), bundle.fingerprint, lambda: (known, ledger), lambda: 0.0)
            trainer = replace(record("a"), data=plan.data, data_pass=3)
            view = SwarmView((trainer, record("backbone", role=Role.BACKBONE)), 0.0)
            covered = await ask_how_far(network.join("us"), bundle, view)
            assert covered == {
                "data": plan.data, "pass_number": 3, "share": 3 / 188, "samples": 24, "samples_again": 8,
            }  # fmt: skip
            text = table(status_report("r", view, {}) | {"data": covered})
            assert "data: pass 4, 2 % done: 24 samples trained, 8 of them more than once" in text
            early = network.join("early")
            await serve_coverage(early, Errands(), bundle.fingerprint, lambda: (Coverage(plan), ledger), lambda: 0.0)
            view = SwarmView((trainer, record("early", role=Role.BACKBONE)), 0.0)
            covered = await ask_how_far(network.join("us"), bundle, view)
            assert covered is not None
            assert covered["share"] == 0, "the trainer does not answer"
            text = table(status_report("r", view, {}) | {"data": covered})
            assert "data: pass 1, 0 % done: 0 samples trained" in text
            await serve_coverage(network.join("a"), Errands(), bundle.fingerprint, lambda: (known, ledger), lambda: 0.0)
            covered = await ask_how_far(network.join("us"), bundle, view)
            assert covered is not None
            assert covered["samples"] == 24, "it knows before the backbone does"
            nobody = SwarmView((record("a"), record("backbone", role=Role.BACKBONE)), 0.0)
            assert await ask_how_far(network.join("us"), bundle, nobody) is None
            liar = SwarmView((replace(record("a"), data="samples.x"),), 0.0)
            assert await ask_how_far(network.join("us"), bundle, liar) is None

    run(main())
