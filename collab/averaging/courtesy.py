"""When a round that is due is put off, so that whoever is behind catches up.

Where one round follows the other, be it beside microbatches or because they take longer than a batch, whoever is a step
behind would be so for ever: by the time it has what it missed, the next round is under way. The same of a newcomer:
rounds leave next to nothing of the donors' uplinks for the state, and it is too old when it is here. While a round is
put off the others compute on, so what this costs them is a larger batch.
"""

import math
from collections.abc import Callable, Mapping

from collab.averaging.standing import History, Word
from collab.types import Lineage, PeerId

SHARE = 0.1
"""Of the time: for so much of it rounds are put off at the others' expense."""
NEAR_EPOCHS = 2
"""Where rounds go on beside microbatches: who is further behind comes nearer first, by itself."""
ROUNDS = 2.0
"""A round is put off for as long as so many take, and one more for each who is behind: a state is about as much for
each uplink as a round, where four give it, and what a far peer missed takes some ways there and back. Then there is a
microbatch to compute."""
LONGEST_S = 60.0
"""Of this, however many are behind; and what of its share is saved up."""


class Courtesy:
    """Of one leader. Nobody is waited for twice that has not got further meanwhile."""

    def __init__(self, clock: Callable[[], float], *, is_synchronous: bool) -> None:
        """
        Args:
            clock: monotonic seconds.
            is_synchronous: whether trainers wait for their rounds.
        """
        self._clock, self._is_synchronous = clock, is_synchronous
        self._history: History = 0, Lineage("")
        """Whose batch was there last."""
        self._ripe_s = -math.inf
        """Since when it was there."""
        self._called_s: float | None = None
        """When everybody was called to its round, until somebody has taken its step."""
        self._step_s, self._round_s = 0.0, 0.0
        """From one batch to the next, without what was waited; from a call to its step."""
        self._waited_s = 0.0
        """For how long the round of the last batch was put off."""
        self._saved_s = LONGEST_S
        """For how long rounds may be put off now."""
        self._is_over = False
        """Nothing is put off any more until the next batch is there."""
        self._awaited: dict[PeerId, History] = {}
        """For whom the round that is due is put off, and where each was before."""
        self._waited_at: dict[PeerId, History] = {}
        """Where somebody was when a round was put off for it, whether or not it came."""
        self._not_before_s: dict[PeerId, float] = {}
        """Nobody has more than ``SHARE`` of the time for itself: until then none is put off so for it."""

    @property
    def left_s(self) -> float:
        """For how much longer the round that is due may be put off."""
        return max(self._ripe_s + max(self._limit_s(), self._free_s) - self._clock(), 0.0)

    @property
    def _free_s(self) -> float:
        """Since the batch was there: where nobody waits for a round, it may come half as often for who is near."""
        return 0.0 if self._is_synchronous else self._step_s

    def _limit_s(self) -> float:
        """Since the batch was there: for those who have not had their share."""
        if self._saved_s < (ROUNDS + 1) * self._round_s:
            return 0.0
        number = len(self._awaited.keys() - self._in_debt())
        return min((ROUNDS + number) * self._round_s, LONGEST_S, self._saved_s) if number else 0.0

    def _in_debt(self) -> frozenset[PeerId]:
        """Who had had its share when the batch was there."""
        return frozenset(peer for peer, at_s in self._not_before_s.items() if at_s > self._ripe_s)

    def called(self) -> None:
        """Everybody is called to the round that is due."""
        self._called_s = self._clock() if self._called_s is None else self._called_s

    def heard_of(self, history: History) -> None:
        """Somebody speaks of ``history``; the first to do so shows what the round before took."""
        if self._called_s is not None and history[0] == self._history[0] + 1:
            self._round_s, self._called_s = self._clock() - self._called_s, None

    def put_off_for(self, history: History, words: Mapping[PeerId, Word]) -> frozenset[PeerId]:
        """Whom the round of ``history``, whose batch is there, is put off for; nobody: it may begin.

        Args:
            words: what each who stands with us said last.
        """
        if history[0] < self._history[0]:
            return frozenset()  # who speaks of it will hear that it is over
        if self._history != history:
            self._is_ripe(history, words)
        if self._is_over:
            return frozenset()
        for peer, word in words.items():
            if self._waited_at.get(peer) != word.history and self._is_behind(word):
                self._awaited.setdefault(peer, word.history)
        since_s, limit_s, in_debt = self._clock() - self._ripe_s, self._limit_s(), self._in_debt()
        missing = frozenset(
            peer
            for peer in self._awaited
            if peer in words
            and not self._is_here(words[peer])
            and since_s < max(self._free_s, 0.0 if peer in in_debt else limit_s)
        )
        if not missing:
            self._end()
        return missing

    def _is_ripe(self, history: History, words: Mapping[PeerId, Word]) -> None:
        """The batch of ``history`` is there."""
        now_s = self._clock()
        passed_s = now_s - self._ripe_s if self._ripe_s > -math.inf else 0.0
        self._saved_s = min(self._saved_s + SHARE * passed_s, LONGEST_S)
        self._step_s, self._ripe_s, self._history, self._is_over = passed_s - self._waited_s, now_s, history, False
        self._waited_at = {peer: at for peer, at in self._waited_at.items() if peer in words}
        self._not_before_s = {peer: at_s for peer, at_s in self._not_before_s.items() if at_s > now_s}
        self._awaited, self._called_s, self._waited_s = {}, None, 0.0

    def _is_behind(self, word: Word) -> bool:
        behind = self._history[0] - word.epoch
        return behind > 0 and (word.is_syncing if self._is_synchronous else behind <= NEAR_EPOCHS)

    def _is_here(self, word: Word) -> bool:
        """Whether it can come, with something to bring; one that went another way is not waited for."""
        return (word.history == self._history and word.samples > 0) or word.epoch > self._history[0]

    def _end(self) -> None:
        self._is_over = True
        if self._awaited:
            now_s = self._clock()
            self._waited_s = now_s - self._ripe_s
            self._waited_at |= self._awaited
            charged_s = self._waited_s - self._free_s
            if charged_s > 0:
                self._saved_s -= charged_s
                self._not_before_s |= dict.fromkeys(self._awaited, now_s + charged_s * (1 / SHARE - 1))
