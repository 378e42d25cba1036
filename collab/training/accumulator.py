"""The gradient that accumulates between two steps: microbatches go in, one sum is handed over to a round."""

import math
import threading
from collections import deque
from dataclasses import replace

import torch

from collab.strategies.base import HandedOver, Spans
from collab.training.sums import GradientSum, Used
from collab.training.windows import WindowBook
from collab.types import Vector

REMEMBERED = 16
"""Rounds; who is further behind takes over a state."""


class Accumulator:
    """Sums microbatches; what is handed over stays ours until it is settled, and later microbatches add up beside it.

    The worker adds and settles; handing over may happen beside it. Memory: two vectors on the device, three while a
    microbatch is computed beside a round, and two more while it is in doubt what became of a round before.
    """

    def __init__(self, num_elements: int, device: torch.device) -> None:
        self._num_elements, self._device = num_elements, device
        self._lock = threading.Lock()
        self._spare: list[torch.Tensor] = []
        self._held: tuple[GradientSum | None, GradientSum | None, GradientSum | None] = None, None, None
        """What is in doubt, what was handed over since, and what came after it; one tuple, so that readers see all as
        of one moment. What is in doubt is handed over with the rest."""
        self._doubts: dict[str, WindowBook | None] = {}
        """Rounds that may have used what is in doubt, and the windows that they had of it."""
        self.book: WindowBook | None = None
        """Of the round that is under way, if it has several windows."""
        self._settled: deque[str] = deque(maxlen=REMEMBERED)
        """The last rounds of which it is settled what they have used."""
        self._used = Used()
        self._paces: list[tuple[int, int]] = []

    @property
    def is_handed_over(self) -> bool:
        """Whether a sum is on its way into a step."""
        return self._held[1] is not None

    def is_settled(self, round_id: str) -> bool:
        """Whether what a round has used is forgotten already."""
        return round_id in self._settled

    def is_in_doubt(self, round_id: str) -> bool:
        """Whether a round may have used what is kept apart."""
        return round_id in self._doubts

    @property
    def has_windows(self) -> bool:
        """Whether it is known window by window what the round has that is under way."""
        return self.book is not None and self.book.has_ended

    @property
    def num_samples(self) -> int:
        """Of ``sample_ids``."""
        return sum(len(part.sample_ids) for part in self._held if part is not None)

    @property
    def sample_ids(self) -> tuple[int, ...]:
        """Of all that is held, handed over or not, in order."""
        return tuple(sample_id for part in self._held if part is not None for sample_id in part.sample_ids)

    def held(self) -> torch.Tensor | None:
        """[num_elements] sum of all that is held, handed over or not, with the swarm's means in the place of what they
        are the means of; None: nothing is held. A copy.
        """
        with self._lock:
            totals = [part.total for part in self._held if part is not None]
            if self.book is not None and self.book.means:
                totals.append(torch.from_numpy(self.book.correction).to(self._device))
            if self.book is not None:
                self.book.has_news = False
            return torch.stack(totals).sum(0) if totals else None

    def buffer(self) -> torch.Tensor:
        """[num_elements] float32 of any values, for the gradient of the next microbatch."""
        return self._spare.pop() if self._spare else torch.empty(self._num_elements, device=self._device)

    def add(self, microbatch: GradientSum, *, is_sound: bool) -> bool:
        """Add one microbatch, whose total is a ``buffer`` that is given away, if it is finite; whether it was.

        Args:
            is_sound: whether the loss, as far as it is known, is finite.
        """
        total = microbatch.total
        with self._lock:
            in_doubt, handed_over, before = self._held
            if before is not None:
                total.add_(before.total)
            if not is_sound or not _is_finite(total):
                self._spare.append(total)
                return False
            if before is not None:
                microbatch = before.with_(microbatch, total)
                self._spare.append(before.total)
            self._held = in_doubt, handed_over, microbatch
        return True

    def hand_over(self) -> HandedOver:
        """The mean of what is accumulated, copied to the CPU; what was handed over before and not settled goes with it.

        Raises:
            ValueError: no samples yet.
        """
        with self._lock:
            in_doubt, earlier, later = self._held
            ours = self._together(earlier, later)
            self._held = in_doubt, ours, None
            if in_doubt is not None and ours is not None:
                return in_doubt.with_(ours, in_doubt.total + ours.total).mean()
            whole = in_doubt or ours
        if whole is None:
            raise ValueError("there is no gradient before the first microbatch")
        return whole.mean()

    def begin_windows(self, book: WindowBook) -> None:
        """A round of several windows is to begin; until its first one is over nothing is handed over."""
        with self._lock:
            self.book = book

    def close(self, book: WindowBook, row: int, at: int) -> None:
        """Hand over what has come since the window before was over; of the first one, all that there is.

        Args:
            at: microbatches since ``begin_windows``.
        """
        with self._lock:
            if book is not self.book:
                return  # its round is over
            in_doubt, handed_over, later = self._held
            piece = later
            if row == 0:
                piece = handed_over = self._together(handed_over, later)
                later = None
                if in_doubt is not None:
                    piece = in_doubt if piece is None else in_doubt.with_(piece, in_doubt.total + piece.total)
            book.add(piece, at)
            self._held = in_doubt, self._together(handed_over, later), None

    def put(self, book: WindowBook, row: int, mean: Vector | None, at: int) -> None:
        """The mean of a window takes its place, or leaves it again (None)."""
        with self._lock:
            if book is self.book:
                book.put(row, mean, at)

    @property
    def has_news(self) -> bool:
        """Whether ``held`` has other means in it than when it was last asked."""
        return self.book is not None and self.book.has_news

    def take_paces(self) -> list[tuple[int, int]]:
        """See ``Replica``."""
        with self._lock:
            paces, self._paces = self._paces, []
        return paces

    def take_used(self) -> Used:
        """What of ours has gone into steps since this was last asked; samples of which something is held have not."""
        with self._lock:
            used, self._used = self._used, Used()
        return used

    def doubt(self, rounds: frozenset[str]) -> None:
        """What was handed over is accumulated as before, apart from what comes later: ``rounds`` may have used it."""
        with self._lock:
            in_doubt, handed_over, later = self._held
            book, self.book = self.book, None
            if not rounds:
                self._held = in_doubt, None, self._together(handed_over, later)
                return
            self._doubts |= dict.fromkeys(rounds, book)
            self._held = self._together(in_doubt, handed_over), None, later

    def forget(self) -> None:
        """All of it is worthless: it belongs to a history that does not count any more."""
        with self._lock:
            self._held, self._doubts, self.book = (None, None, None), {}, None

    def move_to(self, device: torch.device) -> None:
        """Keep what is held, and what comes, on another device."""
        with self._lock:
            self._device, self._spare = device, []
            in_doubt, handed_over, later = (
                None if part is None else replace(part, total=part.total.to(device)) for part in self._held
            )
            self._held = in_doubt, handed_over, later

    def drop(self) -> None:
        """What was handed over is worthless; what came later is not."""
        with self._lock:
            in_doubt, _, later = self._held
            self._held = in_doubt, None, later

    def drop_later(self) -> None:
        """What came after what was handed over is worthless."""
        with self._lock:
            in_doubt, handed_over, _ = self._held
            self._held = in_doubt, handed_over, None

    def settle(self, used: Spans, round_id: str = "") -> None:
        """What was handed over is in a step in the elements of ``used``, and accumulated as before elsewhere.

        Where ``round_id`` is in doubt, that is so of what is in doubt.
        """
        with self._lock:
            in_doubt, handed_over, later = self._held
            book, self.book = self.book, None
            if round_id in self._doubts:
                ours, later, book = in_doubt, self._together(handed_over, later), self._doubts[round_id]
            else:
                ours = self._together(in_doubt, handed_over)
            self._doubts = {}
            self._paces += [] if book is None else book.paces()
            if round_id:
                self._settled.append(round_id)
            if ours is None:
                self._held = None, None, later
                return
            left = self._settle(book.pieces(used) if used and book is not None else [(ours, used)], round_id)
            self._held = None, None, self._together(left, later)
            if left is None:
                self._spare = [ours.total]  # one is enough for the next microbatch

    def _settle(self, pieces: list[tuple[GradientSum, Spans]], round_id: str) -> GradientSum | None:
        """What is left of ``pieces``, which together are ours, when a step has used so much of each."""
        left, weight, gone = None, 0.0, Used()
        for piece, used in pieces:
            rest = piece.without(used) if used else piece
            weight += piece.weights.average - rest.weights.average
            if rest.weights.largest > 0:
                left = rest if left is None else left.joined(rest)
            elif piece.sample_ids:
                loss = piece.loss_sum / len(piece.sample_ids)
                gone = gone.with_(Used(piece.sample_ids, piece.sample_epochs, loss))
        rounds = (round_id,) if round_id and weight > 0 else ()
        self._used = self._used.with_(replace(gone, weight=weight, rounds=rounds))
        return None if left is None else replace(left, total=left.total.to(self._device))

    def _together(self, earlier: GradientSum | None, later: GradientSum | None) -> GradientSum | None:
        """Both sums as one, in the total of the earlier; the later is whole."""
        if earlier is None or later is None:
            return earlier or later
        earlier.total.add_(later.total)
        self._spare.append(later.total)
        return earlier.with_(later, earlier.total)


def _is_finite(values: torch.Tensor) -> bool:
    """Whether all of ``values`` are; among them a NaN is lowest and highest. ``isfinite`` takes 20 times as long."""
    lowest, highest = values.aminmax()
    return math.isfinite(lowest) and math.isfinite(highest)
