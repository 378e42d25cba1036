"""How others can reach this machine: what those say who tried, put together.

A verdict is drawn from *fresh* connections that others made. Nobody else can tell: a connection that we have made
ourselves goes both ways, and an address on an interface of ours says nothing about the routers before it.
"""

import ipaddress
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from collab.metrics.records import ReachDecided
from collab.types import PeerId, Reachability


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One peer's word after it was asked to dial us."""

    helper: PeerId
    host: str
    """IP address that our connection to it comes from, and that it dialled."""
    is_reached: bool
    """Whether we answered there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How others reach this machine, in words for its owner."""

    reach: Reachability
    text: str
    hint: str = ""
    """What can be done about it; empty: nothing needs to be."""
    host: str = ""
    """Where others see this machine; empty: nobody said."""
    port: int = 0
    """TCP port that it listens on; 0: none."""
    is_announced: bool = True
    """Whether ``host`` is an address of this machine, so that others are told of it anyway."""
    num_asked: int = 0
    num_answered: int = 0
    num_reached: int = 0

    def event(self, at_s: float, seconds: float = 0.0) -> ReachDecided:
        """The same for whoever watches this machine."""
        return ReachDecided(
            at_s=at_s,
            reach=self.reach,
            text=self.text,
            hint=self.hint,
            host=self.host,
            port=self.port,
            num_asked=self.num_asked,
            num_answered=self.num_answered,
            num_reached=self.num_reached,
            seconds=seconds,
        )


OPEN_A_PORT = (
    "nothing needs to be done. To help with averaging and to give state to newcomers, too, forward a TCP port of the "
    "router to this machine, open it in the firewall, and join with --port and its number"
)
ALL_COUNTS = "it takes part in client mode, where all its work counts"
ASKED_FOR_CLIENT = Verdict(reach=Reachability.CLIENT, text="as asked for, this machine dials others and is not dialled")
FIRST = Verdict(reach=Reachability.DIRECT, text="the first peer of its run: there is nobody yet who could dial it")


def as_told(port: int) -> Verdict:
    """Whoever started this machine says that others can dial it."""
    text = f"taken as reachable on TCP port {port}, as asked for; nobody has tried"
    return Verdict(reach=Reachability.DIRECT, text=text, port=port)


def relayed(verdict: Verdict, num_relays: int) -> Verdict:
    """The same for a machine that has places at so many relays."""
    if not num_relays:
        return verdict
    backbones = "a backbone" if num_relays == 1 else f"{num_relays} backbones"
    text = f"{verdict.text}; others like it reach it through {backbones}"
    return replace(verdict, reach=Reachability.RELAYED, text=text)


def hole_punched(verdict: Verdict) -> Verdict:
    """The same for a machine that has met one of its kind directly."""
    text = f"{verdict.text}, and directly from then on: its router lets them through"
    return replace(verdict, reach=Reachability.HOLE_PUNCHED, text=text)


def lost(found: Verdict) -> Verdict:
    """For a machine that could be dialled and cannot any more, by what others ``found`` just now."""
    tried = f"{found.num_reached} of {found.num_answered} that tried"
    seen = f"TCP port {found.port} at {found.host} was reached by {tried}"
    text = f"others cannot dial this machine any more ({seen}); it goes on with those whom it dials itself"
    hint = (
        "look at the port that the router forwards and at the firewall; if it shall stay like that, stop and join "
        "again: it then takes part in client mode, where all its work counts"
    )
    return replace(found, reach=Reachability.CLIENT, text=text, hint=hint)


def gained(verdict: Verdict, found: Verdict) -> Verdict:
    """For a machine that was started as one that nobody can dial, and could be dialled by what others ``found``."""
    where = f"{found.host}, TCP port {found.port}"
    text = f"others could dial this machine now, at {where}; it was started as one that nobody can dial"
    hint = f"stop and join again with --port {found.port}: it then helps with averaging and newcomers, too"
    return replace(verdict, text=text, hint=hint, host=found.host, num_reached=found.num_reached)


class Reaching:
    """How others reach this machine, as far as is known by now."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self._followers: list[Callable[[Verdict], None]] = []

    def follow(self, follower: Callable[[Verdict], None]) -> None:
        """Tell ``follower`` of every later verdict."""
        self._followers.append(follower)

    def change(self, verdict: Verdict) -> None:
        """Something new is known."""
        self.verdict = verdict
        for follower in self._followers:
            follower(verdict)


def decide(
    answers: Sequence[Answer], *, own_hosts: Collection[str], port: int, trusted: Collection[PeerId], num_asked: int
) -> Verdict:
    """What most of those say who see us from furthest away.

    A neighbour behind the same router reaches us where nobody else does, so it is not asked when others have answered:
    those count who see us at a public address, else those who see us at an address that is none of ours (a router
    stands between), else the others. Of equally many, those of ``trusted`` decide; then it is no.

    Args:
        answers: at most one of a helper.
        own_hosts: IP addresses of this machine's interfaces.
        port: TCP port that we listen on.
        trusted: helpers that the run's owner vouches for.
        num_asked: helpers, those that gave no answer included.
    """
    if not answers:
        return _nobody_answered(port, num_asked)
    furthest = max(_distance(answer.host, own_hosts) for answer in answers)
    counted = [answer for answer in answers if _distance(answer.host, own_hosts) == furthest]
    reached = [answer for answer in counted if answer.is_reached]
    missed = [answer for answer in counted if not answer.is_reached]

    def weight(side: list[Answer]) -> tuple[int, int]:
        return len(side), sum(answer.helper in trusted for answer in side)

    is_reached = weight(reached) > weight(missed)
    hosts = [answer.host for answer in (reached if is_reached else missed)]
    host = max(sorted(set(hosts)), key=hosts.count)
    tried = f"{len(reached)} of {len(counted)} peers that tried"
    if is_reached:
        reach, hint = Reachability.DIRECT, ""
        text = f"others can dial this machine at {host}, TCP port {port} ({tried})"
    else:
        reach, hint = Reachability.CLIENT, OPEN_A_PORT
        seen = f"it is seen at {host}; TCP port {port} was reached by {tried}"
        text = f"others cannot dial this machine ({seen}): {ALL_COUNTS}"
    return Verdict(
        reach=reach,
        text=text,
        hint=hint,
        host=host,
        port=port,
        is_announced=host in own_hosts,
        num_asked=num_asked,
        num_answered=len(answers),
        num_reached=sum(answer.is_reached for answer in answers),
    )


def _nobody_answered(port: int, num_asked: int) -> Verdict:
    text = f"no peer could try whether this machine can be dialled: {ALL_COUNTS}"
    hint = "nothing needs to be done; if its port is open to others, join with --reach direct and --port"
    return Verdict(reach=Reachability.CLIENT, text=text, hint=hint, port=port, num_asked=num_asked)


def _distance(host: str, own_hosts: Collection[str]) -> tuple[bool, bool]:
    """From how far away somebody sees us who sees us at ``host``."""
    return ipaddress.ip_address(host).is_global, host not in own_hosts
