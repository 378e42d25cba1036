"""What an organiser can say to a whole run; ``orders`` holds how it is said."""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, get_type_hints

from packaging.version import Version

from collab.errors import BadMessage
from collab.net.wire import Message

MAX_TEXT_CHARACTERS = 200
MOST = 2**64 - 1
"""That a whole number on its way can be."""
FOREVER = 0.0
"""End of what has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amend:
    """From an epoch on, the run is another one in these points; None: as before."""

    from_epoch: int
    """Global steps taken before the first step that this is about."""
    learning_rate: float | None = None
    """Of the optimiser, before the schedule's factor."""
    target_batch_size: int | None = None
    minimum_version: str | None = None
    """Of this package; who has an older one stops, and says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The run is over when it has taken so many global steps.

    Where that many were taken before anybody knew, it is over with the first step whose terms count this order.
    """

    at_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """What came after a checkpoint never counted: everybody goes on from there.

    Nor do amendments for steps after it: what made the loss rise would do so again.
    """

    to_epoch: int
    lineage: str
    """Of the checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ban:
    """Nobody deals with a peer, or with anybody who came with an invite."""

    who: str
    """A peer id, or the id of an invite."""
    reason: str
    until_s: float = FOREVER
    """Swarm time."""
    name: str | None = None
    """What the banned was called then, by which a person knows it again; None: nobody knew. It bans nobody else."""

    def holds(self, now: float) -> bool:
        """Whether it has not ended by itself."""
        return self.until_s == FOREVER or now < self.until_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pardon:
    """The bans of a peer or an invite are void."""

    who: str


Statement = Amend | End | Rollback | Ban | Pardon
KINDS: dict[str, type[Statement]] = {
    "amend": Amend,
    "end": End,
    "rollback": Rollback,
    "ban": Ban,
    "pardon": Pardon,
}
NAMES = {kind: name for name, kind in KINDS.items()}


def read_statement(kind: str, values: dict[str, Any]) -> Statement:
    """A statement whose every field has its type, and a value that makes sense."""
    if not isinstance(values, dict):
        raise BadMessage(f"{kind} without fields")
    made, message = KINDS[kind], Message(kind, values)
    checked: dict[str, Any] = {}
    for field in fields(made):
        hint = get_type_hints(made)[field.name]
        kinds = [option for option in getattr(hint, "__args__", (hint,)) if option is not type(None)]
        is_absent = values.get(field.name) is None and hint is not kinds[0]
        checked[field.name] = None if is_absent else message.get(field.name, kinds[0])
    what = made(**checked)
    check(what)
    return what


def check(what: Statement) -> None:
    """Raises ``BadMessage`` or ``ValueError`` for a statement that nobody could follow."""
    for name, value in asdict(what).items():
        if isinstance(value, str) and len(value) > MAX_TEXT_CHARACTERS:
            raise BadMessage(f"{name} of {len(value)} characters is over the limit of {MAX_TEXT_CHARACTERS}")
        if isinstance(value, int) and value > MOST:
            raise BadMessage(f"{name} should be {MOST} at most, got {value}")
        if isinstance(value, int | float) and not (math.isfinite(value) and value >= 0):
            raise BadMessage(f"{name} should be finite and not negative, got {value}")
    if isinstance(what, Amend) and not (what.learning_rate != 0 and what.target_batch_size != 0):
        raise BadMessage("a learning rate and a target batch are larger than zero")
    if isinstance(what, Amend) and all(value is None for name, value in asdict(what).items() if name != "from_epoch"):
        raise BadMessage("an amendment says what changes")
    if isinstance(what, Amend) and what.minimum_version is not None:
        Version(what.minimum_version)
