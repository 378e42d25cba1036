"""Dialling again when two peers met in dialling each other, and not for other reasons."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure

from collab.net.dialling import AGAIN_S, connect
from collab.net.hivemind_parts import Multiaddr
from tests.fakes import run

ADDRESS = "/ip4/10.0.0.1/tcp/4000"

MET = "failed to negotiate security protocol: error reading handshake message: noise: message is too short"


class Daemon:
    """Fails as often as it is told, then connects."""

    def __init__(self, *failures: str) -> None:
        self.failures, self.dialled_at_s = list(failures), list[float]()
        self._client = SimpleNamespace(connect=self._connect)

    async def _connect(self, peer: Any, addresses: Any) -> None:
        self.dialled_at_s.append(asyncio.get_running_loop().time())
        if self.failures:
            raise ControlFailure(self.failures.pop(0))


def dialled(daemon: Daemon, limit_s: float = 60.0) -> None:
    async def main() -> None:
        async with asyncio.timeout(limit_s):
            await connect(daemon, None, Multiaddr(ADDRESS))  # type: ignore[arg-type]

    run(main())


def test_two_that_met_dial_again_after_a_time_of_their_own() -> None:
    one, other = Daemon(MET, "all dials failed: dial backoff"), Daemon(MET, MET)
    for daemon in (one, other):
        dialled(daemon)
        waits_s = [later - before for before, later in zip(daemon.dialled_at_s, daemon.dialled_at_s[1:], strict=False)]
        assert len(waits_s) == 2
        assert all(AGAIN_S[0] <= wait_s <= AGAIN_S[1] + 1e-6 for wait_s in waits_s)
    assert one.dialled_at_s != other.dialled_at_s


@pytest.mark.parametrize("reason", ["all dials failed: connection refused", "security protocol: peer id mismatch"])
def test_who_refuses_is_not_dialled_again(reason: str) -> None:
    daemon = Daemon(reason)
    with pytest.raises(ControlFailure, match=reason):
        dialled(daemon)
    assert len(daemon.dialled_at_s) == 1


def of_each(**told: str) -> str:
    """What the daemon says of a peer of which it knows several addresses."""
    places = {"asked": ADDRESS, "other": "/ip4/10.0.0.1/tcp/40"}
    return "\n".join(["all dials failed", *(f"  * [{places[name]}] {text}" for name, text in told.items())])


def test_what_became_of_the_address_that_was_asked_for_counts() -> None:
    """An address that was wrong before backs off for ever longer times, in each of which the daemon says so."""
    for other in ("dial backoff", MET):
        refused = Daemon(of_each(other=other, asked="connect: connection refused"))
        with pytest.raises(ControlFailure, match="connection refused"):
            dialled(refused)
        assert len(refused.dialled_at_s) == 1
        met = Daemon(of_each(asked=other, other="connect: connection refused"))
        dialled(met)
        assert len(met.dialled_at_s) == 2


def test_dialling_ends_with_the_caller_s_patience() -> None:
    daemon = Daemon(*[MET] * 1000)
    with pytest.raises(TimeoutError):
        dialled(daemon, limit_s=5.0)
    assert 10 <= len(daemon.dialled_at_s) <= 51
