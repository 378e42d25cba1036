"""Scripted faults: what goes wrong, to whom and when, as lines of a test.

    churn = Churn(world)
    churn.fail_at(peer=3, epoch=2)
    churn.freeze_at(peer=1, phase=Phase.REDUCE, for_s=20)
    world.run()
    assert not churn.unfired()

``epoch`` alone means: right after the peer took its optimiser step number ``epoch``. With ``phase`` it means: when the
peer is about to do that phase of that epoch; without an epoch, the first time. ``time_s`` is virtual seconds since the
world began. A fault that meets a dead peer does not fire.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from collab.metrics.records import EpochFinished, Event, Phase, PhaseReached
from collab.simulation.peer import SimPeer
from collab.simulation.world import World

FLIPS = 3
"""First, middle and last byte: enough to break any digest, and to change a number in a part of any codec."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Fault:
    """One line of the script."""

    text: str
    act: Callable[[], bool]
    """Does the harm; False when there was nobody to harm, or when the harm is still to come."""
    peer: int | None = None
    phase: Phase | None = None
    epoch: int | None = None
    is_waiting: bool = True
    """For its moment."""
    has_fired: bool = False

    def strike(self) -> None:
        self.is_waiting = False
        self.has_fired = self.act() or self.has_fired

    def is_due(self, event: Event) -> bool:
        if isinstance(event, PhaseReached):
            return self.phase is event.phase and self.epoch in (None, event.epoch)
        return isinstance(event, EpochFinished) and self.phase is None and self.epoch == event.epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class _Corruption:
    protocol: str
    report: Callable[[], None]


