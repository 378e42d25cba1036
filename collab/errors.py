"""The error tree.

A message says what was expected and what came; ``hint`` says what to do next. The command line shows both and no
traceback. Wrong arguments from a caller are ``ValueError`` and are not part of the tree.
"""

from typing import Any, Self


class CollabError(Exception):
    """Root of every error that a user or a peer can cause."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  -> {self.hint}" if self.hint else self.message

    def again(self) -> Self:
        """The same without the traceback, for what keeps an error: that holds all the frames that it came through, and
        whoever kept it is in one of them, so that only a garbage collection would free any of it.
        """
        twin = type(self).__new__(type(self), *self.args)
        twin.__dict__.update(self.__dict__)
        return twin


# -- what a person wrote ---------------------------------------------------------------------------------------------


class ConfigError(CollabError):
    """A run file, flag or combination of them cannot be used."""


class InviteError(CollabError):
    """An invite is garbled, or belongs to another run."""


class RunMismatch(CollabError):
    """Two peers do not mean the same run: their fingerprints differ."""


class DataError(CollabError):
    """The training data cannot be read, or does not fit the task."""


class DataUnreachable(DataError):
    """The server that has the training data does not answer, or asks for patience: the same may work later."""

    at: dict[str, Any] | None = None
    """As of ``BrokenOff``."""


class BrokenOff(CollabError):
    """Work was ended between two pieces, since this machine is to do something else; ``at`` is where, as JSON values,
    for whoever goes on with it. None: it begins anew.
    """

    at: dict[str, Any] | None = None


class DeviceFull(CollabError):
    """The device's memory does not hold what is needed there; another program that has it may give it back."""


class TaskFailed(CollabError):
    """Code of the run's task, which may be somebody else's, has raised an error that is none of ours."""


class Dismissed(CollabError):
    """This peer must stop: it is banned or too old, or nobody runs the run any more. Its state was kept."""


# -- the network -----------------------------------------------------------------------------------------------------


class NetworkError(CollabError):
    """Root of what can go wrong between two peers; a peer survives all of these."""


class BootstrapFailed(NetworkError):
    """None of the addresses in the invite answered; the message lists each with its reason."""


class PortTaken(NetworkError):
    """Another process listens on the port that was asked for."""


class PeerUnreachable(NetworkError):
    """A stream could not be opened: the peer is gone, or does not speak the protocol."""


class DialBackRefused(NetworkError):
    """A peer that was asked to dial us back will not try; ``reason`` is one word."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class StreamClosed(NetworkError):
    """The other side closed the stream or died."""


class TimedOut(NetworkError):
    """The deadline given by the caller passed."""


class BadMessage(NetworkError):
    """Bytes that are no message of ours: wrong magic, over a limit, not msgpack, a field missing or of a wrong type."""


class TooLarge(BadMessage):
    """A message that is larger than anything its protocol needs; it was not read."""

    reason = "too_large"


class TooMany(BadMessage):
    """More small messages than any honest peer sends."""

    reason = "too_many_messages"


class AccessDenied(NetworkError):
    """The other side says that this peer may not take part: not invited, too many devices, banned."""


class VersionMismatch(NetworkError):
    """The other side speaks another version of the protocol; the message names both."""


class BadCertificate(BadMessage):
    """A round is told of as history, and votes do not prove it; ``reason`` is one word for counters."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


# -- rounds ----------------------------------------------------------------------------------------------------------


class BadPart(CollabError):
    """A member's part cannot be used; ``reason`` is one word for counters, and its sender leaves the round."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class SplitDecision(CollabError):
    """Two values were decided in one instance: a rule of ``collab.averaging.ballots`` was broken. Stop and resync."""


# -- state -----------------------------------------------------------------------------------------------------------


class StateError(CollabError):
    """Root of what can be wrong with a snapshot or a checkpoint."""


class CorruptState(StateError):
    """Bytes do not match the digest in their manifest, or end early."""


class ShapeMismatch(StateError):
    """The tensors of a snapshot are not those of this model or optimiser; the message names the first difference."""


class CheckpointFailed(StateError):
    """A checkpoint could not be written; the last good one is untouched."""


class Fenced(StateError):
    """A snapshot was not published: its backbone does not hold the lease any more. Follow the one that does."""


class HubError(StateError):
    """Root of what can go wrong between us and the Hugging Face Hub; what is on our disk is untouched."""


class HubBusy(HubError):
    """The Hub did not answer, or asks for patience: the same may work later.

    ``silent_s`` is for how long an answer was waited for that did not come; 0: there was one, or nothing to wait for.
    """

    def __init__(
        self, message: str, *, hint: str = "", retry_after_s: float = 0.0, silent_s: float = 0.0
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s, self.silent_s = retry_after_s, silent_s


class HubDenied(HubError):
    """It will not work until a person does something; the hint says what."""


class HubMissing(HubDenied):
    """The Hub knows whose token it is, and shows no such repository: it is not there, or not for this account."""


class HubMoved(HubError):
    """Somebody else has committed since we looked: look again."""


class NoDonor(StateError):
    """Nobody reachable serves the state that was asked for."""
