"""One repository of the Hugging Face Hub, as far as we need it. Everything here blocks: call it off the event loop."""

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from collab.checkpoints.base import Listener, nobody
from collab.checkpoints.disk_errors import not_written
from collab.checkpoints.hub_advice import CHANGED, TO_WRITE
from collab.checkpoints.hub_session import asking, watching
from collab.errors import ConfigError, CorruptState, HubDenied

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}")
REVISION = re.compile(r"[\w][\w./-]{0,99}")
BRANCH = "main"
SENT_ALONE = (".safetensors", ".svg")
"""Endings of files that go ahead of the commit, one by one."""
LARGE_BYTES = 1 << 20
"""And whatever is larger than this."""
LOOK_S = 20.0
"""For a connection, and again for the answer to a look, which is small and comes at once or not at all. People wait for
a few in a row, and the client would by itself wait for ever, whatever limit its session has."""


@dataclass(frozen=True, slots=True)
class HubPlace:
    """A repository, and which revision of it."""

    name: str
    """``org/name``."""
    revision: str = BRANCH

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """``org/name`` or ``org/name@revision``; None: it is something else."""
        name, at, revision = text.partition("@")
        if not NAME.fullmatch(name) or (at and not REVISION.fullmatch(revision)):
            return None
        return cls(name, revision or BRANCH)

    @classmethod
    def named(cls, text: str) -> Self:
        """A repository to publish in.

        Raises:
            ConfigError: it is no name of one.
        """
        place = cls.parse(text)
        if place is None or place.revision != BRANCH:
            raise ConfigError(f"expected a repository of the Hub as owner/name, got {text!r:.80}")
        return place

    def __str__(self) -> str:
        return self.name if self.revision == BRANCH else f"{self.name}@{self.revision}"


@dataclass(frozen=True, slots=True)
class Head:
    """What is in a repository at one moment."""

    commit: str
    names: frozenset[str]
    """Of its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one commit does."""

    title: str
    files: Mapping[str, Path | bytes]
    gone: frozenset[str] = frozenset()
    """Files to take away."""


