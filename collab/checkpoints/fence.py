"""Which tenure of the publishing lease this disk has heard of: nothing is published here under an earlier one.

Leases rest on time, and a process may stand still between a look at its watch and what it then does. So each place
where snapshots are published remembers the latest tenure itself, for good.
"""

import json
import threading
from pathlib import Path

from collab.durable import replace_file
from collab.errors import CheckpointFailed, Fenced
from collab.swarm.lease import MAX_TERM, NOBODY, Tenure
from collab.types import PeerId

FENCE_FILE = "publishing.json"


class Fence:
    """Of one directory of checkpoints."""

    def __init__(self, root: Path) -> None:
        self._path = root / FENCE_FILE
        self._lock = threading.Lock()
        self._highest = _read(self._path)

    @property
    def highest(self) -> Tenure:
        """The latest tenure heard of."""
        return self._highest

    def pass_through(self, tenure: Tenure) -> None:
        """Let ``tenure`` publish, and no earlier one from now on.

        Raises:
            Fenced: a later one was heard of.
            CheckpointFailed: that cannot be written down.
        """
        with self._lock:
            if tenure < self._highest:
                raise Fenced(
                    f"term {tenure.term} of {tenure.holder} may not publish: "
                    f"term {self._highest.term} of {self._highest.holder or 'another backbone'} was heard of"
                )
            if tenure > self._highest:
                self._write(tenure)
                self._highest = tenure

    def _write(self, tenure: Tenure) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps({"term": tenure.term, "holder": tenure.holder}).encode())
        except OSError as error:
            raise CheckpointFailed(
                f"{self._path} could not be written: {error.strerror or error}",
                hint="free some space, or make the directory writable",
            ) from error


def _read(path: Path) -> Tenure:
    """Nobody's, when there is none: terms are heard of anew from other backbones and from the checkpoints."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        term, holder = fields["term"], fields["holder"]
    except (OSError, ValueError, KeyError, TypeError):
        return NOBODY
    is_tenure = type(term) is int and type(holder) is str and 0 <= term <= MAX_TERM
    return Tenure(term, PeerId(holder)) if is_tenure else NOBODY
