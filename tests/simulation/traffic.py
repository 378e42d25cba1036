"""A swarm that only talks: what the scale and determinism tests run. As a program it prints the digest of a seed."""

import asyncio
import sys

from collab.errors import NetworkError
from collab.metrics.records import Notice
from collab.net.base import Stream
from collab.net.wire import Message
from collab.ports import Ports
from collab.simulation.churn import Churn
from collab.simulation.links import Link
from collab.simulation.world import World


async def answer(stream: Stream) -> None:
    message = await stream.receive(timeout_s=10)
    await stream.send(Message("pong", {"number": message.get("number", int)}), timeout_s=10)


class Talkers:
    """Each peer, every virtual second: one record to the directory, and a question to each of ``friends`` peers."""

    def __init__(self, *, seed: int, peers: int, seconds: int, friends: int) -> None:
        self.world = World(seed)
        self._seconds, self._friends = seconds, friends
        for number in range(peers):
            self.world.add_peer(self._main, link=Link(latency_s=0.005 * (1 + number % 7), loss=0.01 * (number % 2)))

    async def _main(self, ports: Ports) -> tuple[int, int]:
        await ports.transport.serve("talk", answer)
        await asyncio.sleep(ports.rng.random())
        answered = failed = 0
        for second in range(self._seconds):
            await ports.directory.store(f"progress {ports.rng.randrange(64)}", ports.transport.peer_id, bytes(100),
                                        expires_at=ports.clock.now() + 10, timeout_s=5)
            for peer in ports.rng.sample(self.world.peers, self._friends):
                try:
                    stream = await ports.transport.open(peer.peer_id, "talk", timeout_s=10)
                    await stream.send(Message("ping", {"number": second}, bytes(1000)), timeout_s=10)
                    assert (await stream.receive(timeout_s=10)).get("number", int) == second
                    stream.close()
                    answered += 1
                except NetworkError:
                    failed += peer.peer_id != ports.transport.peer_id
            ports.observer.observe(Notice(at_s=ports.clock.now(), text=f"{answered} answered"))
            await asyncio.sleep(1)
        await asyncio.sleep(5)  # others may still ask
        return answered, failed


def digest(seed: int) -> str:
    """Digest of a small, faulty run."""
    talkers = Talkers(seed=seed, peers=20, seconds=20, friends=3)
    churn = Churn(talkers.world)
    churn.fail_at(peer=3, time_s=5.5, restart_after_s=4)
    churn.freeze_at(peer=4, time_s=7, for_s=5)
    churn.partition_at([[0, 1, 2, 5], [6, 7]], time_s=8, for_s=4)
    churn.corrupt_at(peer=8, time_s=3)
    talkers.world.run()
    if churn.unfired():
        raise RuntimeError(f"did nothing: {churn.unfired()}")
    return talkers.world.digest()


if __name__ == "__main__":
    sys.stdout.write(digest(int(sys.argv[1])))
