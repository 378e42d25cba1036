"""Who may take part in a run: everybody, or whoever the owner has invited; and nobody whom it has banned."""

from collections.abc import Callable
from dataclasses import dataclass

from collab.errors import BadMessage
from collab.net.base import Barred
from collab.swarm.access import CLOCK_ERROR_S, MAX_DEVICES, PASS_LIFE_S, Pass, read_pass
from collab.swarm.dates import utc
from collab.swarm.statements import FOREVER, Ban
from collab.types import PeerId, Role

MAX_HOLDERS = MAX_DEVICES + 28
"""Devices of one invite that are remembered, and guests as well; whoever came later is refused anyway."""
MAX_PASSES = 8192
MAX_GONE = 64
"""Backbones that have left, whose signature still counts; the last ones."""
MAX_GUESTS = 8
"""Of one invite at a time: who looks has a place of its own, for as long as its pass lasts."""
ENDED = ("invite_expired", "pass_expired")
"""Why a pass is worth nothing any more."""
GUEST = "guest"
"""Why a stream of who looks only is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """The rules of one run."""

    fingerprint: str
    owner: PeerId
    is_open: bool
    """Whether peers without an invite may come."""
    ban_of: Callable[[str, float], Ban | None]
    """The ban that a peer or an invite is under at a swarm time."""


class Admission:
    """Judges peers by their passes. Implements ``Door``: each stream that somebody opens is asked about here."""

    def __init__(self, house: House, clock: Callable[[], float]) -> None:
        """
        Args:
            clock: swarm time.
        """
        self._house, self._clock = house, clock
        self._passes: dict[PeerId, Pass] = {}
        """The newest of each device."""
        self._holders: dict[PeerId, dict[PeerId, Pass]] = {}
        """By invite, and device."""
        self._gone: dict[PeerId, Pass] = {}
        """Of backbones that have said goodbye, the last ones last."""

    @property
    def is_closed(self) -> bool:
        """Whether nobody comes in without a pass."""
        return not self._house.is_open

    def barred(self, peer: PeerId, credential: bytes) -> Barred | None:
        """Why ``peer`` may not take part; None: it may.

        Args:
            credential: the pass that it shows; empty: none, now.
        """
        now = self._clock()
        if (ban := self._house.ban_of(peer, now)) is not None:
            return banned(ban)
        if credential:
            try:
                shown = read_pass(credential, self._house.fingerprint, self._house.owner)
            except BadMessage as error:
                return Barred("bad_pass", f"your pass cannot be used: {error.message}")
            if shown.device != peer:
                return Barred("bad_pass", "your pass is another device's")
            self._remember(shown)
        known = self._passes.get(peer)
        if known is None:
            return None if self._house.is_open else Barred("not_invited", "this run is for those who were invited")
        barred = self._barred(known, now)
        has_ended = barred is not None and barred.reason in ENDED
        return None if has_ended and self._house.is_open else barred  # no worse than who was never invited

    def _barred(self, known: Pass, now: float) -> Barred | None:
        grant = known.grant
        if (barred := self._uninvited(known, now)) is not None:
            return barred
        if not known.since - CLOCK_ERROR_S <= now < known.expires_at <= now + PASS_LIFE_S + CLOCK_ERROR_S:
            return Barred("pass_expired", "your pass is out of date: is your clock right?")
        alike = [other for other in self._alive(grant.key, now) if other.is_guest == known.is_guest]
        before = [other for other in alike if _rank(other) < _rank(known)]
        if known.is_guest:
            if len(before) >= MAX_GUESTS:
                text = f"{MAX_GUESTS} others look at this run with the invite of {grant.person or 'yours'}"
                return Barred("too_many_guests", f"{text}; come again in 10 min")
            return Barred(GUEST, "a guest looks at the run, and takes no part")
        if len(before) >= grant.devices:
            places = f"{grant.devices} device{'s' if grant.devices > 1 else ''}"
            free_s = min(other.expires_at for other in before) - now
            text = f"the invite of {grant.person or 'yours'} is in use on {places}"
            return Barred("too_many_devices", f"{text}; stop one, or come again in {free_s / 60:.0f} min")
        return None

    def _uninvited(self, known: Pass, now: float) -> Barred | None:
        grant = known.grant
        if (ban := self._house.ban_of(grant.key, now)) is not None:
            return banned(ban)
        if now >= grant.expires_at:
            text = f"the invite of {grant.person or 'yours'} ended on {utc(grant.expires_at)}"
            return Barred("invite_expired", text)
        return None

    def _remember(self, shown: Pass) -> None:
        known = self._passes.get(shown.device)
        is_alike = known is not None and (known.grant.key, known.is_guest) == (shown.grant.key, shown.is_guest)
        if known is not None and is_alike and known.expires_at >= shown.expires_at:
            return
        if known is not None:
            self._forget(shown.device)
        self._passes[shown.device] = shown
        holders = self._holders.setdefault(shown.grant.key, {})
        holders[shown.device] = shown
        alike = [device for device in holders if holders[device].is_guest == shown.is_guest]
        if len(alike) > MAX_HOLDERS:  # first those that vanished: a place is free again when its pass has ended
            now = self._clock()
            self._forget(max(alike, key=lambda device: (now >= holders[device].expires_at, *_rank(holders[device]))))
        while len(self._passes) > MAX_PASSES:
            self._forget(min(self._passes, key=lambda device: self._passes[device].expires_at))

    def release(self, peer: PeerId) -> None:
        """A peer has said goodbye: its place is free."""
        known = self._forget(peer)
        if known is not None and known.grant.role is Role.BACKBONE:
            self._gone.pop(peer, None)
            self._gone[peer] = known
            while len(self._gone) > MAX_GONE:
                del self._gone[next(iter(self._gone))]

    def _forget(self, peer: PeerId) -> Pass | None:
        known = self._passes.pop(peer, None)
        if known is not None:
            holders = self._holders[known.grant.key]
            del holders[peer]
            if not holders:
                del self._holders[known.grant.key]
        return known

    def _alive(self, key: PeerId, now: float) -> list[Pass]:
        return [held for held in self._holders.get(key, {}).values() if now < held.expires_at]

    # -- what a pass is worth ----------------------------------------------------------------------------------------

    def voice_of(self, peer: PeerId) -> PeerId:
        """Under which a peer counts where identities are counted: its invite, else itself."""
        known = self._passes.get(peer)
        return peer if known is None else known.grant.key

    def is_vouched_backbone(self, peer: PeerId) -> bool:
        """Whether the owner has said that this is a backbone of the run."""
        known, now = self._passes.get(peer), self._clock()
        return known is not None and known.grant.role is Role.BACKBONE and self._barred(known, now) is None

    def was_vouched_backbone(self, peer: PeerId) -> bool:
        """Whether what it has signed as a backbone counts, though it may have left, or died, some time ago."""
        known, now = self._passes.get(peer) or self._gone.get(peer), self._clock()
        if known is None or known.is_guest or known.grant.role is not Role.BACKBONE:
            return False
        return self._house.ban_of(peer, now) is None and self._uninvited(known, now) is None


def _rank(held: Pass) -> tuple[float, PeerId]:
    return held.since, held.device


def banned(ban: Ban) -> Barred:
    """What the banned are told."""
    until = "for good" if ban.until_s == FOREVER else f"until {utc(ban.until_s)}"
    return Barred("banned", f"the organiser has banned you {until}: {ban.reason or 'no reason was given'}")