class Churn:
    """The script of one world. Lines may be added before and during the run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._faults: list[_Fault] = []
        self._corruptions: dict[int, list[_Corruption]] = {}
        world.subscribe(self._watch)

    def fail_at(
        self,
        peer: int,
        *,
        epoch: int | None = None,
        phase: Phase | None = None,
        time_s: float | None = None,
        restart_after_s: float | None = None,
    ) -> None:
        """Kill ``peer`` as ``kill -9`` does; optionally start it again, with its identity and nothing else."""

        def kill() -> bool:
            if not self._world.peers[peer].is_alive:
                return False
            self._world.kill(peer)
            if restart_after_s is not None:
                self.restart_at(peer, time_s=self._world.time_s + restart_after_s)
            return True

        self._plan(_Fault(text=f"fail_at(peer={peer}", act=kill, peer=peer, phase=phase, epoch=epoch), time_s)

    def restart_at(self, peer: int, *, time_s: float) -> None:
        """Start a dead peer again."""

        def restart() -> bool:
            if self._world.peers[peer].is_alive:
                return False
            self._world.restart(peer)
            return True

        self._plan(_Fault(text=f"restart_at(peer={peer}", act=restart, peer=peer), time_s)

    def freeze_at(
        self,
        peer: int,
        *,
        for_s: float,
        epoch: int | None = None,
        phase: Phase | None = None,
        time_s: float | None = None,
    ) -> None:
        """Stop ``peer`` as SIGSTOP does, and let it go on ``for_s`` later; its endpoint goes on meanwhile."""

        def freeze() -> bool:
            if not self._world.peers[peer].is_alive:
                return False
            self._world.freeze(peer)
            self._world.call_at(self._world.time_s + for_s, lambda: self._world.thaw(peer))
            return True

        text = f"freeze_at(peer={peer}, for_s={for_s}"
        self._plan(_Fault(text=text, act=freeze, peer=peer, phase=phase, epoch=epoch), time_s)

    def slow_at(
        self,
        peer: int,
        factor: float,
        *,
        epoch: int | None = None,
        phase: Phase | None = None,
        time_s: float | None = None,
    ) -> None:
        """From then on ``peer`` computes ``factor`` times more slowly; below 1 it gets faster."""
        if not factor > 0:
            raise ValueError(f"factor must be > 0, got {factor}")

        def slow() -> bool:
            victim = self._world.peers[peer]
            victim.compute.samples_per_s /= factor
            return victim.is_alive

        text = f"slow_at(peer={peer}, factor={factor}"
        self._plan(_Fault(text=text, act=slow, peer=peer, phase=phase, epoch=epoch), time_s)

    def slow_link_at(
        self,
        peer: int,
        factor: float,
        *,
        for_s: float,
        epoch: int | None = None,
        phase: Phase | None = None,
        time_s: float | None = None,
    ) -> None:
        """The link of ``peer`` falls to a ``factor``-th of its rates both ways, and rises again ``for_s`` later."""
        if not factor > 0:
            raise ValueError(f"factor must be > 0, got {factor}")

        def slow() -> bool:
            victim = self._world.peers[peer]
            before = victim.transport.access.link
            up, down = before.up_bytes_per_s / factor, before.down_bytes_per_s / factor
            self._world.set_link(peer, replace(before, up_bytes_per_s=up, down_bytes_per_s=down))
            self._world.call_at(self._world.time_s + for_s, lambda: self._world.set_link(peer, before))
            return victim.is_alive

        text = f"slow_link_at(peer={peer}, factor={factor}, for_s={for_s}"
        self._plan(_Fault(text=text, act=slow, peer=peer, phase=phase, epoch=epoch), time_s)

    def corrupt_at(
        self,
        peer: int,
        *,
        protocol: str = "",
        epoch: int | None = None,
        phase: Phase | None = None,
        time_s: float | None = None,
    ) -> None:
        """Flip bytes in the next payload that ``peer`` sends under a protocol that starts with ``protocol``.

        The fault counts as fired once bytes were flipped. It models broken memory: libp2p would notice a broken wire.
        """

        def arm() -> bool:
            victim = self._world.peers[peer]
            if victim.is_alive:
                self._corruptions.setdefault(peer, []).append(_Corruption(protocol=protocol, report=fired))
                victim.transport.tamper = lambda used, payload: self._tamper(peer, used, payload)
            return False

        def fired() -> None:
            fault.has_fired = True

        text = f"corrupt_at(peer={peer}, protocol={protocol!r}"
        fault = _Fault(text=text, act=arm, peer=peer, phase=phase, epoch=epoch)
        self._plan(fault, time_s)

    def partition_at(
        self, groups: Iterable[Iterable[int]], *, time_s: float, for_s: float, resets_streams: bool = False
    ) -> None:
        """Cut groups of peers off from each other; peers in no group are one more. One partition at a time.

        Args:
            for_s: then everything that was held arrives.
            resets_streams: streams across the cut break when it heals, as connections do after minutes.
        """
        members = [list(group) for group in groups]

        def split() -> bool:
            network = self._world.network
            network.split([[self._world.peers[index].transport for index in group] for group in members])
            self._world.call_at(self._world.time_s + for_s, lambda: network.heal(resets_streams=resets_streams))
            return True

        self._plan(_Fault(text=f"partition_at({members}, for_s={for_s}", act=split), time_s)

    def unfired(self) -> tuple[str, ...]:
        """Lines of the script that did nothing, a defect of the test that wrote them; empty when all is well."""
        return tuple(fault.text for fault in self._faults if not fault.has_fired)

    def _plan(self, fault: _Fault, time_s: float | None) -> None:
        by_event = fault.phase is not None or fault.epoch is not None
        moments = {"phase": fault.phase, "epoch": fault.epoch, "time_s": time_s}
        fault.text += "".join(f", {name}={value}" for name, value in moments.items() if value is not None) + ")"
        if by_event == (time_s is not None):
            raise ValueError(f"{fault.text} needs either time_s, or epoch and phase or one of them")
        if time_s is not None:
            if time_s < self._world.time_s:
                raise ValueError(f"{fault.text} lies in the past: it is {self._world.time_s} s")
            self._world.call_at(time_s, fault.strike)
        self._faults.append(fault)

    def _watch(self, peer: SimPeer, event: Event) -> None:
        for fault in list(self._faults):
            if fault.is_waiting and fault.peer == peer.index and fault.is_due(event):
                fault.strike()

    def _tamper(self, peer: int, protocol: str, payload: bytes) -> bytes:
        for corruption in self._corruptions[peer]:
            if payload and protocol.startswith(corruption.protocol):
                self._corruptions[peer].remove(corruption)
                corruption.report()
                return _flip(payload)
        return payload


def _flip(payload: bytes) -> bytes:
    flipped = bytearray(payload)
    for place in {number * (len(payload) - 1) // (FLIPS - 1) for number in range(FLIPS)}:
        flipped[place] ^= 0xFF
    return bytes(flipped)
