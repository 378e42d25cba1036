"""How we talk to the Hub: through its own client, but with our own patience.

The client waits and tries again by itself, in the middle of a call, for half a minute and more, and has no limit for a
server that says nothing. Within ``asking`` neither is so: whatever asks for patience is raised at once as ``HubBusy``,
and whoever asked decides when to try again.
"""

import logging
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from typing import Any

from collab.checkpoints.disk_errors import is_of_disk
from collab.checkpoints.hub_advice import AGAIN, FULL, REFUSED, TO_WRITE, UNKNOWN, advice_here
from collab.concurrency import chain_of
from collab.errors import CollabError, HubBusy, HubDenied, HubError, HubMissing, HubMoved
from collab.statuses import PATIENCE

logger = logging.getLogger(__name__)

SILENCE_S = 60.0
"""A connection on which nothing moves for so long is given up."""
LONGEST_WAIT_S = 3600.0
"""However long the Hub asks us to wait."""
MOVED = (409, 412)
OF_STORAGE = re.compile(r"\b(storage|quota|disk space)\b", re.IGNORECASE)
"""In what the Hub says when an account or a repository is full: it may be a 403 as well."""
USED_UP = re.compile(r'" *; *r *= *0 *; *t *= *(\d+)', re.ASCII)
"""In ``RateLimit``: of a named limit nothing remains for so many seconds, as in ``"api";r=0;t=55``."""
LONGEST_REASON = 300
"""Characters of what a server says that we pass on."""
IS_OURS: ContextVar[bool] = ContextVar("IS_OURS", default=False)
"""Whether a request comes from within ``asking``; other users of the client in this process keep its own ways."""
LISTENER: ContextVar[Callable[[int], None] | None] = ContextVar("LISTENER", default=None)
"""Who wants to know how many bytes of an upload have left; see ``watching``."""


@contextmanager
def asking(place: str, advice: str = TO_WRITE) -> Iterator[None]:
    """Use the Hub's client in here, in this thread.

    Args:
        place: that it is about, for messages.
        advice: for a person whose token is not enough.

    Raises:
        HubError: one of its kinds for whatever went wrong.
        OSError: it was no fault of the Hub's or the network's, but of a disk of this machine.
    """
    _become_impatient()
    token = IS_OURS.set(True)
    try:
        yield
    except CollabError:
        raise
    except Exception as error:  # noqa: BLE001 - the client, and the libraries under it, raise what they like
        logger.debug("the Hub's client failed place=%s kind=%s", place, type(error).__name__)
        if (ours := _of_disk(error)) is not None:
            raise ours from None
        # Its text may hold addresses that are as good as passwords.
        raise translated(error, place, advice_here(advice)) from None
    finally:
        IS_OURS.reset(token)


@contextmanager
def watching(tell: Callable[[int], None]) -> Iterator[None]:
    """Hear how many bytes of each request that uploads in here, in this thread, have left. Of what the client sends by
    its other way (Xet) nothing is heard.
    """
    token = LISTENER.set(tell)
    try:
        yield
    finally:
        LISTENER.reset(token)


def has_token() -> bool:
    """Whether the Hub's client finds a token on this machine; it may still be a wrong one."""
    from huggingface_hub import get_token

    try:
        return bool(get_token())
    except OSError:  # one that cannot be read: the first request says so
        return True


def _of_disk(error: BaseException) -> OSError | None:
    """The error of our own disk that is behind one of the client's; None: it is another one."""
    from huggingface_hub.errors import HfHubHTTPError

    for one in chain_of(error):
        if isinstance(one, HubError | HfHubHTTPError.__bases__[0]):
            return None  # the Hub, or the way there
        if isinstance(one, OSError) and is_of_disk(one):
            return one
    return None


def translated(error: BaseException, place: str, advice: str = TO_WRITE) -> HubError:
    """What went wrong, in our words. What the client raised is not quoted: it holds signed addresses."""
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalTokenNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    chain = list(chain_of(error))
    for one in chain:
        if isinstance(one, HubError):
            return one.again()
    for one in chain:
        if isinstance(one, OfflineModeIsEnabled):
            return HubDenied(f"{place} was not asked: this machine is set to work offline", hint="unset HF_HUB_OFFLINE")
        if isinstance(one, LocalTokenNotFoundError):
            return HubDenied(f"{place} needs a token, and there is none on this machine", hint=advice)
        if isinstance(one, RevisionNotFoundError):
            return HubDenied(f"{place} has no such revision", hint="name a branch, a tag or a commit that is there")
        if isinstance(one, RepositoryNotFoundError) and not isinstance(one, GatedRepoError):
            text = f"{place} is not there, or the token of this machine may not see it"
            kind = HubMissing if _is_known(one) else HubDenied
            return kind(text, hint=f"check its name; {advice}")
        response = getattr(one, "response", None)
        if response is not None:
            return _refusal(int(response.status_code), _reason(one), place, advice)
    return HubBusy(f"asking {place} failed: {type(error).__name__}", hint=AGAIN)


