"""Whether others still reach a machine, or do now: looked at every so often, told when it changes."""

import asyncio
from collections.abc import Sequence

from collab.errors import PeerUnreachable
from collab.net.reaching import LOOK_AGAIN_S, watch_reach
from collab.swarm.reachability import FIRST, Answer, Reaching, Verdict, decide, hole_punched, relayed
from collab.types import PeerId, Reachability
from tests.fakes import run

HOST, PORT = "203.0.113.7", 4001


def said(*is_reached: bool) -> Verdict:
    """What so many helpers say."""
    answers = [Answer(helper=PeerId(f"{n}"), host=HOST, is_reached=yes) for n, yes in enumerate(is_reached)]
    return decide(answers, own_hosts=(), port=PORT, trusted=(), num_asked=5)


YES, NO, NOBODY = said(True, True), said(False, False), said()
GONE = FIRST
"""Stands for a look that fails."""


def told(joined: Verdict, looks: Sequence[Verdict]) -> tuple[list[Verdict], float, int]:
    """What is told while others say ``looks``, one after the other and the last for ever; seconds, and looks made."""
    changes: list[Verdict] = []
    made = 0

    async def look() -> Verdict:
        nonlocal made
        made += 1
        found = looks[min(made, len(looks)) - 1]
        if found is GONE:
            raise PeerUnreachable("no daemon any more")
        return found

    async def main() -> float:
        reaching = Reaching(joined)
        reaching.follow(changes.append)
        watcher = asyncio.create_task(watch_reach(look, reaching))
        await asyncio.sleep(10 * LOOK_AGAIN_S)
        assert not watcher.done()
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        return asyncio.get_running_loop().time()

    return changes, run(main()), made


def test_while_nothing_changes_nothing_is_said_and_few_are_asked() -> None:
    for joined, found in ((YES, YES), (NO, NO), (relayed(NO, 1), NO), (hole_punched(NO), NO)):
        changes, seconds, made = told(joined, [found])
        assert changes == []
        assert made <= seconds / LOOK_AGAIN_S


def test_a_machine_that_cannot_be_dialled_any_more_says_so_once_and_is_no_longer_dialled() -> None:
    changes, _, _ = told(YES, [YES, NO])
    assert [change.reach for change in changes] == [Reachability.CLIENT]
    assert "any more" in changes[0].text
    assert HOST in changes[0].text
    assert "join again" in changes[0].hint


def test_when_the_port_is_open_again_the_machine_is_dialled_again() -> None:
    changes, _, _ = told(YES, [NO, NO, NO, YES])
    assert [change.reach for change in changes] == [Reachability.CLIENT, Reachability.DIRECT]


def test_a_machine_whose_port_is_forwarded_later_hears_what_it_could_do_and_stays_what_it_is() -> None:
    for joined in (NO, relayed(NO, 2), hole_punched(NO)):
        changes, _, _ = told(joined, [NO, YES])
        assert [change.reach for change in changes] == [joined.reach]
        assert str(PORT) in changes[0].text
        assert f"--port {PORT}" in changes[0].hint


def test_what_is_no_longer_so_is_taken_back() -> None:
    joined = relayed(NO, 1)
    changes, _, _ = told(joined, [YES, YES, NO])
    assert changes[-1] == joined
    assert len(changes) == 2


def test_one_look_that_says_otherwise_changes_nothing() -> None:
    assert told(YES, [NO, YES])[0] == []
    assert told(NO, [YES, NO])[0] == []


def test_nobodys_answer_changes_nothing() -> None:
    assert told(YES, [NOBODY])[0] == []
    assert told(YES, [NO, NOBODY, YES])[0] == []
    assert told(YES, [GONE])[0] == []
