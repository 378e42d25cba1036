"""Every deadline of a round in one place: what is agreed, what holds before anything is known, and what is measured."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cachetools import TTLCache

from collab.answers import Answers
from collab.averaging.agreement import MAX_MEMBERS
from collab.averaging.silence import Silence, Watch
from collab.errors import TimedOut
from collab.types import PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimeouts:
    """Seconds: how often things are said, what holds before it is measured, and what nobody can measure.

    Measured are answers (``MeasuredTimeouts``), arrivals (``deadlines``), silences (``silence``), and what most members
    took (``laggards``).
    """

    answer_s: float = 3.0
    """Opening a stream, or an answer to a small message, before it is known what that takes: ten of the longest round
    trips."""
    gather_slack_s: float = 1.0
    """How much longer than announced a leader waits for a peer that said it is coming, before it knows their delays."""
    gather_limit_s: float = 60.0
    """Longest wait that a peer can announce; whoever needs longer misses the round."""
    pulse_s: float = 0.5
    """How often everybody in a round tells the leader that it is there, and the leader them."""
    alive_s: float = 2.0
    """The same on streams of parts that carry nothing else."""
    thanks_s: float = 0.5
    """For a member to show that it has the verdict; a round trip across the world, after which its stream is closed."""
    silence_s: float = 3.0
    """Without a sign of life somebody counts as gone, before it is known how long pauses are."""
    stalled_s: float = 60.0
    """Time without anything of use from a side that says it is there, before it is known how long that may take."""
    reform_s: float = 180.0
    """Silence of most of those who decide after which the others go on without them. As long as this a partition may
    last without a split, so all must go by the same; and so long a swarm stands still that has lost most of its peers
    at one blow."""
    orphaned_s: float = 1800.0
    """The same for those who miss the run's backbones, too: more likely they are cut off themselves."""


FIRST = RoundTimeouts()
"""What holds unless somebody says otherwise."""

SHORTEST_S, LONGEST_S = 1.5, 15.0
"""Of any limit: what a busy machine pauses for, and what a round can do without."""
MOVES_SHORTEST_S, MOVES_LONGEST_S = 20.0, 600.0
"""Of the time without anything of use: the queue of a slow link, and a vector of gigabytes that is encoded."""
MOST_MISSED, MOST_SIGNS = 256, 2 * MAX_MEMBERS
"""Peers that are known not to have answered, and those of which it is known when something of theirs came last."""
ASKED_AGAIN_S, MOST_DOUBLINGS = 15.0, 10
"""After the first question in vain, as long as a word in the directory lives; each further one doubles it."""
FORGOTTEN_S = 600.0
"""What was not said again for so long is of somebody who has gone, or of long ago."""


