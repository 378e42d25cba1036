"""The Hub as a place where checkpoints are published: one commit each, never two backbones interleaved.

What is at the head of the repository says which run it is of, how far it is, and under which tenure of the publishing
lease it became so. Whoever publishes looks there first, and commits on the condition that nobody else has since: the
Hub itself compares and sets. So the repository is its own fence, and needs no memory of ours.

It is no ``Publisher``: what it publishes is a checkpoint on our disk, which stays the source of truth.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collab.checkpoints.base import Order
from collab.checkpoints.file_names import TENSORS, why_unfit
from collab.checkpoints.hub_advice import CHANGED, UNFIT
from collab.checkpoints.hub_repository import Change, Head, HubRepository, There
from collab.checkpoints.local import STATE_FILE, read_state, state_bytes, verified_state
from collab.errors import CheckpointFailed, CorruptState, Fenced, HubBusy, HubDenied, HubMoved
from collab.metrics.names import MAX_EPOCH
from collab.swarm.lease import MAX_TERM, Tenure
from collab.types import PeerId

ON_HUB = "hub"
"""Key of what only the state file on the Hub has: under whose lease it was published, and figures for people."""
MOST_STATE_BYTES = 16 << 20
"""Of a state file that is looked at; a few hundred bytes for each number that an optimiser keeps beside its tensors."""
LOOKS = 3
"""How often we look again when somebody has committed meanwhile; then later."""
ALLOWED_BEFORE = frozenset({".gitattributes", "README.md", "LICENSE", "LICENSE.md", "LICENSE.txt"})
"""What a repository may hold that no run has published in yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What goes to the Hub with a checkpoint."""

    files: Mapping[str, bytes]
    """For people, and for who wants to join: model card, picture, run file."""
    figures: Mapping[str, Any]
    """JSON values for the state file: samples, loss."""
    gone: frozenset[str] = frozenset()
    """Files to take away, if they are there."""
    remark: str = ""
    """For people: what of the repository was of no use for it; empty: nothing."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A whole checkpoint that nobody deletes while it is sent."""

    folder: Path
    state: Mapping[str, Any]


Company = Callable[[Staged, There], Beside]
"""What goes with a checkpoint, given what is in the repository already. May raise ``HubError``."""


