"""Results that make no sense, and errors that nobody expected, in an exchange: somebody always hears of them."""

import asyncio
import logging
from typing import Any

import pytest

from collab.averaging import exchange, reduction
from collab.averaging.base import Committed
from collab.averaging.messages import PARTS_PROTOCOL
from collab.averaging.reduction import Result
from collab.metrics.records import PeerRefused
from collab.net.wire import Message
from collab.types import AnyVector, PeerId
from tests.averaging.butterflies import Failed, Streams, Swarm, members, random_vector, swarm_of
from tests.averaging.swarm import Rounds, random_vectors
from tests.fakes import FakeNetwork, run

NONSENSE = [[5, 3], [[0]], [{}], [0, "a"], [None], [True], [1.0], {"0": 1}, "0", 7]


@pytest.mark.parametrize("missing", NONSENSE, ids=str)
def test_a_result_that_leaves_out_nonsense_speaks_against_its_reducer_at_once(missing: Any) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a", "b", "c")
            for name in "abcd":
                await rounds.add_trainer(name)

            def tamper(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message:
                if (sender, protocol, message.kind) == ("d", PARTS_PROTOCOL, "result"):
                    message.fields["missing"] = missing
                return message

            network.tamper = tamper
            outcomes = await rounds.average(random_vectors("abcd", 60_000))
            took_s = asyncio.get_running_loop().time()
            commits = [outcomes[name] for name in "abc"]
            assert all(isinstance(outcome, Committed) for outcome in commits), commits
            assert took_s < 5.0
            for name in "abc":
                seen = [event for event in rounds.observers[name].events if isinstance(event, PeerRefused)]
                assert ("d", "BadMessage") in {(event.peer, event.reason) for event in seen}

    run(main())


@pytest.mark.parametrize("where", ["taking a result", "returning results", "sending a part", "watching"])
def test_an_unexpected_error_is_logged_and_complained_of(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_to_take(self: exchange.Holding, index: int, result: Result) -> None:
        if self.job.source != self._exchange.me:
            raise RuntimeError("a bug")
        taken(self, index, result)

    def fail_to_encode(self: exchange.Exchange, start: int, stop: int) -> bytes:
        raise RuntimeError("a bug")

    async def fail_to_give(self: reduction.Reduction, index: int) -> Result:
        raise RuntimeError("a bug")

    def fail_to_see(self: reduction.Reduction) -> list[PeerId]:
        raise RuntimeError("a bug")

    taken = exchange.Holding.take
    if where == "taking a result":
        monkeypatch.setattr(exchange.Holding, "take", fail_to_take)
    elif where == "returning results":
        monkeypatch.setattr(reduction.Reduction, "result", fail_to_give)
    elif where == "sending a part":
        monkeypatch.setattr(exchange.Exchange, "encode_part", fail_to_encode)
    else:
        monkeypatch.setattr(reduction.Reduction, "missing", fail_to_see)

    async def talk(swarm: Swarm, network: Streams) -> None:
        vectors: dict[str, AnyVector | None] = {name: random_vector(seed) for seed, name in enumerate("ab")}
        outcome = (await swarm.try_exchange(swarm.group(members("ab"), reducers="a"), vectors))["b"]
        if where == "watching":
            return  # the round goes well all the same
        assert isinstance(outcome, Failed)
        (complaint,) = outcome.complaints
        assert complaint.culprit == "a"
        assert complaint.is_reducer
        assert not complaint.is_hostile  # it may be our own bug

    with caplog.at_level(logging.INFO):
        swarm_of("ab", talk)
    assert "Traceback" in caplog.text
    assert "RuntimeError: a bug" in caplog.text


def test_a_kept_stream_that_breaks_in_mid_round_is_no_reason_to_send_everything_twice() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a", "b", "c")
            for name in "abc":
                await rounds.add_trainer(name)
            first = (await rounds.average(random_vectors("abc", 400_000)))["a"]
            assert isinstance(first, Committed)
            parts = list[str]()

            def tamper(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message | None:
                if (sender, to, protocol, message.kind) == ("b", "c", PARTS_PROTOCOL, "part"):
                    parts.append(message.kind)
                    return None if len(parts) == 4 else message
                return message

            network.tamper = tamper
            outcomes = await rounds.average(random_vectors("abc", 400_000), epoch=1, lineage=first.lineage)
            assert len(parts) >= 4
            assert all(isinstance(outcome, Committed) for outcome in outcomes.values()), outcomes
            events = [event for observer in rounds.observers.values() for event in observer.events]
            assert not [event for event in events if isinstance(event, PeerRefused) and event.reason == "twice"]

    run(main())


def test_a_kept_stream_that_was_closed_between_two_rounds_is_replaced() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a", "b", "c")
            for name in "abc":
                await rounds.add_trainer(name)
            first = (await rounds.average(random_vectors("abc", 1000)))["a"]
            assert isinstance(first, Committed)
            broken = set[tuple[PeerId, PeerId]]()

            def tamper(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message | None:
                if (protocol, message.kind) == (PARTS_PROTOCOL, "round") and (sender, to) not in broken:
                    broken.add((sender, to))
                    return None
                return message

            network.tamper = tamper
            outcomes = await rounds.average(random_vectors("abc", 1000), epoch=1, lineage=first.lineage)
            assert broken
            assert all(isinstance(outcome, Committed) for outcome in outcomes.values()), outcomes
            assert not [e for o in rounds.observers.values() for e in o.events if isinstance(e, PeerRefused)]

    run(main())
