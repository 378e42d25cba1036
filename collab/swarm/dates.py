"""Swarm time in words."""

import time


def utc(at_s: float) -> str:
    """The same for everybody; the owner of a run, or another peer, may have said anything."""
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at_s))
    except (ValueError, OverflowError, OSError):
        return "an unknown time"