def nothing_misleads(_: There) -> bool:
    """Whoever finds a checkpoint in the repository finds the right run by it."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a state file says of itself."""

    fingerprint: str
    epoch: int
    era: str
    digest: str
    """Of the published snapshot; empty: it was never published."""
    tenure: Tenure
    """Of the lease under which it became the repository's head; before that, under which it shall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnHub:
    """What became of it."""

    commit: str
    epoch: int
    num_bytes: int
    """Of its files."""
    is_new: bool
    """False: it was there already, such as by a commit of ours of which we have not heard."""
    remark: str = ""
    """See ``Beside``."""


class HubPublisher:
    """Of one repository, by one backbone."""

    def __init__(
        self,
        repository: HubRepository,
        outbox: Path,
        beside: Company,
        misleads: Callable[[There], bool] = nothing_misleads,
    ) -> None:
        """
        Args:
            outbox: a directory of ours on the disk of the checkpoints: what is being sent stays there until it is.
            misleads: whether what is there besides the checkpoint leads people elsewhere, such as to an address that
                the run had before: then the same checkpoint is committed once more. May raise ``HubError``.
        """
        self._repository = repository
        self._outbox, self._beside, self._misleads = outbox, beside, misleads

    def publish(self, path: Path, order: Order) -> OnHub:
        """Make the checkpoint at ``path`` the head of the repository, whole or not at all.

        Raises:
            Fenced: a later tenure has published there, or a later epoch is there, or our lease has ended.
            CheckpointFailed: the checkpoint is not there any more, or not whole.
            HubBusy: try again later; what has arrived is not sent again.
            HubDenied: a person has to do something first.
        """
        ours, staged = self._ours(path, order), None
        for _ in range(LOOKS):
            head, theirs = self._look()
            if theirs is not None and self._is_well(ours, standing_of(theirs), head):
                self._clear()
                return OnHub(commit=head.commit, epoch=ours.epoch, num_bytes=_size_of(path), is_new=False)
            staged = staged or self._stage(path)
            try:
                return self._send(staged, order, head, theirs or {})
            except HubMoved:
                continue  # whoever it was, what they have made is looked at now
        raise HubBusy(f"others keep committing to {self._repository.place}")

    def _is_well(self, ours: Standing, theirs: Standing, head: Head) -> bool:
        """Whether the repository is to stay as it is.

        Raises:
            As ``must_publish``; and ``HubError``: what is there cannot be seen.
        """
        if must_publish(ours, theirs, str(self._repository.place)):
            return False
        return theirs.tenure > ours.tenure or not self._misleads(There(self._repository, head))

    def _look(self) -> tuple[Head, Mapping[str, Any] | None]:
        """The head, and the state that it holds; None: nobody has published there yet."""
        try:
            head = self._repository.head()
        except HubDenied:
            self._repository.create()  # it may not be there; if it is, we are told now what is wrong
            head = self._repository.head()
        if STATE_FILE in head.names:
            return head, read_head(self._repository, head)
        if strange := sorted(head.names - ALLOWED_BEFORE):
            raise HubDenied(
                f"{self._repository.place} holds something that no run of collab has published, such as {strange[0]!r}",
                hint="name another repository with --hub-repo; one that is not there is made",
            )
        return head, None

    def _ours(self, path: Path, order: Order) -> Standing:
        try:
            ours = standing_of(read_state(path))
        except (OSError, ValueError, KeyError, TypeError, CorruptState) as error:
            text = f"{path} cannot be read: {error}"
            raise CheckpointFailed(text, hint="the next checkpoint is published") from error
        if (ours.epoch, ours.digest) != (order.publication.epoch, order.publication.digest):
            raise CheckpointFailed(f"{path} is not what was to be published", hint="the next checkpoint is published")
        return replace(ours, tenure=order.authority)

    def _stage(self, path: Path) -> Staged:
        """The same files under another name: a checkpoint on the shelf may be deleted while it is sent."""
        folder = self._outbox / path.name
        try:
            self._clear()
            folder.mkdir(parents=True)
            for file in path.iterdir():
                _link(file, folder / file.name)
            return Staged(folder, verified_state(folder))
        except OSError as error:
            raise CheckpointFailed(
                f"{path} could not be made ready for the Hub: {error.strerror or error}",
                hint="if it was deleted, the next checkpoint is published; else free some space",
            ) from error
        except CorruptState as error:
            raise CheckpointFailed(error.message, hint="the next checkpoint is published") from error

    def _send(self, staged: Staged, order: Order, head: Head, theirs: Mapping[str, Any]) -> OnHub:
        if why := why_unfit(staged.state["sha256"].keys() - set(TENSORS)):
            raise HubDenied(why, hint=UNFIT)
        state, beside = staged.state, self._beside(staged, There(self._repository, head))
        lease = {"term": order.authority.term, "holder": order.authority.holder}
        files: dict[str, Path | bytes] = {name: staged.folder / name for name in state["sha256"]}
        files |= {**beside.files, STATE_FILE: state_bytes({**state, ON_HUB: {**beside.figures, **lease}})}
        is_again = bool(theirs) and standing_of(theirs).digest == order.publication.digest
        change = Change(
            title=_title(state) + (", and where its run is now" if is_again else ""),
            files=files,
            gone=(frozenset(theirs.get("sha256", {})) | beside.gone) - set(files),
        )
        prepared = self._repository.send(change)
        if not order.may_finish():
            raise Fenced(f"sending epoch {state['epoch']} took longer than our turn to publish")
        commit = self._repository.commit(prepared, head)
        num_bytes = sum(len(one) if isinstance(one, bytes) else one.stat().st_size for one in files.values())
        self._clear()
        epoch = int(state["epoch"])
        return OnHub(commit=commit, epoch=epoch, num_bytes=num_bytes, is_new=True, remark=beside.remark)

    def _clear(self) -> None:
        shutil.rmtree(self._outbox, ignore_errors=True)


def _title(state: Mapping[str, Any]) -> str:
    loss = state["metrics"].get("eval_loss")
    return f"epoch {state['epoch']}" + (f", loss {loss:.4f}" if isinstance(loss, float) else "")


def _size_of(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.iterdir())
    except OSError:  # deleted meanwhile
        return 0


def _link(source: Path, target: Path) -> None:
    """A second name where the file system knows such, else a copy; what we write is replaced whole, never changed."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def read_head(repository: HubRepository, head: Head) -> Mapping[str, Any]:
    """The state file at a head.

    Raises:
        HubError: it cannot be had, or is not what a backbone has written.
    """
    try:
        state = json.loads(repository.read(STATE_FILE, head, MOST_STATE_BYTES))
        _check_fields(state)
        standing_of(state)
    except CorruptState as error:
        raise HubDenied(error.message, hint=CHANGED) from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise HubDenied(f"{STATE_FILE} of {repository.place} is not what a backbone writes", hint=CHANGED) from error
    return dict(state)


