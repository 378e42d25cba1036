"""What the members of a round reported, and whom to go on without when it failed: pure."""

from collections import Counter

from collab.errors import BadMessage
from collab.net.wire import Message
from collab.types import PeerId

MAX_TEXT = 300
"""Characters of a member's words that are passed on."""


class Reports:
    """Folds the reports of one round's members."""

    def __init__(self, members: frozenset[PeerId], num_spans: int) -> None:
        self._members = members
        self._heard: set[PeerId] = set()
        self._digests: list[str | None] = [None] * num_spans
        self._accusations: set[tuple[PeerId, PeerId]] = set()
        self._failures: dict[PeerId, tuple[str, str]] = {}

    def add(self, peer: PeerId, report: Message) -> None:
        """Take one member's report; one that makes no sense speaks against its sender."""
        self._heard.add(peer)
        try:
            if report.kind == "done":
                self._add_digests(peer, report.get("digests", list))
                return
            if report.kind != "failed":
                raise BadMessage(f"expected a report, got {report.kind}")
            reason, text, culprits = report.get("reason", str), report.get("text", str), report.get("culprits", list)
        except BadMessage as error:
            self.add_lost(peer, "bad_report", str(error))
            return
        self._failures[peer] = (reason[:MAX_TEXT], text[:MAX_TEXT])
        self._accusations.update((peer, PeerId(other)) for other in culprits if other in self._members)

    def add_lost(self, peer: PeerId, reason: str, text: str) -> None:
        """Take note of a member that cannot report: it is itself to blame."""
        self._failures[peer] = (reason, f"{peer}: {text}")
        self._accusations.add((peer, peer))

    def _add_digests(self, peer: PeerId, reported: list[object]) -> None:
        if len(reported) != len(self._digests) or not all(isinstance(each, str | None) for each in reported):
            raise BadMessage(f"expected {len(self._digests)} digests")
        for index, digest in enumerate(reported):
            if self._digests[index] is None and isinstance(digest, str):
                self._digests[index] = digest
            elif digest not in (None, self._digests[index]):
                self._failures[peer] = ("results_differ", f"members hold different bytes of span {index}")

    def has_heard(self, peer: PeerId) -> bool:
        """Whether a member has reported."""
        return peer in self._heard

    @property
    def is_lost(self) -> bool:
        """Whether the round cannot commit any more."""
        return bool(self._failures)

    @property
    def digests(self) -> tuple[str, ...]:
        """Of each span; empty for a span that nobody has."""
        return tuple(digest or "" for digest in self._digests)

    def verdict(self) -> tuple[str, str, tuple[PeerId, ...]]:
        """Reason and words of a lost round, and a small set of peers without which no accusation is left.

        A peer that cannot exchange with the others is accused by all and accuses all, whichever side's link is broken;
        so the peer in most accusations, on either side, goes first, and of equals the one that is accused more often.
        Who gave up because of a culprit left streams behind that broke; that is not held against it.
        """
        culprits: list[PeerId] = []
        while open_cases := self._open_cases(culprits):
            involved = Counter(peer for pair in {frozenset(case) for case in open_cases} for peer in pair)
            accused = Counter(case[1] for case in open_cases)
            culprit = min(involved, key=lambda peer: (-involved[peer], -accused[peer], peer))
            culprits.append(culprit)
        witnesses = [peer for peer in self._failures if peer not in culprits] or list(self._failures)
        reason, text = self._failures[witnesses[0]]
        return reason, text, tuple(culprits)

    def _open_cases(self, culprits: list[PeerId]) -> set[tuple[PeerId, PeerId]]:
        """Accusations that nothing which ``culprits`` did explains."""
        accused_by: dict[PeerId, set[PeerId]] = {}
        for accuser, accused in self._accusations:
            accused_by.setdefault(accuser, set()).add(accused)
        gave_up = {peer for peer, others in accused_by.items() if others <= set(culprits)}
        return {
            (accuser, accused)
            for accuser, accused in self._accusations
            if accuser not in culprits and accused not in culprits and accused not in gave_up
        }
