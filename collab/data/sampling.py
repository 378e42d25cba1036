"""Which samples a peer draws next."""

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


class SampleSampler:
    """Endless stream of sample ids of one peer: a fresh permutation per pass.

    The permutation follows from (run seed, peer id, pass) alone, so two peers draw differently, and a peer that comes
    back with its state goes on where it was.
    """

    def __init__(self, num_samples: int, *, seed: int, peer_id: str) -> None:
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}")
        self._num_samples = num_samples
        self._seed = seed
        self._peer_id = peer_id
        self._pass = 0
        self._position = 0
        self._order = self._permutation()

    def next(self, microbatch_size: int) -> tuple[int, ...]:
        """The next ids, exactly ``microbatch_size`` of them; a microbatch may reach into the next pass."""
        if microbatch_size < 1:
            raise ValueError(f"microbatch_size must be at least 1, got {microbatch_size}")
        ids: list[int] = []
        while len(ids) < microbatch_size:
            if self._position == self._num_samples:
                self._pass += 1
                self._position = 0
                self._order = self._permutation()
            end = min(self._num_samples, self._position + microbatch_size - len(ids))
            ids += self._order[self._position:end].tolist()
            self._position = end
        return tuple(ids)

    def state(self) -> dict[str, int]:
        """What :meth:`restore` needs to go on from here."""
        return {"pass": self._pass, "position": self._position, "num_samples": self._num_samples}

    def restore(self, state: Mapping[str, int]) -> None:
        """Go on where ``state`` was taken, by a sampler with the same arguments.

        Raises:
            ValueError: a value is missing or impossible, or the state belongs to another number of samples, so that
                its ids would mean other samples; start a new pass instead.
        """
        try:
            num_passes, position, num_samples = state["pass"], state["position"], state["num_samples"]
        except KeyError as error:
            raise ValueError(f"sampler state has no {error}") from error
        if num_samples != self._num_samples:
            raise ValueError(f"sampler state is for {num_samples} samples, this data has {self._num_samples}")
        if num_passes < 0 or not 0 <= position <= num_samples:
            raise ValueError(f"sampler state is impossible: pass {num_passes}, position {position}")
        self._pass, self._position = num_passes, position
        self._order = self._permutation()

    def _permutation(self) -> NDArray[np.int64]:
        digest = hashlib.sha256(f"{self._seed}:{self._peer_id}:{self._pass}".encode()).digest()
        generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "big")))
        return generator.permutation(self._num_samples)