class MeasuredTimeouts:
    """What this peer has seen answers to take; all its rounds share it.

    Answers while parts are under way stand in queues behind them, those between rounds do not, so they are measured
    apart. A peer that did not answer in time has twice as long the next time, until it answers. Source: after RFC 6298
    (TCP's retransmission timer), with the slowest answer in place of mean and deviation: queues make delays that jump.
    """

    def __init__(self, clock: Callable[[], float], fixed: RoundTimeouts) -> None:
        """
        Args:
            clock: monotonic seconds.
        """
        self._clock, self.fixed = clock, fixed
        self.queue_s: Callable[[], float] = lambda: 0.0
        """How long what comes to us stands in queues now."""
        self._loaded = Answers(clock, shortest_s=SHORTEST_S, longest_s=LONGEST_S)
        self._quiet = Answers(clock, shortest_s=SHORTEST_S, longest_s=LONGEST_S)
        self._missed: TTLCache[PeerId, tuple[int, float]] = TTLCache(MOST_MISSED, FORGOTTEN_S, clock)
        """How often, and when last."""
        self._signs_s: TTLCache[PeerId, float] = TTLCache(MOST_SIGNS, FORGOTTEN_S, clock)
        self.moves = Silence(
            clock, fixed.stalled_s, shortest_s=min(MOVES_SHORTEST_S, fixed.stalled_s), longest_s=MOVES_LONGEST_S
        )
        """Pauses in which a round brought nothing of use."""

    def answered(self, seconds: float) -> None:
        """An answer took so long; one that took longer than anybody waits for is of a peer that was frozen."""
        if seconds <= self.answer_s():
            self._loaded.add(seconds)

    def showed(self, peer: PeerId) -> None:
        """A peer is alive: it has called us, or something came on a stream of parts, behind which its words queue."""
        self._signs_s[peer] = self._clock()

    def watch(self, peer: PeerId, silence: Silence, *, queue_s: float) -> Watch:
        """How long a peer may be silent whose words share the links with the parts of a round.

        Args:
            queue_s: so long its words may stand behind its own parts.
        """
        return silence.watch(
            other_sign_s=lambda: self._signs_s.get(peer, -math.inf), queue_s=lambda: self.queue_s() + queue_s
        )

    @contextmanager
    def asking(self, peer: PeerId, *, is_quiet: bool = False) -> Iterator[float]:
        """For a question and its answer: how long each step of it may take; takes note of what it took.

        Args:
            is_quiet: no parts are under way, as while a group forms.
        """
        began_s, answers = self._clock(), self._quiet if is_quiet else self._loaded
        try:
            yield self.answer_s(peer, is_quiet=is_quiet)
        except TimedOut:
            self.miss(peer)
            raise
        self._missed.pop(peer, None)
        answers.add(min(self._clock() - began_s, self.answer_s(is_quiet=is_quiet)))  # in time in each of its steps

    def miss(self, peer: PeerId) -> None:
        """``peer`` did not answer, or nobody waits any longer until it does."""
        self._missed[peer] = (self._missed.get(peer, (0, 0.0))[0] + 1, self._clock())

    def has_missed(self, peer: PeerId) -> bool:
        """Whether ``peer`` did not answer what we asked it last, has shown no life since, and is not to be asked again
        yet: it may have been our own link, and nobody goes to the trouble of calling a peer that missed its calls.
        """
        times, at_s = self._missed.get(peer, (0, -math.inf))
        again_s = at_s + ASKED_AGAIN_S * 2.0 ** (min(times, MOST_DOUBLINGS) - 1)
        return at_s >= self._signs_s.get(peer, -math.inf) and self._clock() < again_s

    def responsive(self, peers: Iterable[PeerId]) -> list[PeerId]:
        """In the same order, but those at the end that did not answer."""
        return sorted(peers, key=self.has_missed)

    @property
    def slowest_s(self) -> float | None:
        """Of the answers of late; None before enough have come."""
        return self._loaded.slowest_s

    def answer_s(self, peer: PeerId | None = None, *, is_quiet: bool = False) -> float:
        """For opening a stream, for taking a small message, and for the answer to it."""
        limit_s = (self._quiet if is_quiet else self._loaded).limit_s(self.fixed.answer_s)
        times = min(self._missed.get(peer, (0, 0.0))[0], MOST_DOUBLINGS) if peer is not None else 0
        return min(limit_s * 2.0**times, LONGEST_S) if times else limit_s

    @property
    def rival_s(self) -> float:
        """Silence of a leader after which another one is followed that others have gone to: three signs of life."""
        return 3 * self.fixed.pulse_s

    @property
    def sender_s(self) -> float:
        """Silence of a contributor whose part is missing after which its reducer goes on without it: two signs of life
        are lost. Half of ``part_s``, so that the reducer names it before others take the reducer itself for dead.
        """
        return 2 * self.fixed.alive_s + self.answer_s()

    @property
    def part_s(self) -> float:
        """Silence on a stream of parts after which its other side is complained of."""
        return 2 * self.sender_s

    def stalled_s(self, expected_s: float) -> float:
        """Time without anything of use from a side that says it is there.

        Args:
            expected_s: by the plan, for the whole round; one side may wait for another for most of it.
        """
        return min(max(self.moves.limit_s(), 2 * expected_s), MOVES_LONGEST_S)

    @property
    def blame_s(self) -> float:
        """How long a leader that heard of one failure listens to the other members before it judges."""
        slowest_s = self.slowest_s
        return self.fixed.pulse_s + (self.fixed.pulse_s if slowest_s is None else min(2 * slowest_s, LONGEST_S / 5))

    @property
    def verdict_s(self) -> float:
        """How long a member in doubt asks the others before it gives the round up: to open, to ask, and to hear."""
        return 3 * self.answer_s()
