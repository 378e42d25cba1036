"""The benchmark of membership counts what it says it counts."""

from collab.types import PeerId
from scripts.bench_membership import KEEPERS, Meter, Swarm

PEERS = [PeerId(f"peer {number}") for number in range(20)]


def meter() -> Meter:
    made = Meter()
    for peer in PEERS:
        made.add(peer)
    return made


def test_each_byte_counts_for_who_sends_it_and_for_each_keeper_that_takes_it() -> None:
    counted = meter()
    counted.note(PEERS[0], "key", 100, KEEPERS)
    keepers = [peer for peer in PEERS[1:] if counted.num_bytes[peer]]
    assert len(keepers) in (KEEPERS, KEEPERS - 1), "who keeps it itself sends nothing to itself"
    assert counted.num_bytes[PEERS[0]] == 100 * len(keepers)
    assert all(counted.num_bytes[keeper] == 100 for keeper in keepers)


def test_one_keepers_answer_costs_one_and_different_ones_are_asked() -> None:
    counted = meter()
    for peer in PEERS:
        counted.note(peer, "key", 100, 1)
    assert sum(counted.num_bytes.values()) <= 2 * 100 * len(PEERS)
    askers = {peer for peer in PEERS if counted.num_bytes[peer] <= 100}
    assert len(PEERS) - len(askers) <= KEEPERS
    assert sum(counted.num_bytes[peer] > 200 for peer in PEERS) >= 2, "not all ask the same one"


def test_a_crowd_costs_each_peer_less_than_a_swarm_a_third_as_large_in_which_everybody_reads_everything() -> None:
    crowd = Swarm(24, seed=1, epoch_s=30.0).run(1)
    few = Swarm(8, seed=1, epoch_s=30.0).run(1)
    assert crowd["bytes_per_s_median"] < few["bytes_per_s_median"] / 3
    assert crowd["epochs_behind_most"] <= 1
    assert crowd["peers_whose_count_is_off_by_a_twentieth"] <= 1


def test_leases_cost_each_of_many_no_more_than_each_of_a_few_and_no_block_is_trained_twice() -> None:
    many = Swarm(24, seed=1, epoch_s=30.0, pass_s=300.0).run(2)
    few = Swarm(6, seed=1, epoch_s=30.0, pass_s=300.0).run(2)
    for figures in (many, few):
        assert figures["blocks_trained"] > 500
        assert figures["trained_again"] == figures["without_lease"] == 0
    assert 0 < many["leases_bytes_per_s_mean"] < 1.2 * few["leases_bytes_per_s_mean"]
