"""What liars send instead of their gradient; they know everything, and act as one."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collab.types import Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """Of one round, before the liars have sent anything."""

    honest: Sequence[Vector]
    """What the others send."""
    weights: Sequence[float]
    """Samples of the others."""
    own: Vector
    """What one liar would send if it were honest."""
    flipped: Vector
    """The same, of samples whose labels are 9 - label."""
    delayed: Vector
    """The same, at the parameters of ``DELAY_EPOCHS`` before (at first: of the start)."""

    @property
    def mean(self) -> Vector:
        """Of the honest."""
        mean: Vector = np.average(np.stack(self.honest), axis=0, weights=self.weights).astype(np.float32)
        return mean

    @property
    def deviation(self) -> Vector:
        """Standard deviation of each element over the honest."""
        deviation: Vector = np.std(np.stack(self.honest), axis=0).astype(np.float32)
        return deviation


DELAY_EPOCHS = 50


def _scaled_flip(known: Knowledge, strength: float) -> Vector:
    """Backwards, and longer."""
    return -np.float32(strength) * known.own


def _little_is_enough(known: Knowledge, strength: float) -> Vector:
    """Baruch et al. (NeurIPS 2019): so many deviations beside the mean of the honest, in every element alike."""
    return known.mean - np.float32(strength) * known.deviation


def _inner_product(known: Knowledge, strength: float) -> Vector:
    """Xie et al. (UAI 2019): a little of the honest mean, backwards."""
    return -np.float32(strength) * known.mean


def _label_flip(known: Knowledge, strength: float) -> Vector:
    return np.float32(strength) * known.flipped


def _delayed(known: Knowledge, strength: float) -> Vector:
    return np.float32(strength) * known.delayed


def _zero(known: Knowledge, _: float) -> Vector:
    return np.zeros_like(known.own)


def _constant(known: Knowledge, strength: float) -> Vector:
    return np.full_like(known.own, strength)


def _nan(known: Knowledge, _: float) -> Vector:
    vector = known.own.copy()
    vector[len(vector) // 2] = math.nan
    return vector


@dataclass(frozen=True, slots=True)
class Kind:
    """One attack; its strength when nothing else is asked for."""

    make: Callable[[Knowledge, float], Vector]
    strength: float


KINDS: Mapping[str, Kind] = {
    "sign_flip": Kind(_scaled_flip, 10.0),
    "little_is_enough": Kind(_little_is_enough, 1.5),
    "inner_product": Kind(_inner_product, 0.5),
    "label_flip": Kind(_label_flip, 1.0),
    "delayed": Kind(_delayed, 1.0),
    "nan": Kind(_nan, 1.0),
    "zero": Kind(_zero, 1.0),
    "constant": Kind(_constant, 1.0),
}
"""The formula of a-little-is-enough gives 0 deviations for two of ten; its paper's experiments use 1.5."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack of one strength."""

    name: str
    strength: float

    @classmethod
    def parse(cls, text: str) -> "Attack":
        """``name`` or ``name:strength``.

        Raises:
            ValueError: no such attack, or no number.
        """
        name, _, strength = text.partition(":")
        if name not in KINDS:
            raise ValueError(f"unknown attack {name!r}: choose of {', '.join(KINDS)}")
        return cls(name, float(strength) if strength else KINDS[name].strength)

    def __str__(self) -> str:
        return self.name if self.strength == KINDS[self.name].strength else f"{self.name}:{self.strength:g}"

    def vector(self, known: Knowledge) -> Vector:
        """What every liar sends in this round."""
        return KINDS[self.name].make(known, self.strength)
