"""What goes to the Hub beside a checkpoint: model card, pictures, run file, and how to find the run."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from collab.checkpoints.hub_publisher import Beside, Staged
from collab.checkpoints.hub_repository import There
from collab.errors import CorruptState, InviteError
from collab.swarm.bundle import Bundle
from collab.swarm.invite import read_invite
from collab.swarm.orders import OrderBook
from collab.swarm.snapshots import MAX_HEADER_BYTES
from collab.swarm.statements import Amend
from collab.types import PeerId
from collab.version import VERSION
from peers.credit import Credit
from peers.credits import who_counts
from peers.hub_history import (
    Curves,
    History,
    merged,
    own_history,
    points_of,
    taken_back,
    unnamed,
    until,
    without_undone,
)
from peers.hub_history_file import HISTORY, fetched, written
from peers.model_card import RUN_YAML, Amended, Facts, model_card, pictures
from peers.organisers_page import MOST_BYTES, with_organisers_part

RUN_ON_HUB = "collab_run.json"
"""What 'collab-peer join org/name' reads."""
FORMAT = 1
FLOATS = ("F", "BF")
README = "README.md"
MOST_WORD_BYTES = 100_000
"""Of the file that says how to find the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a backbone knows of its run, asked for when it publishes."""

    curves: Callable[[], Curves]
    given: Callable[[], Sequence[tuple[PeerId, Credit]]]
    before: Callable[[], History] = History
    """What was taken over from the Hub with a checkpoint."""
    orders: Callable[[], OrderBook]


class HubPages:
    """Of one backbone. Called in the thread that publishes."""

    def __init__(self, place: str, bundle: Bundle, seen: Seen, invite: str | None) -> None:
        """
        Args:
            invite: for everybody who finds the repository; empty: nobody finds the run by it; None: another backbone
                has said it, and that stays as it is.
        """
        self._place, self._bundle, self._seen, self._invite = place, bundle, seen, invite

    def beside(self, staged: Staged, there: There) -> Beside:
        """See ``Company``."""
        state, run = staged.state, self._bundle.run
        history, remarks = self._history(state, there)
        page, remark = _page(there)
        points = points_of(history.curves)
        facts = self._facts(staged, history, can_join=self._can_be_found(there))
        settings = run.model_dump(mode="json", exclude={"hub_repo"})
        files = {
            README: with_organisers_part(model_card(facts), page),
            **pictures(points),
            RUN_YAML: yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).encode(),
            HISTORY: written(history),
        }
        if self._invite:
            files[RUN_ON_HUB] = self._how_to_find_it(self._invite)
        loss = next((point.loss for point in reversed(points) if math.isfinite(point.loss)), None)
        return Beside(
            files=files,
            figures={"samples": sum(one.samples for one in history.runs.values()), "loss": loss},
            gone=frozenset({RUN_ON_HUB}) if self._invite == "" else frozenset(),
            remark="; ".join(filter(None, (remarks, remark))),
        )

    def misleads(self, there: There) -> bool:
        """Whether who joins by the repository's name is sent elsewhere than to this run as it is now, such as to an
        address that it had before; or here, where that is not to be.
        """
        if not self._invite:
            return self._invite == "" and RUN_ON_HUB in there.names
        try:
            told = there.read(RUN_ON_HUB, MOST_WORD_BYTES)
            theirs = read_invite(str(json.loads(told or b"")["invite"]))
            ours = read_invite(self._invite)
        except (ValueError, KeyError, TypeError, RecursionError, InviteError, CorruptState):
            return True
        return (theirs.fingerprint, set(theirs.addresses)) != (ours.fingerprint, set(ours.addresses))

    def _can_be_found(self, there: There) -> bool:
        return bool(self._invite) or (self._invite is None and RUN_ON_HUB in there.names)

    def _history(self, state: Mapping[str, Any], there: There) -> tuple[History, str]:
        """Up to this checkpoint, of all that have published; and what is wrong with what is there."""
        fingerprint, given, orders = self._bundle.fingerprint, self._seen.given(), self._seen.orders()
        theirs, wrong = fetched(there)
        ours = own_history(
            fingerprint, str(state.get("era", "")), self._seen.curves(), who_counts(given, self._bundle.run)
        )
        others = merged(without_undone(self._seen.before(), orders), without_undone(theirs, orders))
        others = merged(others, taken_back(fingerprint, given, others))
        hidden = unnamed(fingerprint, given, orders.bans().values())
        return until(merged(others, ours, hidden), int(state["epoch"])), wrong

    def _facts(self, staged: Staged, history: History, *, can_join: bool) -> Facts:
        epoch, eval_loss = int(staged.state["epoch"]), staged.state["metrics"].get("eval_loss")
        amendments = self._seen.orders().amendments()
        return Facts(
            place=self._place,
            run=self._bundle.run,
            epoch=epoch,
            eval_loss=float(eval_loss) if eval_loss is not None else math.nan,
            num_parameters=count_parameters(staged.folder / "model.safetensors"),
            points=points_of(history.curves),
            given=history.named,
            num_others=history.num_others,
            samples_of_others=history.others.total,
            learning_rate=in_force(amendments, epoch, "learning_rate"),
            target_batch_size=in_force(amendments, epoch, "target_batch_size"),
            can_join=can_join,
        )

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


def _page(there: There) -> tuple[bytes | None, str]:
    """The README that is there, and what is wrong with it."""
    try:
        return there.read(README, MOST_BYTES), ""
    except CorruptState:
        return None, f"{README} is too large for anything of it to be kept"


def in_force(amendments: Sequence[Amend], epoch: int, name: str) -> Amended | None:
    """What the organiser's last word on something makes of the step after ``epoch`` ones; None: there is none."""
    said = [one for one in amendments if one.from_epoch <= epoch and getattr(one, name) is not None]
    return Amended(getattr(said[-1], name), said[-1].from_epoch) if said else None


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
