"""Homes of 0.16 Mbit/s, where one part takes 1.6 s and a word stands behind two of them, in rounds beside compute."""

from pathlib import Path

import pytest

from collab.averaging.messages import Group
from collab.metrics.backbone_events import RoundPlanned
from collab.metrics.records import Event, MicrobatchDone, RoundEnded
from collab.simulation.peer import SimPeer
from collab.simulation.swarm_file import NoTask, parse_swarm
from collab.simulation.synthetic import SyntheticTask
from peers.simulating import Simulation

SWARM = """\
minutes: 2
task: {name: none, num_elements: 166000, samples: 4000}
averaging: {compression: half, reduction: mean}
strategies: [{strategy: {name: dedloc, target_batch_size: 144, delay: 1}}]
groups:
  - {name: backbone, role: backbone, up_mbit_per_s: 1, down_mbit_per_s: 10}
  - {name: one, seconds_per_microbatch: 4.3, up_mbit_per_s: 0.16, down_mbit_per_s: 0.8}
  - {name: other, seconds_per_microbatch: 4.4, up_mbit_per_s: 0.16, down_mbit_per_s: 0.8}
"""


def events_of(folder: Path) -> list[Event]:
    """All of the two homes and the backbone, in order."""
    swarm, found = parse_swarm(SWARM, origin="the test"), []

    def note(_: SimPeer, event: Event) -> None:
        found.append(event)

    assert isinstance(swarm.task, NoTask)
    simulation = Simulation(swarm, swarm.strategies[0], SyntheticTask(swarm.task), {}, folder)
    simulation.world.subscribe(note)
    simulation.run()
    return found


def of(kind: type[Event], events: list[Event]) -> list:
    return [event for event in events if isinstance(event, kind)]


def test_who_sends_over_a_thin_line_is_not_taken_for_silent_in_its_first_rounds(tmp_path: Path) -> None:
    ended = of(RoundEnded, events_of(tmp_path))
    assert len(ended) >= 2 * 3, "two rounds of three members"
    assert all(event.committed and event.contributors == 2 for event in ended)


def test_after_a_lost_round_the_next_begins_within_a_microbatch_or_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has lost a round knows of it when its microbatch ends: two homes would each come while the other computes."""
    monkeypatch.setattr(Group, "queue_s", 0.0)  # words count as late, so that the first round is lost
    events = events_of(tmp_path)
    lost = [event for event in of(RoundEnded, events) if not event.committed]
    assert lost
    following = min(event.at_s for event in of(RoundPlanned, events) if event.at_s > lost[-1].at_s)
    longest_s = max(event.seconds for event in of(MicrobatchDone, events))
    assert following - lost[-1].at_s < 2 * longest_s
