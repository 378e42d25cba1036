"""The processes of a long-lived swarm: started, asked, struck by faults, replaced."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from averaging_contest import START_LIMIT_S, Peer
from averaging_meters import program
from bench_processes import BenchFailed, Household, Seen, family
from faults_setup import Kind, Place, Setup
from netlab import Lab

ANSWER_LIMIT_S = 60.0
WHOLE_LIMIT_S = 60.0
"""For everybody to know of everybody: a record travels in a second or two."""
LOOK_AGAIN_S = 0.2
VERIFY_S = 1.0
"""For signals to have their effect."""
BOOTSTRAPS = 3
"""Addresses that a newcomer is given, as an invite has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """A fault that has happened."""

    slot: int
    at_s: float
    """By the monotonic clock, before the first signal."""
    done_s: float
    """After the last one."""
    is_verified: bool
    """The process table says so."""


class Crew:
    """All peers, by slot."""

    def __init__(self, setup: Setup, lab: Lab, household: Household) -> None:
        self._setup, self._lab, self._household = setup, lab, household
        self._peers: dict[int, Peer] = {}
        self._contacts: dict[int, str] = {}
        self._lives = 0
        self._families: dict[int, tuple[Seen, ...]] = {}
        """Processes of each peer, as of the round's beginning: a search through all of them takes long."""

    @property
    def slots(self) -> frozenset[int]:
        """Of everybody."""
        return frozenset(self._peers)

    def log_of(self, slot: int) -> Path:
        """Where its present life writes."""
        return self._peers[slot].child.log

    # -- lives -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bring up everybody, let them join one after another, and wait until they know each other.

        Raises:
            BenchFailed: somebody does not come up.
        """
        first, *others = range(self._setup.peers)
        self._open([first])
        self._open(others)
        for slot in range(self._setup.peers):
            self.ask(slot, "enter genesis", "entered")
        self.await_whole()

    def _open(self, slots: Iterable[int]) -> None:
        slots = list(slots)
        bootstrap = tuple(self._contacts[slot] for slot in sorted(self._contacts)[:BOOTSTRAPS])
        for slot in slots:
            self._peers[slot] = self._start(slot, bootstrap)
        for slot in slots:
            self._contacts[slot] = self._peers[slot].expect("ready", START_LIMIT_S)["contact"]

    def _start(self, slot: int, bootstrap: tuple[str, ...]) -> Peer:
        place = Place(
            slot=slot,
            name=f"{slot}.{self._lives}",
            host=self._lab.host(slot),
            bootstrap=bootstrap,
            num_elements=self._setup.num_elements,
            seed=self._setup.seed,
        )
        self._lives += 1
        words = [str(Path(__file__).with_name("faults_peer.py")), place.to_json()]
        return Peer(self._household.start(words, place=self._lab.place(slot)))

    def replace(self, slots: Iterable[int]) -> None:
        """Strangers in the place of peers that are dead, or are killed now; they have yet to enter the history.

        Raises:
            BenchFailed: they do not come up.
        """
        slots = sorted(slots)
        for slot in slots:
            gone = self._peers.pop(slot)
            self._contacts.pop(slot)
            _signal(family([gone.child.process.pid]), signal.SIGKILL)
            gone.child.process.wait()
        self._open(slots)

    def await_whole(self) -> int | None:
        """Until everybody knows everybody at one place in the history; the slot of who will lead the next round.

        Raises:
            BenchFailed: that does not come about.
        """
        give_up_s = time.monotonic() + WHOLE_LIMIT_S
        while True:
            looks = self.ask_all("look", "looked")
            histories = {(look["epoch"], look["lineage"]) for look in looks.values()}
            leaders = {look["leader"] for look in looks.values()}
            if len(histories) == len(leaders) == 1 and all(
                look["trainers"] == len(self._peers) for look in looks.values()
            ):
                leader: int | None = leaders.pop()
                return leader
            if time.monotonic() > give_up_s:
                raise BenchFailed(f"the swarm is not whole again after {WHOLE_LIMIT_S:.0f} s: {looks}")
            time.sleep(LOOK_AGAIN_S)

    # -- rounds ------------------------------------------------------------------------------------------------------

    def prepare(self, number: int) -> None:
        """Make everybody's vector."""
        self.ask_all(f"prepare {number}", "prepared")
        self._families = {slot: tuple(family([peer.child.process.pid])) for slot, peer in self._peers.items()}
        for peer in self._peers.values():
            peer.marks.clear()

    def begin(self) -> float:
        """Everybody wishes to average; when, by the monotonic clock."""
        began_s = time.monotonic()
        for peer in self._peers.values():
            self._say(peer, "step")
        return began_s

    def returned(self, slots: Iterable[int], limit_s: float) -> dict[int, dict[str, Any]]:
        """What those say who have their result within ``limit_s``."""
        give_up_s = time.monotonic() + limit_s
        found = {}
        for slot in sorted(slots):
            with suppress(BenchFailed):
                found[slot] = self._peers[slot].expect("returned", give_up_s - time.monotonic())
        return found

    def marks(self, slot: int, kind: str) -> list[dict[str, Any]]:
        """What a peer told on the way."""
        return [mark for mark in self._peers[slot].marks if mark["kind"] == kind]

    def ask(self, slot: int, word: str, kind: str) -> dict[str, Any]:
        """One peer's answer. Raises ``BenchFailed``."""
        self._say(self._peers[slot], word)
        return self._peers[slot].expect(kind, ANSWER_LIMIT_S)

    def ask_all(self, word: str, kind: str, slots: Iterable[int] | None = None) -> dict[int, dict[str, Any]]:
        """The answers of all, or of some. Raises ``BenchFailed``."""
        asked = sorted(self._peers if slots is None else slots)
        for slot in asked:
            self._say(self._peers[slot], word)
        return {slot: self._peers[slot].expect(kind, ANSWER_LIMIT_S) for slot in asked}

    @staticmethod
    def _say(peer: Peer, word: str) -> None:
        try:
            peer.child.say(word)
        except BrokenPipeError:
            raise BenchFailed(f"a peer ended by itself; the end of its log:\n{peer.child.log_tail()}") from None

    # -- faults ------------------------------------------------------------------------------------------------------

    def strike(self, slot: int, kind: Kind) -> Strike:
        """Let a fault happen to a peer, and see that it did."""
        signum = signal.SIGSTOP if kind.freezes else signal.SIGKILL
        struck = [seen for seen in self._families[slot] if kind is not Kind.P2PD or _is_daemon(seen)]
        at_s = time.monotonic()
        _signal(struck, signum)
        done_s = time.monotonic()
        give_up_s = done_s + VERIFY_S
        while not (is_verified := bool(struck) and all(_is_struck(seen, signum) for seen in struck)):
            if time.monotonic() > give_up_s:
                break
            time.sleep(0.01)
        return Strike(slot=slot, at_s=at_s, done_s=done_s, is_verified=is_verified)

    def thaw(self, slot: int) -> float:
        """End a freeze; when, by the monotonic clock."""
        thawed_s = time.monotonic()
        _signal(self._families[slot], signal.SIGCONT)
        return thawed_s


def _is_daemon(seen: Seen) -> bool:
    with suppress(OSError):
        return program(seen.pid) == "p2pd"
    return False


def _is_struck(seen: Seen, signum: signal.Signals) -> bool:
    return seen.is_stopped if signum is signal.SIGSTOP else not seen.is_alive


def _signal(struck: Iterable[Seen], signum: signal.Signals) -> None:
    for seen in struck:
        with suppress(ProcessLookupError):
            os.kill(seen.pid, signum)
