"""What became of a round: remembered, and asked for when in doubt."""

import asyncio

from collab.averaging.agreement import CommitRecord
from collab.averaging.messages import VERDICT_PROTOCOL
from collab.averaging.timeouts import RoundTimeouts
from collab.averaging.verdicts import REMEMBERED_ROUNDS, Verdicts
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import Lineage, PeerId
from tests.fakes import FakeNetwork, run


def record(round_id: str, epoch: int = 0) -> CommitRecord:
    return CommitRecord(
        round_id=round_id,
        epoch=epoch,
        lineage=Lineage("l"),
        contributors=((PeerId("x"), 1.0),),
        digests=("d",),
    )


def verdicts(network: FakeNetwork, name: str) -> Verdicts:
    return Verdicts(network.join(name), RoundTimeouts())


def test_the_first_verdict_on_a_round_stands() -> None:
    ours = verdicts(FakeNetwork(), "a")
    assert ours.remember("r1", record("r1"))
    assert not ours.remember("r1", None)
    assert ours.remember("r1", record("r1"))
    assert ours.committed(0, Lineage("l"))
    assert ours.remember("r2", None)
    assert not ours.remember("r2", record("r2", epoch=5))
    assert not ours.committed(5, Lineage("l"))


def test_another_record_of_the_same_round_does_not_replace_the_first() -> None:
    ours = verdicts(FakeNetwork(), "a")
    assert ours.remember("r1", record("r1", epoch=1))
    assert not ours.remember("r1", record("r1", epoch=2))
    assert not ours.committed(2, Lineage("l"))


def test_only_the_last_rounds_are_remembered() -> None:
    ours = verdicts(FakeNetwork(), "a")
    for epoch in range(REMEMBERED_ROUNDS + 5):
        ours.remember(f"r{epoch}", record(f"r{epoch}", epoch))
    known = [epoch for epoch in range(REMEMBERED_ROUNDS + 5) if ours.committed(epoch, Lineage("l"))]
    assert known == list(range(5, REMEMBERED_ROUNDS + 5))


def test_a_committed_round_is_only_that_of_its_own_epoch_and_history() -> None:
    ours = verdicts(FakeNetwork(), "a")
    ours.remember("r1", record("r1", epoch=3))
    assert not ours.committed(4, Lineage("l"))
    assert not ours.committed(3, Lineage("other"))


def test_the_round_that_led_to_a_history_is_found_by_it() -> None:
    ours = verdicts(FakeNetwork(), "a")
    ours.remember("r1", record("r1"))
    ours.remember("r2", None)
    assert ours.leading_to(record("r1").next_lineage()) == record("r1")
    assert ours.leading_to(record("r2").next_lineage()) is None


def test_a_member_in_doubt_learns_the_record_from_whoever_has_it() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            doubting, ignorant, witness = (verdicts(network, name) for name in "abc")
            await ignorant.serve()
            await witness.serve()
            ignorant.remember("r1", None)
            witness.remember("r1", record("r1"))
            peers = [PeerId("gone"), PeerId("b"), PeerId("c")]
            assert await doubting.ask(peers, "r1") == record("r1")
            assert await doubting.ask(peers, "r2") is None
            assert await doubting.ask([], "r1") is None

    run(main())


def test_a_record_of_another_round_and_a_garbled_one_are_no_answer() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            for name, fields in (("b", record("r7").to_fields()), ("c", {"round_id": "r1", "epoch": float("inf")})):

                async def lie(stream: Stream, fields: dict[str, object] = fields) -> None:
                    await stream.receive(timeout_s=1)
                    await stream.send(Message("committed", {"record": fields}), timeout_s=1)

                await network.join(name).serve(VERDICT_PROTOCOL, lie)
            assert await verdicts(network, "a").ask([PeerId("b"), PeerId("c")], "r1") is None

    run(main())


def test_a_silent_member_delays_no_other_member_s_answer_and_costs_a_bounded_time() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:

            async def say_nothing(stream: Stream) -> None:
                await asyncio.sleep(3600)

            await network.join("b").serve(VERDICT_PROTOCOL, say_nothing)
            witness = verdicts(network, "c")
            await witness.serve()
            witness.remember("r1", record("r1"))
            doubting = verdicts(network, "a")
            began = asyncio.get_running_loop().time()
            assert await doubting.ask([PeerId("b"), PeerId("c")], "r1") == record("r1")
            assert asyncio.get_running_loop().time() == began
            assert await doubting.ask([PeerId("b"), PeerId("c")], "unknown") is None
            assert 0 < asyncio.get_running_loop().time() - began <= RoundTimeouts().verdict_s

    run(main())
