"""A small swarm that trains on digits while some of its peers lie: real gradients, real rules, no network."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from attack_kinds import DELAY_EPOCHS, Attack, Knowledge

from collab.averaging.plan import PART_ELEMENTS
from collab.averaging.reduction import part_edges
from collab.averaging.robust import Rule, capped, check_finite
from collab.config import ImageClassificationTask, Optimizer, Schedule
from collab.errors import BadPart
from collab.strategies.base import HandedOver, clip_to_norm
from collab.tasks.image_classification import ImageClassification
from collab.training.layout import VectorLayout
from collab.training.momentum import Outgoing, outgoing
from collab.training.optimizers import build_optimizer
from collab.training.schedule import learning_rate_factor
from collab.types import PeerId, Vector

SAMPLES = (32, 64, 96, 128, 160)
"""Of the peers in an epoch, in turn: one brings five times as much as another."""
NUM_CLASSES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What all trainings of one comparison have in common."""

    num_peers: int
    num_attackers: int
    epochs: int
    seed: int
    order: int = 0
    """Another number: the same start, other batches."""
    optimizer: Optimizer
    hidden_sizes: tuple[int, ...] = (64,)
    held_out: int = 797
    """Images that nobody trains on; with few of them the loss hangs on a handful of hard ones."""
    max_gradient_norm: float | None = 1.0
    worker_momentum: float = 0.0
    """As in a run file: peers send momenta of their gradients."""
    claimed: float = 1.0
    """Weight that a liar claims, over the mean of the honest."""
    max_share: float = 1.0

    @property
    def samples(self) -> tuple[int, ...]:
        """Of each peer in an epoch when nobody lies; the last ones become the liars."""
        return tuple(SAMPLES[index % len(SAMPLES)] for index in range(self.num_peers))


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one training."""

    training_loss: float
    """Of the model at the end, mean over all training samples."""
    held_out_loss: float
    """Of the same on the images that nobody trained on."""
    accuracy: float
    """Of the held-out images."""
    refused: int
    """Contributions, over all rounds."""


class AttackedSwarm:
    """Peers of one training. The honest begin at the same parameters and read the same samples in the same order,
    whatever the rule and the attack; without an attack the liars stay at home.
    """

    def __init__(self, setup: Setup, rule: Rule, attack: Attack | None) -> None:
        self._setup, self._rule, self._attack = setup, rule, attack
        self._task = ImageClassification(
            ImageClassificationTask(
                name="image_classification", hidden_sizes=setup.hidden_sizes, eval_samples=setup.held_out
            )
        )
        torch.manual_seed(setup.seed)
        self._model = self._task.build_model()
        self._layout = VectorLayout(self._model)
        self._optimizer = build_optimizer(setup.optimizer, self._model)
        self._edges = tuple(part_places(self._layout.num_elements, setup.num_peers))
        self._streams = [self._sample_ids(index) for index in range(setup.num_peers)]
        self._outgoing: dict[int | str, Outgoing] = {}
        self._past: deque[Vector] = deque(maxlen=DELAY_EPOCHS + 1)
        self._refused = 0

    @property
    def num_elements(self) -> int:
        """Length of the vector."""
        return self._layout.num_elements

    def run(self) -> Result:
        """Train to the end."""
        schedule = Schedule(name="cosine", total_epochs=self._setup.epochs)
        for epoch in range(self._setup.epochs):
            for group in self._optimizer.param_groups:
                group["lr"] = self._setup.optimizer.learning_rate * learning_rate_factor(schedule, epoch)
            self._step(self._reduce(*self._contributions(epoch)))
        everything = self._task.batch(tuple(range(self._task.num_samples))).tensors
        with torch.no_grad():
            training_loss = float(self._task.loss(self._model, everything).item())
        found = self._task.evaluate(self._model)
        return Result(training_loss, found.loss, found.accuracy, self._refused)

    def _contributions(self, epoch: int) -> tuple[list[Vector], list[float]]:
        """What every peer sends in this round, and the samples that it claims."""
        setup = self._setup
        num_honest = setup.num_peers - setup.num_attackers
        ids = [
            tuple(next(stream) for _ in range(count))
            for stream, count in zip(self._streams, setup.samples, strict=True)
        ]
        vectors = [self._sent(epoch, index, self._gradient(ids[index])) for index in range(num_honest)]
        weights = [float(count) for count in setup.samples[:num_honest]]
        if self._attack is None:
            return vectors, weights
        known = self._knowledge(epoch, vectors, weights, ids[-1])
        lie = self._attack.vector(known)
        claimed = setup.claimed * float(np.mean(weights))
        return vectors + [lie] * setup.num_attackers, weights + [claimed] * setup.num_attackers

    def _knowledge(
        self, epoch: int, vectors: Sequence[Vector], weights: Sequence[float], own_ids: tuple[int, ...]
    ) -> Knowledge:
        parameters = self._layout.parameters_vector()
        self._past.append(parameters)
        own = self._sent(epoch, "own", self._gradient(own_ids))
        flipped = self._sent(epoch, "flipped", self._gradient(own_ids, is_flipped=True))
        self._load(self._past[0])
        delayed = self._sent(epoch, "delayed", self._gradient(own_ids))
        self._load(parameters)
        return Knowledge(honest=vectors, weights=weights, own=own, flipped=flipped, delayed=delayed)

    def _reduce(self, vectors: list[Vector], weights: list[float]) -> Vector:
        """The round: whoever sends a part that is not finite is left out of it, then each part is reduced."""
        accepted: dict[PeerId, Vector] = {}
        for index, vector in enumerate(vectors):
            try:
                for start, stop in self._edges:
                    check_finite(vector[start:stop])
            except BadPart:
                self._refused += 1
                continue
            accepted[PeerId(str(index))] = vector
        claimed = {peer: weights[int(peer)] for peer in accepted}
        shares = list(capped(claimed, self._setup.max_share).values())
        result = np.empty(self._layout.num_elements, np.float32)
        for start, stop in self._edges:
            result[start:stop] = self._rule.reduce([vector[start:stop] for vector in accepted.values()], shares)
        return result

    def _gradient(self, sample_ids: tuple[int, ...], *, is_flipped: bool = False) -> Vector:
        tensors = dict(self._task.batch(sample_ids).tensors)
        if is_flipped:
            tensors["labels"] = NUM_CLASSES - 1 - tensors["labels"]
        self._model.zero_grad(set_to_none=True)
        torch.autograd.backward(self._task.loss(self._model, tensors))
        out = torch.empty(self._layout.num_elements)
        self._layout.gather_gradients(out)
        vector: Vector = out.numpy()
        return vector

    def _sent(self, epoch: int, sender: int | str, gradient: Vector) -> Vector:
        """What the engine makes of a gradient of ``sender``, and that it is used: no round is lost here."""
        ours = self._outgoing.setdefault(sender, outgoing(self._setup.worker_momentum))
        brought = ours.bring(HandedOver(gradient, 1), epoch)
        ours.settle(brought.everything)
        return brought.mean

    def _step(self, reduced: Vector) -> None:
        self._layout.scatter_gradients(clip_to_norm(reduced, self._setup.max_gradient_norm))
        self._optimizer.step()

    def _load(self, parameters: Vector) -> None:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(parameters.copy()), self._model.parameters())

    def _sample_ids(self, index: int) -> Iterator[int]:
        rng = np.random.default_rng((self._setup.seed, index, *((self._setup.order,) if self._setup.order else ())))
        while True:
            yield from (int(one) for one in rng.permutation(self._task.num_samples))


def part_places(num_elements: int, num_reducers: int) -> Iterator[tuple[int, int]]:
    """Where a vector is cut when every peer reduces an equal span, in parts as long as the engine's."""
    bounds = [num_elements * index // num_reducers for index in range(num_reducers + 1)]
    for first, last in pairwise(bounds):
        yield from ((first + start, first + stop) for start, stop in part_edges(last - first, PART_ELEMENTS))
