import json
import os
import subprocess
import sys
from pathlib import Path

from collab.simulation.world import World
from tests.simulation.traffic import digest

ROOT = Path(__file__).parents[2]


def said_in_a_process(hash_seed: str, module: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, check=True, capture_output=True,
                          text=True, env={**os.environ, "PYTHONHASHSEED": hash_seed})
    return done.stdout


def digest_in_a_process(seed: int, hash_seed: str) -> str:
    return said_in_a_process(hash_seed, "tests.simulation.traffic", str(seed))


def test_same_seed_gives_the_same_digest_in_every_run_and_process() -> None:
    digests = {digest(1), digest(1), digest_in_a_process(1, "0"), digest_in_a_process(1, "4711")}
    assert len(digests) == 1
    assert len(digests.pop()) == 64


def test_swarms_in_which_peers_die_have_the_same_digests_whatever_the_seed_of_hashes() -> None:
    one, other = (json.loads(said_in_a_process(hash_seed, "tests.simulation.mortals")) for hash_seed in ("0", "4711"))
    assert one == other
    assert len(set(one.values())) == 5


def test_another_seed_gives_another_digest() -> None:
    assert digest(1) != digest(2)


def test_peers_have_their_own_identity_and_randomness_that_follow_from_the_seed() -> None:
    async def main(ports) -> float:
        return ports.rng.random()

    def outcome(seed: int) -> list[tuple[str, bytes, float]]:
        world = World(seed)
        peers = [world.add_peer(main) for _ in range(4)]
        world.run()
        return [(peer.peer_id, peer.private_key_bytes, peer.result) for peer in peers]

    assert outcome(1) == outcome(1)
    everything = [part for seed in (1, 2) for peer in outcome(seed) for part in peer]
    assert len(set(everything)) == len(everything)
    assert all(peer_id.startswith("12D3KooW") for peer_id, _, _ in outcome(1))
