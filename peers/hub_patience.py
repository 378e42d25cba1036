"""How long a command that ends waits for the Hub; a backbone that serves has its own ways (``hub_desk``)."""

import math
from collections.abc import Callable
from time import sleep  # noqa: TID251 - a command that does nothing else, or a thread of its own
from typing import TypeVar

from collab.errors import HubBusy
from peers.process import announce

T = TypeVar("T")
WAITS_S = (2.0, 5.0, 10.0, 20.0)
"""Between attempts, unless the Hub names a longer one."""
LONGEST_S = 60.0
"""A person does not wait for longer without a word of what to do, be it for the next attempt or for an answer."""


def patiently(work: Callable[[], T]) -> T:
    """Do what asks the Hub, a few times within about a minute if it does not answer. Blocks.

    A download that breaks off may have taken an hour: only what was waited for in vain counts. An attempt that may be
    as silent as the last one, and end after that minute, is not made.

    Raises:
        HubBusy: it still does not, or asks for more time than that; the hint says when to come back.
        Others: as ``work``, at once.
    """
    waits_s, in_vain_s = iter(WAITS_S), 0.0
    while True:
        try:
            return work()
        except HubBusy as error:
            wait_s = max(next(waits_s, math.inf), error.retry_after_s)
            in_vain_s += error.silent_s + wait_s
            if in_vain_s + error.silent_s > LONGEST_S:
                raise HubBusy(error.message, hint=_when(error), retry_after_s=error.retry_after_s) from None
            announce(f"{error.message}; asking again in {wait_s:.0f} s")
        sleep(wait_s)


def _when(error: HubBusy) -> str:
    minutes = math.ceil(error.retry_after_s / 60.0)
    return f"it asks for time: try again in {minutes} min" if minutes > 1 else error.hint
