"""Rounds that take minutes, as large vectors on slow links do: only silence ends them."""

from dataclasses import replace

import pytest

from collab.averaging.assistant import Assistant
from collab.averaging.base import Committed
from collab.averaging.round import RoundEngine
from collab.averaging.timeouts import FIRST, LONGEST_S
from collab.net.wire import Message
from collab.ports import Ports
from collab.types import PeerId
from tests.simulation.rounds import SimRounds, link
from tests.simulation.tapped import TappedTransport

LONGEST_SILENCE_S = 2 * (2 * FIRST.alive_s + LONGEST_S)
"""On a stream of parts, whatever was measured."""


def test_a_round_of_minutes_commits_like_any_other() -> None:
    rounds = SimRounds([link(2), link(2), link(2, 10)], mb=30.0, rounds=1)
    rounds.run()
    assert rounds.seconds[0] > 4 * LONGEST_SILENCE_S
    assert all(isinstance(outcome, Committed) for outcome in rounds.outcomes.values()), rounds.outcomes


def test_rounds_on_narrow_links_are_not_lost_and_use_most_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of 64 KiB would take an eighth of a second here, and a result may be half a minute away."""
    for module in ("collab.simulation.links", "collab.net.memory_stream"):
        monkeypatch.setattr(f"{module}.PIECE_BYTES", 4096)
    rounds = SimRounds([link(4)] * 8, mb=8.0, rounds=3)
    ratios = rounds.run()
    assert min(rounds.seconds) > LONGEST_SILENCE_S / 2
    assert all(isinstance(outcome, Committed) for outcome in rounds.outcomes.values()), rounds.outcomes
    assert max(ratios) <= 1.5, ratios


class Wordless(SimRounds):
    """Between peers 0 and 2 no pulse arrives in time: as if all of them stood in the queue of a thin link."""

    def _engine(self, index: int, ports: Ports, assistant: Assistant) -> RoundEngine:
        async def passing(to: PeerId, message: Message) -> list[Message]:
            apart = {index, *(peer.index for peer in self.world.peers if peer.peer_id == to)} == {0, 2}
            return [] if apart and message.kind in ("working", "wait") else [message]

        async def passed(to: PeerId, message: Message) -> None:
            pass

        tapped = replace(ports, transport=TappedTransport(ports.transport, passing, passed))
        return super()._engine(index, tapped, assistant)


def test_who_sends_parts_is_alive_even_if_its_words_stand_in_a_queue() -> None:
    rounds = Wordless([link(10)] * 3, mb=8.0, rounds=1)
    rounds.run()
    assert rounds.seconds[0] > 2 * FIRST.silence_s
    assert all(isinstance(outcome, Committed) for outcome in rounds.outcomes.values()), rounds.outcomes
    everybody = {peer.peer_id for peer in rounds.world.peers}
    assert all(dict(outcome.record.contributors).keys() == everybody for outcome in rounds.outcomes.values())


def test_a_sender_whose_uplink_falls_in_the_middle_stays_in_the_round_with_what_it_had_sent() -> None:
    rounds = SimRounds([link(25)] * 5, mb=8.0, rounds=5, changes={3: {4: link(4, 25)}, 4: {4: link(25)}})
    rounds.run()
    assert all(isinstance(outcome, Committed) for outcome in rounds.outcomes.values()), rounds.outcomes
    struck = rounds.outcomes[4, 3]
    assert isinstance(struck, Committed)
    slow, gaps = rounds.world.peers[4].peer_id, struck.record.gaps
    assert {peer for peer, _, _ in gaps} == {slow}, "only its own parts were not waited for"
    assert rounds.seconds[3] < 3 * rounds.seconds[2]


def test_many_thin_links_that_have_been_measured_lose_nobody() -> None:
    """One peer sends much faster than the others can take it: what they hear of their leader stands in long queues."""
    rounds = SimRounds([link(4)] * 16 + [link(50)], mb=4.0, rounds=3)
    rounds.run()
    known = {key: outcome for key, outcome in rounds.outcomes.items() if key[1] > 0}
    assert all(isinstance(outcome, Committed) for outcome in known.values()), known