def _check_fields(state: Mapping[str, Any]) -> None:
    """Of what is used of it. Raises whatever reading something malformed raises."""
    told = [one for one in (state["metrics"].get("published"), state.get(ON_HUB)) if one]
    texts = [state["fingerprint"], state["lineage"], state.get("era", ""), *state["sha256"].values()]
    texts += [one.get(name, "") for one in told for name in ("holder", "digest", "lineage")]
    numbers = [(state["epoch"], MAX_EPOCH), *((one["term"], MAX_TERM) for one in told)]
    is_well = all(type(one) is str for one in texts) and type(state["metrics"]) is type(state["scalars"]) is dict
    if not is_well or not all(type(number) is int and 0 <= number <= most for number, most in numbers):
        raise ValueError("a field has another type, or is out of its range")


def standing_of(state: Mapping[str, Any]) -> Standing:
    """Raises whatever reading something malformed raises."""
    published = state["metrics"].get("published", {})
    tenures = [Tenure(int(one["term"]), PeerId(str(one["holder"]))) for one in (published, state.get(ON_HUB)) if one]
    return Standing(
        fingerprint=str(state["fingerprint"]),
        epoch=int(state["epoch"]),
        era=str(state.get("era", "")),
        digest=str(published.get("digest", "")),
        tenure=max(tenures, default=Tenure(0, PeerId(""))),
    )


def must_publish(ours: Standing, theirs: Standing, place: str) -> bool:
    """Whether ours is to follow theirs; False: it is there already.

    Raises:
        HubDenied: theirs is of another run.
        Fenced: theirs is to stay.
    """
    if theirs.fingerprint != ours.fingerprint:
        raise HubDenied(
            f"{place} belongs to the run with fingerprint {theirs.fingerprint[:16]}..., this run's is "
            f"{ours.fingerprint[:16]}...",
            hint="name another repository with --hub-repo; one that is not there is made",
        )
    if theirs.digest == ours.digest:
        return False
    if theirs.tenure > ours.tenure:
        raise Fenced(
            f"term {ours.tenure.term} of {ours.tenure.holder} may not publish in {place}: "
            f"term {theirs.tenure.term} of {theirs.tenure.holder} has",
            hint=f"if that backbone is gone for good, start this one again with --from {place}",
        )
    if theirs.tenure < ours.tenure and theirs.era == ours.era and theirs.epoch > ours.epoch:
        raise Fenced(f"{place} holds epoch {theirs.epoch} of this run, which is later than our epoch {ours.epoch}")
    return True
