"""What goes to the Hub beside a checkpoint: model card, pictures, run file, and how to find the run."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from collab.checkpoints.hub_publisher import Beside, Staged
from collab.metrics.names import EVAL_LOSS, LEARNING_RATE, LOSS, SAMPLES_PER_S
from collab.metrics.store import MetricsStore
from collab.swarm.bundle import Bundle
from collab.version import VERSION
from peers.credits import Credit
from peers.model_card import RUN_YAML, Facts, Point, model_card, pictures, samples_of

RUN_ON_HUB = "collab_run.json"
"""What 'collab-peer join org/name' reads."""
FORMAT = 1
FLOATS = ("F", "BF")
MAX_HEADER_BYTES = 100_000_000
"""As safetensors itself allows."""


class HubPages:
    """Of one backbone. Called in the thread that publishes."""

    def __init__(
        self,
        place: str,
        bundle: Bundle,
        points: Callable[[], Sequence[Point]],
        given: Callable[[], Sequence[Credit]],
        invite: str | None,
    ) -> None:
        """
        Args:
            points: the run's curves so far.
            invite: for everybody who finds the repository; empty: nobody finds the run by it; None: another backbone
                has said it, and that stays as it is.
        """
        self._place, self._bundle, self._points = place, bundle, points
        self._given, self._invite = given, invite

    def beside(self, staged: Staged, names: frozenset[str]) -> Beside:
        """See ``Company``."""
        state, epoch = staged.state, int(staged.state["epoch"])
        points = [point for point in self._points() if point.epoch <= epoch]
        given, run = self._given(), self._bundle.run
        eval_loss = state["metrics"].get("eval_loss")
        facts = Facts(
            place=self._place,
            run=run,
            epoch=epoch,
            eval_loss=float(eval_loss) if eval_loss is not None else math.nan,
            num_parameters=count_parameters(staged.folder / "model.safetensors"),
            points=points,
            given=given,
            can_join=bool(self._invite) or (self._invite is None and RUN_ON_HUB in names),
        )
        settings = run.model_dump(mode="json", exclude={"hub_repo"})
        files = {
            "README.md": model_card(facts),
            **pictures(points),
            RUN_YAML: yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).encode(),
        }
        if self._invite:
            files[RUN_ON_HUB] = self._how_to_find_it(self._invite)
        loss = next((point.loss for point in reversed(points) if math.isfinite(point.loss)), None)
        gone = frozenset({RUN_ON_HUB}) if self._invite == "" else frozenset()
        return Beside(files=files, figures={"samples": samples_of(given), "loss": loss}, gone=gone)

    def _how_to_find_it(self, invite: str) -> bytes:
        bundle = self._bundle
        content = {
            "format": FORMAT,
            "version": VERSION,
            "run_id": bundle.run.run_id,
            "fingerprint": bundle.fingerprint,
            "owner": bundle.owner,
            "access": bundle.run.access,
            "invite": invite,
        }
        return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def count_parameters(model: Path) -> int:
    """Numbers with a point in a safetensors file; 0: it cannot be read."""
    try:
        with model.open("rb") as file:
            num_bytes = min(int.from_bytes(file.read(8), "little"), MAX_HEADER_BYTES)
            header = json.loads(file.read(num_bytes))
        tensors = [one for name, one in header.items() if name != "__metadata__" and one["dtype"].startswith(FLOATS)]
        return sum(math.prod(one["shape"]) for one in tensors)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0


def points_of(store: MetricsStore) -> list[Point]:
    """The run's curves, by epoch."""
    curves = [store.curve(metric.name) for metric in (LOSS, EVAL_LOSS, SAMPLES_PER_S, LEARNING_RATE)]
    trained, evaluated, speeds, rates = (dict(zip(one.epochs, one.values, strict=True)) for one in curves)
    return [
        Point(
            epoch,
            trained.get(epoch, math.nan),
            epoch if epoch in evaluated else -1,
            evaluated.get(epoch, math.nan),
            speeds.get(epoch, math.nan),
            rates.get(epoch, math.nan),
        )
        for epoch in sorted(trained.keys() | evaluated.keys() | speeds.keys() | rates.keys())
    ]
