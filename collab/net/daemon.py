"""Starting p2pd, the process that speaks libp2p for its peer."""

import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from collab.errors import NetworkError
from collab.net import daemon_messages
from collab.net.hivemind_parts import P2P, ControlFailure, Multiaddr, P2PDaemonError
from collab.net.relaying import RelayLimits, Reservation, reserve
from collab.swarm.identity import load_or_create_identity
from collab.types import PeerId

logger = logging.getLogger(__name__)

PROCESSORS = "1"
"""Of the daemon, which passes on some 250 MB/s in each direction with one (measured). With two it takes a quarter more
processor time for the same bytes, looking for work for the second."""
RELAY_STARTS = 16
"""Half of all starts come to the wrong limits (11, 7 and 12 of 20 measured); sixteen in a row do once in 60,000."""
RELAY_QUESTIONS = 2
RELAY_TIMEOUT_S = 5.0
"""Of a question to a relay, or ours in its place: ten round trips of 300 ms, and the pauses of two busy machines."""


class _Daemon(P2P):  # type: ignore[misc]  # hivemind is untyped
    """p2pd in a session of its own: Ctrl+C in a terminal must not kill it before its peer has said goodbye.

    It uses one processor, unless ``GOMAXPROCS`` says otherwise.
    """

    @staticmethod
    def _make_process_args(*args: object, **kwargs: object) -> list[str]:  # hivemind's own hook takes keywords
        command: list[str] = P2P._make_process_args(*args, **kwargs)
        if setsid := shutil.which("setsid"):
            command = [setsid, *command]
        if (env := shutil.which("env")) and "GOMAXPROCS" not in os.environ:
            command = [env, f"GOMAXPROCS={PROCESSORS}", *command]
        return command


def daemon_traffic(p2p: P2P, proc: Path = Path("/proc")) -> int:
    """Bytes that the daemon has sent to other machines and taken from them, together; 0: nobody knows.

    It reads and writes each byte twice, once on the network and once on the sockets to its peer. What it passes on
    between others it reads and writes once, and would be counted by half: only backbones do that.
    """
    try:
        lines = (proc / str(p2p._child.pid) / "io").read_text().splitlines()
        counts = dict(line.split(": ") for line in lines)
        return (int(counts["rchar"]) + int(counts["wchar"])) // 2
    except (AttributeError, OSError, ValueError, KeyError):
        return 0  # it has ended, or this system keeps no such counts


async def start_daemon(
    identity_path: Path,
    host_maddrs: Sequence[str],
    announce: Sequence[str] = (),
    relay: RelayLimits | None = None,
    *,
    is_punching: bool = False,
) -> P2P:
    """Start a daemon; whoever shuts it down ends the process.

    Args:
        host_maddrs: where to listen; empty: nowhere.
        announce: addresses to tell others instead.
        relay: pass on between others within these limits; None: pass nothing on.
        is_punching: turn a circuit that is opened to us into a direct connection, if the routers let both through.

    Raises:
        P2PDaemonError: it did not start.
    """
    if relay is None:
        reachability: Literal["private"] | None = "private" if is_punching else None
        return await _start(identity_path, host_maddrs, announce, _Daemon, reachability=reachability)
    for _ in range(RELAY_STARTS):
        p2p = await _start(identity_path, host_maddrs, announce, _relaying(relay), reachability="public")
        if await _keeps(p2p, host_maddrs, relay):
            return p2p
        await p2p.shutdown()
    logger.warning("this libp2p daemon keeps to no limits as a relay, so it passes nothing on")
    return await _start(identity_path, host_maddrs, announce, _Daemon)


async def _start(
    identity_path: Path,
    host_maddrs: Sequence[str],
    announce: Sequence[str],
    kind: type[P2P],
    *,
    reachability: Literal["public", "private"] | None = None,
) -> P2P:
    """
    Args:
        reachability: public: a relay; private: one that gets through routers; None: neither.
    """
    daemon_messages.mend()
    return await kind.create(
        identity_path=str(identity_path),
        host_maddrs=list(host_maddrs) or None,
        announce_maddrs=list(announce) or None,
        no_listen=not host_maddrs,
        check_if_identity_free=False,
        nat_port_map=False,
        auto_nat=reachability == "private",
        use_relay=reachability == "public",
        force_reachability=reachability,
    )


def _relaying(limits: RelayLimits) -> type[P2P]:
    """A daemon with options that ``P2P.create`` does not know."""

    class Relaying(_Daemon):
        @staticmethod
        def _make_process_args(*args: object, **kwargs: object) -> list[str]:
            return _Daemon._make_process_args(*args, **kwargs, **limits.arguments())

    return Relaying


async def _keeps(p2p: P2P, host_maddrs: Sequence[str], limits: RelayLimits) -> bool:
    """Whether a relay grants what it was told to.

    The daemon starts two relay services under one name, one with our limits, as soon as it takes itself for reachable,
    and one with built-in limits; whichever comes last answers. So it is asked, by a daemon that ends right after.
    """
    wanted = Reservation(data_bytes=limits.data_bytes, time_s=limits.time_s)
    relay = PeerId(p2p.peer_id.to_base58())
    near = [Multiaddr(address.replace("0.0.0.0", "127.0.0.1")) for address in host_maddrs if not address.endswith("/0")]  # noqa: S104
    with tempfile.TemporaryDirectory(prefix="collab-relay-") as folder:
        load_or_create_identity(Path(folder) / "key")
        asker = await _start(Path(folder) / "key", (), (), _Daemon)
        try:
            await asker._client.connect(p2p.peer_id, [*near, *p2p._visible_maddrs])
            for _ in range(RELAY_QUESTIONS):  # our service may be the later one, and not be there yet
                granted = await reserve(asker, relay, timeout_s=RELAY_TIMEOUT_S)
                if granted == wanted:
                    return True
        except (NetworkError, ControlFailure, P2PDaemonError) as error:
            logger.info("relay not granted reason=%s", error)
        finally:
            await asker.shutdown()
    logger.info("relay with other limits than ours; starting it again")
    return False
