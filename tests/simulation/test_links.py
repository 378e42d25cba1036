import math
import random

import pytest

from collab.simulation.links import MIN_RETRANSMIT_S, PIECE_BYTES, Access, Fabric, Flow, Link
from collab.simulation.virtual_time import VirtualLoop

SLOW = Link(up_bytes_per_s=1e5, down_bytes_per_s=1e6, latency_s=0.1)
FAST = Link(up_bytes_per_s=1e6, down_bytes_per_s=1e6, latency_s=0.0)


class Lab:
    """A fabric, and what arrived when."""

    def __init__(self, *links: Link) -> None:
        self.loop = VirtualLoop()
        self.fabric = Fabric(self.loop, random.Random(1))
        self.ends = [Access(link) for link in links]
        self.arrived: list[tuple[str, float]] = []

    def send(self, flow: Flow, name: str, size_bytes: int) -> None:
        while size_bytes > PIECE_BYTES:
            self.fabric.push(flow, PIECE_BYTES, lambda _: None, None)
            size_bytes -= PIECE_BYTES
        self.fabric.push(flow, size_bytes, lambda what: self.arrived.append((what, self.loop.time())), name)

    def run(self, until_s: float = 1000.0) -> dict[str, float]:
        self.loop.call_at(until_s, self.loop.stop)
        self.loop.run_forever()
        self.loop.shut_down()
        return dict(self.arrived)


def test_a_message_takes_the_narrower_link_once_and_both_latencies() -> None:
    lab = Lab(SLOW, FAST)
    lab.send(Flow(lab.ends[0], lab.ends[1]), "up", 50_000)
    lab.send(Flow(lab.ends[1], lab.ends[0]), "down", 50_000)
    arrived = lab.run()
    assert arrived["up"] == pytest.approx(0.5 + 0.1)
    assert arrived["down"] == pytest.approx(0.05 + 0.1), "the other direction is not disturbed"
    assert lab.ends[0].sent_bytes == lab.ends[1].received_bytes == 50_000


def test_an_uplink_takes_turns_so_that_a_small_message_passes_a_large_one() -> None:
    lab = Lab(FAST, FAST, FAST)
    lab.send(Flow(lab.ends[0], lab.ends[1]), "large", 4_000_000)
    lab.send(Flow(lab.ends[0], lab.ends[2]), "small", 1000)
    arrived = lab.run()
    assert arrived["small"] <= 2 * PIECE_BYTES / 1e6 + 0.002
    assert arrived["large"] == pytest.approx(4.001)


def test_two_large_messages_share_an_uplink_evenly() -> None:
    lab = Lab(FAST, FAST, FAST)
    for number in (1, 2):
        lab.send(Flow(lab.ends[0], lab.ends[number]), f"to {number}", 2_000_000)
    arrived = lab.run()
    assert arrived["to 1"] == pytest.approx(4.0, abs=0.1)
    assert arrived["to 2"] == pytest.approx(4.0, abs=0.1)


def test_many_senders_share_a_downlink() -> None:
    lab = Lab(*[FAST] * 5)
    for number in range(1, 5):
        lab.send(Flow(lab.ends[number], lab.ends[0]), f"from {number}", 1_000_000)
    arrived = lab.run()
    assert max(arrived.values()) == pytest.approx(4.0, rel=0.02)
    assert min(arrived.values()) > 3.5


def test_loss_costs_time_and_keeps_everything_in_order() -> None:
    lossy = Link(up_bytes_per_s=1e6, down_bytes_per_s=1e6, latency_s=0.01, loss=0.05)
    lab = Lab(lossy, FAST)
    flow = Flow(lab.ends[0], lab.ends[1])
    for number in range(200):
        lab.send(flow, str(number), 1000)
    arrived = lab.run()
    assert [name for name, _ in lab.arrived] == [str(number) for number in range(200)]
    assert arrived["199"] > 0.2 + 0.01 + MIN_RETRANSMIT_S


def test_a_partition_holds_what_crosses_it_and_releases_it_in_order() -> None:
    lab = Lab(FAST, FAST, FAST)
    lab.fabric.split([[lab.ends[0], lab.ends[2]]])
    across = Flow(lab.ends[0], lab.ends[1])
    lab.send(across, "first", 1000)
    lab.send(across, "second", 1000)
    lab.send(Flow(lab.ends[0], lab.ends[2]), "inside", 1000)
    lab.loop.call_at(50, lambda: lab.fabric.heal(lab.ends))
    lab.loop.call_at(50, lambda: lab.send(across, "third", 0))
    arrived = lab.run()
    assert arrived["inside"] < 1
    assert [name for name, _ in lab.arrived] == ["inside", "first", "second", "third"]
    assert 50 <= arrived["first"] < 50.1


def test_a_link_can_change_while_it_is_used() -> None:
    lab = Lab(FAST, FAST)
    lab.send(Flow(lab.ends[0], lab.ends[1]), "message", 3_000_000)

    def narrow() -> None:
        lab.ends[0].link = SLOW

    lab.loop.call_at(1.0, narrow)
    assert lab.run()["message"] == pytest.approx(1 + 20 + 0.1, rel=0.05)


@pytest.mark.parametrize("wrong", [{"up_bytes_per_s": 0}, {"down_bytes_per_s": -1.0}, {"latency_s": -1}, {"loss": 1.0},
                                   {"latency_s": math.inf}, {"up_bytes_per_s": math.nan}])
def test_impossible_links_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a link needs"):
        Link(**wrong)
