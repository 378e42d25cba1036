"""What one round of a swarm takes, by the closed forms by which leaders plan."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collab.averaging.contribution_plan import Member, Policy, plan_contributions, without_slow_receivers
from collab.averaging.shares import PeerLink, link_seconds
from collab.compression.base import all_codecs
from collab.simulation.residents import Resident
from collab.simulation.swarm_file import BITS, MEGA
from collab.types import PeerId

TRIPS = 12.0
"""Ways between the furthest trainer and the leader that follow one another in a round, beside those of its bytes: word
of the batch, call, answer; opening a stream, joining, BEGIN; done, PREPARE, vote, COMMIT. As near as
``scripts/bench_forecast.py`` can tell."""
FRAMING = 1.06
"""Of the bytes' time: heads, links that fill at the beginning of a round and empty at its end. Found likewise."""
SAMPLE = 1 << 20
"""Elements over which the size of an encoding is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundForecast:
    """One round."""

    seconds: float
    bytes_s: float
    """In which its bytes pass through the links."""
    holds_up: str
    """Whose which link takes longest, in words."""
    codecs: tuple[str, ...]
    """Of what is sent, from the most exact on; then of the result."""
    left_out: tuple[str, ...]
    """Trainers that do not contribute to every round, since nobody waits for their uplinks."""
    uplink_use: float
    """Mean over the trainers, of the round's time."""
    sent_in: Mapping[str, str]
    """By name of each trainer that contributes, the codec of what it sends."""
    bytes_of: Mapping[str, tuple[float, float]]
    """By name, what each sends and receives."""


def plan_round(
    residents: Sequence[Resident],
    *,
    num_elements: int,
    policy: Policy,
    batch_s: float,
    equal_shares: bool = False,
    brings: Mapping[str, float] | None = None,
) -> RoundForecast:
    """A round of these peers, as a leader would plan it that knows every link.

    Args:
        batch_s: in which they compute a batch.
        equal_shares: every peer reduces as much as every other one.
        brings: samples by name of each trainer that has something to bring; None: all have, as fast as they compute.

    Raises:
        ValueError: nobody can reduce, or nobody brings anything.
    """
    sizes = {codec.name: codec.encoded_bytes(SAMPLE) / SAMPLE for codec in all_codecs()}
    encoded = {name: num_elements * size for name, size in sizes.items()}
    members: Sequence[Member] = [_member(resident, brings) for resident in residents]
    if not equal_shares:
        members = without_slow_receivers(members, encoded, policy, batch_s)
    planned = plan_contributions(
        members, num_elements=num_elements, bytes_per_element=sizes, policy=policy, accumulate_s=batch_s
    )
    able = sum(member.can_reduce for member in members)
    equal = [1.0 / able if member.can_reduce else 0.0 for member in members]
    shares = equal if equal_shares else planned.shares.shares
    links = [_link(member, planned.codecs, encoded) for member in members]
    ups, downs = link_seconds(links, shares, encoded[planned.result_codec])
    times = [
        (float(seconds), resident, which)
        for which, column in (("uplink", ups), ("downlink", downs))
        for seconds, resident in zip(column, residents, strict=True)
    ]
    bytes_s, slowest, which = max(times, key=lambda item: item[0])
    rate = slowest.link.up_bytes_per_s if which == "uplink" else slowest.link.down_bytes_per_s
    way_s = max(r.link.latency_s for r in residents) + min(r.link.latency_s for r in residents)
    seconds = FRAMING * bytes_s + TRIPS * way_s
    trainers = [float(up) for up, resident in zip(ups, residents, strict=True) if resident.role == "trainer"]
    return RoundForecast(
        seconds=seconds,
        bytes_s=bytes_s,
        holds_up=f"the {which} of {slowest.name} ({rate * BITS / MEGA:g} Mbit/s)",
        codecs=(*(name for name in sizes if name in set(planned.codecs.values())), planned.result_codec),
        left_out=tuple(str(peer) for peer in planned.excluded),
        uplink_use=math.fsum(trainers) / len(trainers) / seconds,
        sent_in={str(peer): codec for peer, codec in planned.codecs.items()},
        bytes_of={
            resident.name: (float(up) * resident.link.up_bytes_per_s, float(down) * resident.link.down_bytes_per_s)
            for up, down, resident in zip(ups, downs, residents, strict=True)
        },
    )


def _member(resident: Resident, brings: Mapping[str, float] | None) -> Member:
    is_trainer = resident.role == "trainer"
    return Member(
        peer=PeerId(resident.name),
        up_bytes_per_s=resident.link.up_bytes_per_s,
        down_bytes_per_s=resident.link.down_bytes_per_s,
        has_gradient=is_trainer if brings is None else resident.name in brings,
        can_reduce=not resident.client_mode,
        receives=is_trainer,
        work=resident.samples_per_s if brings is None else brings.get(resident.name, 0.0),
    )


def _link(member: Member, codecs: Mapping[PeerId, str], encoded: Mapping[str, float]) -> PeerLink:
    return PeerLink(
        peer=member.peer,
        up_bytes_per_s=member.up_bytes_per_s,
        down_bytes_per_s=member.down_bytes_per_s,
        payload_bytes=encoded[codecs[member.peer]] if member.peer in codecs else 0.0,
        can_reduce=member.can_reduce,
        receives=member.receives,
    )
