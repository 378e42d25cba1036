"""What holds for every test."""

import signal
import time
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

from peers.process import LEAVE

settings.register_profile("collab", deadline=None)
settings.load_profile("collab")
"""How long an example takes says something of the machine, not of the code."""

BEGAN_S = pytest.StashKey[float]()
"""When a test began, before its time limit was set, by the monotonic clock."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Notes when a test begins."""
    item.stash[BEGAN_S] = time.monotonic()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """A test that ran into its time limit fails even if the code under test swallowed the interruption.

    pytest-timeout interrupts by an exception, which tasks of asyncio keep to themselves like any other.
    """
    yield
    marker = item.get_closest_marker("timeout")
    limit_s = float(marker.args[0] if marker is not None else item.config.getini("timeout"))
    seconds = time.monotonic() - item.stash[BEGAN_S]
    if seconds > limit_s:
        pytest.fail(f"took {seconds:.1f} s of {limit_s:.1f} s, and something swallowed the interruption")


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """A peer that has ended hears of none any more, and programs that are started afterwards would inherit that."""
    before = {signum: signal.getsignal(signum) for signum in LEAVE}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)