def _is_known(error: Any) -> bool:
    """Whether the Hub knows who has asked: it says 404 to these only, and 401 to everybody else, whatever is there."""
    return int(error.response.status_code) == 404 and "authorization" in error.response.request.headers


def _refusal(status: int, reason: str, place: str, advice: str) -> HubError:
    said = f"{place} answered {status}" + (f": {reason}" if reason else "")
    if status in MOVED:
        return HubMoved(said)
    if 400 <= status < 500 and status not in PATIENCE and OF_STORAGE.search(reason):
        return HubDenied(said, hint=FULL)
    if status == 401:
        return HubDenied(f"{said}; the token of this machine is missing, wrong or has expired", hint=advice)
    if status == 403:
        text = f"{said}; the token of this machine may not do that"
        return HubDenied(text, hint=advice)
    if status in REFUSED:
        return HubDenied(said, hint=REFUSED[status])
    if 400 <= status < 500 and status not in PATIENCE:
        return HubDenied(said, hint=UNKNOWN)
    return HubBusy(said, hint=AGAIN)


def _reason(error: BaseException) -> str:
    """What the server says of it, without what it may have learnt from our own request."""
    from huggingface_hub import get_token

    text = " ".join(str(getattr(error, "server_message", None) or "").split())[:LONGEST_REASON]
    return without_token(text, get_token())


def without_token(text: str, token: str | None) -> str:
    """``text`` with nothing in it that is, or looks like, a token of the Hub."""
    words = [word if "hf_" not in word else "***" for word in text.split(" ")]
    cleaned = " ".join(words)
    return cleaned.replace(token, "***") if token else cleaned


def _become_impatient() -> None:
    """Have the client of this process obey ``asking``; once."""
    from huggingface_hub import get_session, set_client_factory
    from huggingface_hub.utils._http import default_client_factory
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if getattr(get_session(), "is_impatient", False):
        return
    disable_progress_bars()  # they would be drawn over what a person reads
    plain = default_client_factory()
    kind, hooks = _impatient(type(plain)), plain.event_hooks
    plain.close()
    set_client_factory(lambda: kind(event_hooks=hooks, follow_redirects=True, timeout=SILENCE_S))


def _impatient(kind: type[Any]) -> type[Any]:
    """The client's class (of httpx, or of what has followed it), with another way to send."""
    from huggingface_hub.errors import HfHubHTTPError

    counted = _counted(sys.modules[kind.__module__.partition(".")[0]].SyncByteStream)
    unanswered: Any = HfHubHTTPError.__bases__[0]  # of that library: everything that is no answer

    def send(self: Any, request: Any, **options: Any) -> Any:
        if not IS_OURS.get():
            return kind.send(self, request, **options)
        if request.method == "PUT" and (tell := LISTENER.get()) is not None:
            request.stream = counted(request.stream, tell)
        began_s = time.monotonic()
        try:
            response = kind.send(self, request, **options)
        except unanswered as error:
            text, silent_s = f"the Hub could not be reached: {type(error).__name__}", time.monotonic() - began_s
            raise HubBusy(text, hint=f"is this machine online? {AGAIN}", silent_s=silent_s) from None
        if response.status_code in PATIENCE:
            response.close()
            raise HubBusy(
                f"the Hub answered {response.status_code}",
                hint=AGAIN,
                retry_after_s=retry_after_s(response.headers),
            )
        return response

    return type("ImpatientClient", (kind,), {"send": send, "is_impatient": True})


def _counted(kind: type[Any]) -> type[Any]:
    """A body of that library's kind, which tells how much of it was taken."""

    def begin(self: Any, body: Any, tell: Callable[[int], None]) -> None:
        self.body, self.tell = body, tell

    def parts(self: Any) -> Iterator[bytes]:
        sent_bytes = 0
        for part in self.body:
            yield part
            sent_bytes += len(part)
            self.tell(sent_bytes)

    return type("CountedBody", (kind,), {"__init__": begin, "__iter__": parts, "close": lambda self: self.body.close()})


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Seconds that a server asks us to wait; 0: it does not say. The longer one counts of the two ways to say it:
    ``Retry-After``, in seconds or as a date, and the Hub's own ``RateLimit``, of which limits that are used up count.

    Args:
        headers: of its answer, by name in whatever case.

    Source: RFC 9110, section 10.2.3; draft-ietf-httpapi-ratelimit-headers-09.
    """
    said = headers.get("Retry-After", "").strip()
    waits_s = [float(said) if said.isascii() and said.isdigit() else _until(said, headers.get("Date", ""))]
    waits_s += [float(seconds) for seconds in USED_UP.findall(headers.get("RateLimit", ""))]
    return min(max(waits_s), LONGEST_WAIT_S)


def _until(date: str, now: str) -> float:
    """Seconds from one date to another, both by the server's clock: ours may be wrong; 0: that is not known."""
    try:
        return max((parsedate_to_datetime(date) - parsedate_to_datetime(now)).total_seconds(), 0.0)
    except (ValueError, TypeError):  # no dates, or one of them without a time zone
        return 0.0
