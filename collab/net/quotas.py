"""How much one peer may ask of us, protocol by protocol: several times what an honest one can, and no more.

Rounds may follow each other every 0.05 s on loopback, and what breaks is tried again after a second; both are counted
in. A peer that needs more than its quota is refused, loses nothing but that stream, and comes again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from collab.averaging.calls import CALL_PROTOCOL
from collab.averaging.history import RESULTS_PROTOCOL
from collab.averaging.messages import PARTS_PROTOCOL, ROUND_PROTOCOL, VERDICT_PROTOCOL
from collab.averaging.plan import LARGEST_PART_ELEMENTS
from collab.averaging.probe import PROBE_PROTOCOL
from collab.averaging.probe_traffic import LARGEST_PART_BYTES
from collab.averaging.standing import STANDING_PROTOCOL
from collab.data.coverage_exchange import COVERAGE_PROTOCOL
from collab.net.buckets import Pace
from collab.net.pieces import PIECE_BYTES
from collab.net.wire import MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES, Largest
from collab.swarm.bundle import BUNDLE_PROTOCOL
from collab.swarm.donation import STATE_PROTOCOL
from collab.swarm.handover import HANDOVER_PROTOCOL
from collab.swarm.order_exchange import ORDERS_PROTOCOL
from collab.swarm.time_sync import PROTOCOL as TIME_PROTOCOL
from collab.swarm.unit_leases import PARAMETERS_PROTOCOL, UNITS_PROTOCOL
from collab.swarm.vouching import VOUCH_PROTOCOL

REPORT_PROTOCOL = "collab/refusals/1"
"""See ``refusal_report``."""
HELLO_PROTOCOL = "collab/hello/1"
"""See ``hello``."""
REACH_PROTOCOL = "collab/reach/1"
"""See ``dial_back``."""
FOR_GUESTS = (
    BUNDLE_PROTOCOL, COVERAGE_PROTOCOL, HELLO_PROTOCOL, ORDERS_PROTOCOL, PROBE_PROTOCOL, REACH_PROTOCOL,
    REPORT_PROTOCOL, TIME_PROTOCOL,
)  # fmt: skip
"""What whoever only looks at a run may ask."""
SMALL_BYTES = 1 << 10
"""Messages with less payload are counted; larger ones are limited by the link."""
ANSWERS = Pace(burst=1000, per_s=200.0)
QUESTION = Largest(header_bytes=4 << 10, payload_bytes=0)
"""Some numbers, a fingerprint and a lineage: 0.3 KB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Of one peer under one protocol."""

    open_streams: int
    """At once."""
    streams: Pace
    """New ones."""
    messages: Pace = ANSWERS
    """Small ones over all its streams. Enough for any protocol of question and answer."""
    largest: Largest = QUESTION
    """What it may send us in one message."""


OTHER = Quota(
    open_streams=256,
    streams=Pace(burst=1024, per_s=128.0),
    messages=Pace(burst=16_000, per_s=8000.0),
    largest=Largest(header_bytes=MAX_HEADER_BYTES, payload_bytes=MAX_PAYLOAD_BYTES),
)
"""Of protocols that are not named: tests and benchmarks have their own."""

QUOTAS: Mapping[str, Quota] = {
    # A member has one stream, and keeps it from round to round; up to four attempts may follow each other while we
    # still lead the first. It pulses twice a second, and says some ten things in a round; a member that misses all
    # others of 2,048 says so at once. The longest is RESUME with 4,096 jobs: 0.6 MB.
    ROUND_PROTOCOL: Quota(
        open_streams=16,
        streams=Pace(burst=64, per_s=8.0),
        messages=Pace(burst=4000, per_s=1000.0),
        largest=Largest(header_bytes=MAX_HEADER_BYTES, payload_bytes=0),
    ),
    # One stream for each of our jobs, kept from round to round; each reducer that is lost gives us at most one job
    # more, and of 64 members fewer than half can be lost in a round. Of small messages most are acknowledgements of
    # 256 KB: 8,000 a second are 16 Gbit/s. A header holds the samples behind 5,000 runs of elements.
    PARTS_PROTOCOL: Quota(
        open_streams=64,
        streams=Pace(burst=128, per_s=32.0),
        messages=Pace(burst=16_000, per_s=8000.0),
        largest=Largest(header_bytes=64 << 10, payload_bytes=4 * LARGEST_PART_ELEMENTS + 1024),
    ),
    # One for each attempt of a leader with whom we do not stand: 20 a second on loopback.
    CALL_PROTOCOL: Quota(open_streams=16, streams=Pace(burst=400, per_s=100.0)),
    # One word for each microbatch, which takes a millisecond at least; a new stream a second after the last one broke,
    # and the broken one stays until libp2p has noticed. Four words are on their way at most, and answers to calls.
    STANDING_PROTOCOL: Quota(
        open_streams=16, streams=Pace(burst=32, per_s=4.0), messages=Pace(burst=8000, per_s=2000.0)
    ),
    # A leader whom 64 members of an old history join at once asks everybody for each of them.
    VERDICT_PROTOCOL: Quota(open_streams=128, streams=Pace(burst=512, per_s=64.0)),
    # A peer fetches one round after the other, from two donors at a time, and tries again after a second.
    RESULTS_PROTOCOL: Quota(open_streams=8, streams=Pace(burst=64, per_s=8.0)),
    # A newcomer has one stream to each donor; a backbone one for a checkpoint and one for a goodbye. It asks again each
    # half second. A donor serves four, and two of one peer (``donation.py``). Small messages are questions for
    # a megabyte and acknowledgements of 256 KB: 4,000 a second are 8 Gbit/s. A download that is begun anew opens its
    # streams before those of the old one are known to be closed.
    STATE_PROTOCOL: Quota(
        open_streams=8, streams=Pace(burst=64, per_s=8.0), messages=Pace(burst=8000, per_s=4000.0)
    ),
    # A question for each unit, and for more time; a unit may take a tenth of a second. Who has none asks each second.
    UNITS_PROTOCOL: Quota(open_streams=8, streams=Pace(burst=256, per_s=64.0)),
    # A pull and a push for each unit, in pieces.
    PARAMETERS_PROTOCOL: Quota(
        open_streams=8,
        streams=Pace(burst=256, per_s=64.0),
        largest=Largest(header_bytes=4 << 10, payload_bytes=PIECE_BYTES),
    ),
    # Once in a process's life each; a process that cannot start is started again every few seconds.
    BUNDLE_PROTOCOL: Quota(open_streams=4, streams=Pace(burst=16, per_s=1.0)),
    TIME_PROTOCOL: Quota(open_streams=4, streams=Pace(burst=16, per_s=1.0)),
    # Once for each order that a peer hears of; the organiser brings them, a thousand at most, of 768 bytes.
    ORDERS_PROTOCOL: Quota(
        open_streams=4,
        streams=Pace(burst=32, per_s=1.0),
        largest=Largest(header_bytes=MAX_HEADER_BYTES, payload_bytes=0),
    ),
    HANDOVER_PROTOCOL: Quota(open_streams=4, streams=Pace(burst=16, per_s=1.0)),
    VOUCH_PROTOCOL: Quota(open_streams=4, streams=Pace(burst=16, per_s=1.0)),
    HELLO_PROTOCOL: Quota(open_streams=4, streams=Pace(burst=16, per_s=1.0)),
    REPORT_PROTOCOL: Quota(open_streams=4, streams=Pace(burst=16, per_s=1.0)),
    # When it comes, and when it has taken over a state, at most each ten seconds; an answer of up to 50 KB.
    COVERAGE_PROTOCOL: Quota(open_streams=4, streams=Pace(burst=32, per_s=1.0)),
    # At join, and each quarter of an hour; each costs us a connection to the asker.
    REACH_PROTOCOL: Quota(open_streams=2, streams=Pace(burst=8, per_s=0.2)),
    # The same, but it moves up to 16 MB each way. It is over in five seconds.
    PROBE_PROTOCOL: Quota(
        open_streams=2,
        streams=Pace(burst=24, per_s=0.2),
        messages=Pace(burst=4000, per_s=1000.0),
        largest=Largest(header_bytes=4 << 10, payload_bytes=LARGEST_PART_BYTES),
    ),
}

OFFENCES = Pace(burst=64, per_s=1.0)
"""Refusals that a peer may cause before nothing new is heard from it. A peer whose standing stream we refuse comes
again every second: one whose words we do not understand is refused for ever, and not shut out."""
SHUT_OUT_S = 30.0
"""Then nothing new is heard from it for so long: short, since a peer may have been mended and started again."""
QUIET_PEERS = 1024
"""Peers without an open stream whose use is remembered, about 3 KB each, until they may do everything again anyway; of
more, the first ones are forgotten and begin anew, as under a new identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All of it together."""

    quotas: Mapping[str, Quota] = field(default_factory=lambda: QUOTAS)
    other: Quota = OTHER
    offences: Pace = OFFENCES
    shut_out_s: float = SHUT_OUT_S
    quiet_peers: int = QUIET_PEERS

    def of(self, protocol: str) -> Quota:
        """What one peer may do under ``protocol``."""
        return self.quotas.get(protocol, self.other)

    def refill_s(self) -> float:
        """After which a peer that asks for nothing may do all that a new one may."""
        quotas = (*self.quotas.values(), self.other)
        paces = (self.offences, *(pace for quota in quotas for pace in (quota.streams, quota.messages)))
        return max(pace.burst / pace.per_s for pace in paces)

    def divided_by(self, number: int) -> "Limits":
        """The same with so much less of everything that is counted, but at least one: to see who comes near them."""
        quotas = {protocol: _divided(quota, number) for protocol, quota in self.quotas.items()}
        return replace(self, quotas=quotas, other=_divided(self.other, number))


LIMITS = Limits()


def _divided(quota: Quota, number: int) -> Quota:
    return replace(
        quota,
        open_streams=max(quota.open_streams // number, 1),
        streams=Pace(burst=max(quota.streams.burst // number, 1), per_s=quota.streams.per_s / number),
        messages=Pace(burst=max(quota.messages.burst // number, 1), per_s=quota.messages.per_s / number),
    )