class HubRepository:
    """Of models. Which token is used is the client's business: it is never seen here.

    All of it may raise ``CheckpointFailed``, too: a disk of this machine gives or takes nothing.
    """

    def __init__(
        self, place: HubPlace, *, endpoint: str | None = None, advice: str = TO_WRITE, tell: Listener = nobody
    ) -> None:
        """
        Args:
            endpoint: None: as ``HF_ENDPOINT`` says.
            advice: for a person whose token is not enough.
            tell: how much of the large files is at the Hub, in their order.
        """
        self.place, self._tell = place, tell
        self._endpoint, self._advice = endpoint, advice

    def _api(self) -> "HfApi":
        from huggingface_hub import HfApi

        return HfApi(endpoint=self._endpoint)

    @contextmanager
    def _asking(self, folder: Path | None = None) -> Iterator[None]:
        """
        Args:
            folder: on our disk, that it is about; None: whatever the client reads.
        """
        try:
            with asking(str(self.place), self._advice):
                yield
        except OSError as error:
            raise not_written(folder or Path("a file of the Hub's client"), error) from error

    def head(self, revision: str | None = None) -> Head:
        """As of now.

        Args:
            revision: None: as the place says.

        Raises:
            HubError: it cannot be seen.
        """
        with self._asking():
            found = self._api().model_info(
                self.place.name, revision=revision or self.place.revision, timeout=LOOK_S
            )
            return Head(str(found.sha), frozenset(one.rfilename for one in found.siblings or ()))

    def create(self) -> None:
        """Make it, for nobody else to see; nothing happens if it is there.

        Raises:
            HubError: we may not.
        """
        with self._asking():
            self._api().create_repo(self.place.name, private=True, exist_ok=True)

    def fetch(self, names: Iterable[str], head: Head, folder: Path) -> None:
        """Bring files to ``folder``; what an earlier call has brought in part is completed.

        Raises:
            HubError: they cannot be had.
        """
        from huggingface_hub import hf_hub_download

        for name in names:
            if name not in head.names:
                text = f"{self.place} has no {name}"
                raise HubDenied(text, hint="it holds no checkpoint, or not all of it; try another revision")
            with self._asking(folder):
                hf_hub_download(self.place.name, name, revision=head.commit, local_dir=folder, endpoint=self._endpoint)

    def read(self, name: str, head: Head, most_bytes: int) -> bytes:
        """One small file that anybody may have written.

        Raises:
            CorruptState: it is larger than ``most_bytes``, and was not fetched.
            HubError: it cannot be had.
        """
        size = self.size_of(name, head) if name in head.names else 0
        if size is None or size > most_bytes:
            raise CorruptState(f"{name} of {self.place} is larger than {most_bytes} bytes", hint=CHANGED)
        try:
            with tempfile.TemporaryDirectory() as folder:
                self.fetch([name], head, Path(folder))
                return (Path(folder) / name).read_bytes()
        except OSError as error:
            raise not_written(Path(tempfile.gettempdir()), error) from error

    def size_of(self, name: str, head: Head) -> int | None:
        """Bytes of a file; None: the Hub does not say.

        Raises:
            HubError: it cannot be seen.
        """
        from huggingface_hub import hf_hub_url

        with self._asking():
            url = hf_hub_url(self.place.name, name, revision=head.commit, endpoint=self._endpoint)
            size = self._api().get_hf_file_metadata(url=url).size
            return None if size is None else int(size)

    def send(self, change: Change) -> "Prepared":
        """Have the large files at the Hub before the commit; those that are there already are not sent again.

        Raises:
            HubError: it broke off.
        """
        from huggingface_hub import CommitOperationAdd

        with self._asking():  # also to look at a file, which is read for its digest
            adds = [
                CommitOperationAdd(path_in_repo=name, path_or_fileobj=one if isinstance(one, bytes) else str(one))
                for name, one in sorted(change.files.items())
            ]
            alone = [add for add in adds if add.path_in_repo.endswith(SENT_ALONE) or add.upload_info.size > LARGE_BYTES]
            here_bytes, whole_bytes = 0, sum(add.upload_info.size for add in alone)
            for add in alone:
                size = add.upload_info.size
                with watching(partial(self._tell_part, here_bytes, size, whole_bytes)):
                    self._api().preupload_lfs_files(
                        self.place.name, [add], revision=BRANCH, num_threads=1, free_memory=False
                    )
                here_bytes += size  # whether it was sent, or was there already
                self._tell(here_bytes, whole_bytes)
        return Prepared(change, adds)

    def _tell_part(self, before_bytes: int, size: int, whole_bytes: int, sent_bytes: int) -> None:
        """Of one file so much has left; it counts as there when the Hub has said so."""
        self._tell(before_bytes + min(sent_bytes, size - 1), whole_bytes)

    def commit(self, prepared: "Prepared", head: Head) -> str:
        """Everything becomes visible at once, if the head is still this one; the new commit's id.

        Raises:
            HubMoved: it is not.
            HubError: it did not work, or nobody has told us that it has.
        """
        from huggingface_hub import CommitOperationDelete

        gone = [CommitOperationDelete(path_in_repo=name) for name in sorted(prepared.change.gone & head.names)]
        with self._asking():
            made = self._api().create_commit(
                self.place.name,
                [*prepared.adds, *gone],
                commit_message=prepared.change.title,
                revision=BRANCH,
                parent_commit=head.commit,
                num_threads=1,
            )
            return str(made.oid)


@dataclass(frozen=True, slots=True)
class There:
    """What a repository holds at one moment, as far as somebody wants to look."""

    repository: HubRepository
    head: Head

    @property
    def names(self) -> frozenset[str]:
        """Of its files."""
        return self.head.names

    def read(self, name: str, most_bytes: int) -> bytes | None:
        """A file as ``HubRepository.read`` has it; None: it is not there."""
        return self.repository.read(name, self.head, most_bytes) if name in self.names else None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A change whose large files are at the Hub; nobody sees any of it yet. For one commit."""

    change: Change
    adds: "list[CommitOperationAdd]"
