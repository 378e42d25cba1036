"""Members that say more than can be checked: their leader goes on at its own pace, and keeps little of it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import pytest

from collab.averaging.conduct import Conductor
from collab.averaging.messages import ROUND_PROTOCOL, Group, Join
from collab.averaging.silence import Silence
from collab.errors import NetworkError
from collab.net.wire import Message
from collab.types import PeerId
from tests.averaging.records import make_record
from tests.averaging.swarm import L, Rounds, random_vectors
from tests.averaging.test_round import WEIGHTS, check_committed
from tests.fakes import FakeCompute, FakeNetwork, run

T = TypeVar("T")

LIAR = PeerId("zz-liar")
JOIN = Join(fingerprint="f", epoch=0, lineage=L, num_elements=0, weight=0.0, can_reduce=False).to_message()
KEYS = [PeerId(f"k{number}") for number in range(255)]
DECIDED = make_record(
    lineage=L, contributors=((KEYS[0], 1.0),), members=(KEYS[0],), pieces=((KEYS[0], 0, 100),), digests=("0" * 64,)
).to_fields()
SEAT: dict[str, Any] = {"promised": [], "voted": [], "value": {}, "decided": DECIDED}
CERTIFICATE = {"ballot": [1, KEYS[0]], "electors": KEYS, "votes": [[key, b"x" * 64] for key in KEYS[:128]]}
PROVED = {"generation": 0, "digests": [], "gaps": [], "seat": SEAT, "certificate": CERTIFICATE}
CHECK_S = 0.018
"""What 128 votes cost."""


class SlowCompute(FakeCompute):
    """Takes its time for each certificate."""

    num_checks = 0

    async def beside(self, work: Callable[[], T]) -> T:
        self.num_checks += 1
        await asyncio.sleep(CHECK_S)
        return work()


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages waited in a leader, each time that it looked."""
    counts: list[int] = []
    take = Conductor._take

    async def counting(self: Conductor, peer: PeerId, heard: Message | NetworkError) -> None:
        counts.append(self._heard.qsize())
        await take(self, peer, heard)

    monkeypatch.setattr(Conductor, "_take", counting)
    return counts


@pytest.mark.parametrize("kind", ["done", "vote"])
def test_a_member_that_floods_its_leader_with_certificates_delays_nobody(kind: str, waiting: list[int]) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a")
            for name in "abc":
                await rounds.add_trainer(name)
            compute = SlowCompute()
            rounds.engines["a"]._verdicts.notary._compute = compute
            liar = network.join(LIAR)

            async def flood() -> None:
                stream = await liar.open(PeerId("a"), ROUND_PROTOCOL, timeout_s=1)
                await stream.send(JOIN, timeout_s=1)
                while (message := await stream.receive(timeout_s=60)).kind != "begin":
                    pass
                Group.from_message(message)
                with suppress(NetworkError):
                    while True:
                        for _ in range(10):
                            await stream.send(Message(kind, PROVED), timeout_s=1)
                        await asyncio.sleep(0.1)

            network.run(flood())
            vectors, loop = random_vectors("abc", 100), asyncio.get_running_loop()
            began_s = loop.time()
            async with asyncio.timeout(60):
                check_committed(await rounds.average(vectors, WEIGHTS), vectors, WEIGHTS)
            assert loop.time() - began_s < 15
            assert 1 <= compute.num_checks <= 3  # it is known by the first one
            assert max(waiting) <= 4 + 1  # a message of each member

    run(main())


def test_who_waits_to_be_heard_is_not_silent_and_our_pause_measures_nothing() -> None:
    now = [0.0]
    silence = Silence(lambda: now[0], 3.0)
    watch = silence.watch()
    for _ in range(40):
        now[0] += 0.5
        watch.heard()
    now[0] += 10.0
    watch.excuse()
    assert watch.left_s() == silence.limit_s() == 1.5
    watch.heard()
    assert silence.limit_s() == 1.5
