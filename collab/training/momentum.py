"""What a peer brings to a round: its mean gradient, or the momentum of its gradients."""

import math
import threading
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from collab.averaging.weights import Weights
from collab.strategies.base import HandedOver, Spans
from collab.types import Vector

DOUBTS = 4
"""Contributions whose rounds are in doubt and that are kept one by one; for older ones the newest stands."""
NEVER = -math.inf
"""Epoch of the last use, for elements that no round has used yet."""


class Outgoing(Protocol):
    """Makes what is sent of what is accumulated, and hears what became of it. Calls may come from any thread."""

    def bring(self, gradient: HandedOver, epoch: int) -> HandedOver:
        """What to send after ``epoch`` steps. ``gradient`` is given away: its vector may be changed in place."""
        ...

    def doubt(self, rounds: frozenset[str]) -> None:
        """What was brought last is in no step, unless one of ``rounds`` turns out to have used it."""
        ...

    def forget(self) -> None:
        """The history of all that was brought does not count any more."""
        ...

    def settle(self, used: Spans, round_id: str = "") -> None:
        """A step has used what was brought last, or brought to ``round_id`` if that is in doubt, in these elements.

        With no id and nothing used, nothing is known yet.
        """
        ...


class PlainGradient:
    """Sends the mean gradient as it is; keeps nothing."""

    def forget(self) -> None:
        pass

    def bring(self, gradient: HandedOver, epoch: int) -> HandedOver:
        return gradient

    def doubt(self, rounds: frozenset[str]) -> None:
        pass

    def settle(self, used: Spans, round_id: str = "") -> None:
        pass


@dataclass(frozen=True, slots=True)
class _Sent:
    """One contribution."""

    vector: Vector
    weights: Weights | None
    epoch: int

    def brought(self, used: Spans) -> Spans:
        """``used`` without the elements that had no samples, of which nothing was brought."""
        if self.weights is None:
            return used
        empty = _empty_spans(self.weights)
        return tuple(piece for start, stop in used for piece in _outside(start, stop, empty))


class WorkerMomentum:
    """Sends a running mean of the peer's gradients, which differs less from the others' than one gradient does.

    Formula, for a contribution after e steps whose elements were last used by the round after e' steps::

        b = beta ^ (e - e')        m' = b m + (1 - b) g        m <- m' in the elements that a step has used

    with g the mean gradient of what is accumulated. A peer that is in every round has b = beta, the source's rule. The
    power makes the memory last equally many *epochs* for everybody: who contributes every k-th round brings k epochs'
    samples at once, and forgets k epochs' worth. After long absence, and when a state was taken over (forwards or
    back), what is left of m is as little as m says about the parameters now. The first contribution is the gradient
    itself (e' is infinitely long ago), as in ``torch.optim.SGD`` with ``dampening``; where weights are equal and nobody
    is missing, it is the same training. Bias correction would be less noisy at first, but is not that.

    A lost round leaves m: the next m' is made anew of it and of all that is accumulated by then. What was sent to a
    round in doubt is kept, so that m becomes that if the round turns out to be history. Each contribution is taken at
    most once, and the elements in which it had no samples never.

    Private to the peer: in no snapshot, in no digest. A restart begins anew.

    Memory: one float32 vector on the CPU, and what was sent last until it is known what became of it (during a round
    the engine holds that one anyway); ``DOUBTS`` more at most while rounds are in doubt. Bringing works in place.

    Source: Karimireddy, He, Jaggi, "Learning from History for Byzantine Robust Optimization" (ICML 2021).
    """

    def __init__(self, beta: float) -> None:
        """
        Args:
            beta: above 0, below 1; the variance of m is about (1 - beta) / (1 + beta) of a gradient's.
        """
        if not 0 < beta < 1:
            raise ValueError(f"beta {beta}: above 0, below 1")
        self._beta = beta
        self._lock = threading.Lock()
        self._momentum: Vector | None = None
        self._used_after: Weights | None = None
        """For each element the number of steps before the one that used it last: here not samples but epochs."""
        self._latest: _Sent | None = None
        self._doubted: deque[tuple[frozenset[str], _Sent]] = deque(maxlen=DOUBTS)

    def forget(self) -> None:
        with self._lock:
            self._momentum = self._used_after = self._latest = None
            self._doubted.clear()

    def bring(self, gradient: HandedOver, epoch: int) -> HandedOver:
        """The momentum as it will be if all of it is used; 0 in elements without samples."""
        with self._lock:
            if self._momentum is not None and self._used_after is not None:
                start = 0
                for length, used_after in self._used_after.runs(0, len(gradient.mean)):
                    kept = self._beta ** max(1.0, abs(epoch - used_after))
                    ours = torch.from_numpy(gradient.mean[start : start + length])
                    ours.lerp_(torch.from_numpy(self._momentum[start : start + length]), kept)
                    start += length
            if gradient.weights is not None:
                for start, stop in _empty_spans(gradient.weights):
                    gradient.mean[start:stop] = 0
            self._latest = _Sent(gradient.mean, gradient.weights, epoch)
        return gradient

    def doubt(self, rounds: frozenset[str]) -> None:
        with self._lock:
            if rounds and self._latest is not None:
                self._doubted.append((rounds, self._latest))

    def settle(self, used: Spans, round_id: str = "") -> None:
        with self._lock:
            if not used and not round_id:
                return
            sent = next((sent for rounds, sent in self._doubted if round_id in rounds), self._latest)
            self._latest = None
            self._doubted.clear()  # of the rounds that were possible after one step, one is history
            if sent is not None and (taken := sent.brought(used)):
                self._take(sent, taken)

    def _take(self, sent: _Sent, taken: Spans) -> None:
        """``sent`` is the momentum in the elements of ``taken``."""
        num_elements = len(sent.vector)
        if taken == ((0, num_elements),):
            self._momentum = sent.vector
        else:  # a new one, since the engine may still read what was sent before
            before = np.zeros(num_elements, np.float32) if self._momentum is None else self._momentum
            self._momentum = before.copy()
            for start, stop in taken:
                self._momentum[start:stop] = sent.vector[start:stop]
        used_after = self._used_after or Weights.uniform(num_elements, NEVER)
        self._used_after = used_after.replaced(taken, float(sent.epoch))


def outgoing(worker_momentum: float) -> Outgoing:
    """By the number in the run file (``averaging.worker_momentum``); 0: gradients."""
    return WorkerMomentum(worker_momentum) if worker_momentum else PlainGradient()


def _empty_spans(weights: Weights) -> Spans:
    """Where there are no samples."""
    edges = (0, *weights.stops)
    return tuple(
        (start, stop) for start, stop, value in zip(edges, weights.stops, weights.values, strict=False) if not value
    )


def _outside(start: int, stop: int, holes: Spans) -> Spans:
    """What of ``start .. stop - 1`` is in none of ``holes``, which are in order."""
    left = []
    for low, high in holes:
        if start < min(low, stop):
            left.append((start, min(low, stop)))
        start = max(start, high)
    if start < stop:
        left.append((start, stop))
    return tuple(left)
