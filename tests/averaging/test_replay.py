"""What a peer said in an earlier round, said again: refused, or without effect, whoever says it and at whatever moment.

Real engines go through three rounds: one without faults, one whose reducer is lost and that drops a member, one whose
leader is lost. In the fourth a message of theirs comes again, over new streams, from its author and another member,
at every step.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest

from collab.averaging.base import Committed, Outcome
from collab.averaging.calls import CALL_PROTOCOL
from collab.averaging.history import RESULTS_PROTOCOL
from collab.averaging.messages import PARTS_PROTOCOL, ROUND_PROTOCOL, VERDICT_PROTOCOL
from collab.averaging.plan import PART_ELEMENTS
from collab.averaging.probe import PROBE_PROTOCOL
from collab.averaging.standing import STANDING_PROTOCOL, Standing, Word
from collab.errors import NetworkError
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import Lineage, PeerId
from tests.averaging.swarm import TARGET, L, Rounds, exact_mean, random_vectors
from tests.fakes import FakeNetwork, run

NAMES = "abcd"
WEIGHTS = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
NUM_ELEMENTS = 5 * PART_ELEMENTS
HOSTILE = PeerId("d")
"""A member like any other, but for what it says again."""
USUAL_S = 0.1
"""Of the fourth round without anything of this, beyond the calls: measured 0.02 s."""
MOMENTS = ("join", "welcome", "begin", "round", "part", "result", "done", "prepare", "vote", "commit")
"""Of the fourth round: at the first message of each kind everything is said again."""
FORMING = {"join", "welcome", "wait", "call", "coming", "refused", "superseded", "begin"}
WORKING = {"round", "ready", "part", "ack", "result", "working", "complaint", "halt", "held", "mend", "dropped", "done"}
DECIDING = {"prepare", "vote", "commit", "thanks", "abort", "resume", "lead", "promised"}
ASKING = {"verdict?", "made?", "committed", "made", "unknown", "get", "piece", "failed"}
STANDING = {"stand", "word", "heard"}
PROBING = {"probe", "turn", "end"}
KINDS = sorted(FORMING | WORKING | DECIDING | ASKING | STANDING | PROBING)

PROTOCOLS = (
    *(ROUND_PROTOCOL, PARTS_PROTOCOL, CALL_PROTOCOL, VERDICT_PROTOCOL),
    *(STANDING_PROTOCOL, RESULTS_PROTOCOL, PROBE_PROTOCOL),
)

Sent = tuple[PeerId, PeerId, str, Message]


@dataclass
class Run:
    """One swarm, and what was said in it."""

    network: FakeNetwork
    rounds: Rounds
    standing: dict[str, Standing]
    epoch: int = 0
    lineage: Lineage = L

    async def round(self) -> dict[str, Outcome]:
        """All come to the next round; where it committed, all are where it leads."""
        for standing in self.standing.values():
            standing.report(Word(self.epoch, self.lineage, TARGET / 8, 1.0))
        await asyncio.sleep(0.01)
        for standing in self.standing.values():
            standing.report(Word(self.epoch, self.lineage, TARGET, 1.0))
        outcomes = await self.rounds.average(self.vectors(), WEIGHTS, epoch=self.epoch, lineage=self.lineage)
        committed = next(outcome for outcome in outcomes.values() if isinstance(outcome, Committed))
        self.epoch, self.lineage = self.epoch + 1, committed.lineage
        return outcomes

    def vectors(self) -> dict[str, np.ndarray]:
        """Of this epoch."""
        return {name: vector * (self.epoch + 1) for name, vector in random_vectors(NAMES, NUM_ELEMENTS).items()}

    async def say(self, sender: PeerId, sent: list[Sent]) -> None:
        """What one peer heard of another over one stream, again, over a new stream; what comes back is ignored."""
        _, to, protocol, _ = sent[0]
        if to == sender:
            to = PeerId("a") if sender == "helper" else PeerId("helper")
        with suppress(NetworkError):
            stream = await self.network.peers[sender].open(to, protocol, timeout_s=1.0)
            await self._hold(stream, [message for *_, message in sent])

    def say_again(self, by: str, sent: list[Sent]) -> None:
        """The same now, beside everything else."""
        self.network.run(self.say(sent[0][0] if by == "its author" else HOSTILE, sent))

    async def _hold(self, stream: Stream, messages: list[Message]) -> None:
        with suppress(NetworkError):
            for message in messages:
                await stream.send(message, timeout_s=1.0)
            while True:
                await stream.receive(timeout_s=30.0)


def lose_results_and_a_part(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message | None:
    """Nobody gets results of b, which is relieved; and a part of c comes damaged, which is dropped."""
    if (sender, to, message.kind) == ("c", "a", "part"):
        return Message("part", message.fields, message.payload[:-1])
    return None if (sender, message.kind) == ("b", "result") else message


async def history(network: FakeNetwork) -> Run:
    """Three rounds, and questions about them."""
    rounds = Rounds(network, "helper", "a")
    await rounds.add_auxiliary("helper")
    standing = {}

    def leaders(lineage: Lineage, epoch: int) -> list[PeerId]:
        return list(rounds.leaders)

    for name in NAMES:
        engine = await rounds.add_trainer(name)
        standing[name] = Standing(rounds.ports[name], "f", leaders, engine._attend, engine.links.timeouts)
        network.run(standing[name].run())
    run = Run(network, rounds, standing)
    await run.round()
    network.tamper = lose_results_and_a_part
    await run.round()
    network.tamper = lambda sender, to, protocol, m: None if (sender, m.kind) == ("helper", "prepare") else m
    await run.round()
    network.tamper = None
    await ask_about(run)
    return run


async def ask_about(run: Run) -> None:
    """What peers ask each other beside rounds."""
    engine, helper = run.rounds.engines["d"], PeerId("helper")
    await engine.what_followed([helper, PeerId("a")], 0, L)
    await engine.what_followed([helper], 99, Lineage("nothing"))
    await engine.history.fetch([PeerId("a")], (0, L), NUM_ELEMENTS)
    await engine.probe.measure([helper, PeerId("a")])
    run.say_again("d", [(HOSTILE, helper, VERDICT_PROTOCOL, Message("made?", {"lineage": run.lineage}))])
    run.say_again("d", [(HOSTILE, helper, PARTS_PROTOCOL, Message("round", {"round_id": "nobody's", "job": 0}))])
    join = next(m for sender, _, _, m in run.network.sent if m.kind == "join" and sender == HOSTILE)
    late = Message("join", join.fields | {"lineage": L, "epoch": 0})
    strange = Message("join", join.fields | {"fingerprint": "g"})
    alone = Message("join", join.fields | {"epoch": 50, "lineage": "nobody's"})
    for message in (late, strange, alone):
        run.say_again("d", [(HOSTILE, helper, ROUND_PROTOCOL, message)])
    await asyncio.sleep(70.0)  # nobody comes to a round that is nobody's, and it is given up


def said(run: Run, kind: str) -> list[Sent]:
    """Every message of a kind so far, once for each who said and heard it in each round."""
    return [sent for sent in run.network.sent if sent[3].kind == kind]


def streams(run: Run) -> list[list[Sent]]:
    """All that one peer said to another under a protocol."""
    found: dict[tuple[PeerId, PeerId, str], list[Sent]] = {}
    for sent in run.network.sent:
        found.setdefault(sent[:3], []).append(sent)
    return list(found.values())


def at_each_moment(run: Run, act: Callable[[], object]) -> None:
    """Call ``act`` when the first message of each of ``MOMENTS`` is on its way."""
    seen: set[str] = set()

    def watch(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message:
        if message.kind in MOMENTS and message.kind not in seen:
            seen.add(message.kind)
            act()
        return message

    run.network.tamper = watch


async def check_round(run: Run, names: str = NAMES) -> float:
    """All commit, with everybody's vector, the same bytes; returns how long it took."""
    loop = asyncio.get_running_loop()
    vectors, began_s = run.vectors(), loop.time()
    outcomes = await run.round()
    commits = [outcomes[name] for name in names]
    assert all(isinstance(outcome, Committed) for outcome in commits), outcomes
    done = [outcome for outcome in commits if isinstance(outcome, Committed)]
    assert len({outcome.mean.tobytes() for outcome in done}) == 1
    assert len({outcome.record for outcome in done}) == 1
    if names == NAMES:
        assert dict(done[0].record.contributors) == {PeerId(name): weight for name, weight in WEIGHTS.items()}
        assert np.allclose(done[0].mean, exact_mean(vectors, WEIGHTS), atol=1e-5)
        assert done[0].record.gaps == ()
    return loop.time() - began_s


def in_history(test: Callable[[Run], Awaitable[None]]) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await test(await history(network))

    run(main())


def test_the_recording_has_every_kind_of_message_that_rounds_know() -> None:
    async def test(run: Run) -> None:
        assert {message.kind for *_, message in run.network.sent} == set(KINDS)

    in_history(test)


def test_the_usual_time_is_that_of_a_round_without_anything_said_again() -> None:
    async def test(run: Run) -> None:
        assert await check_round(run) < USUAL_S / 2

    in_history(test)


BY = ("its author", "another member")


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_said_in_an_earlier_round_changes_nothing_when_it_is_said_again(kind: str) -> None:
    async def test(run: Run) -> None:
        old = said(run, kind)
        for by in BY:
            num_said = len(said(run, kind))
            at_each_moment(run, lambda by=by: [run.say_again(by, [sent]) for sent in old])  # type: ignore[misc]
            assert await check_round(run) < USUAL_S, by
            run.network.tamper = None
            assert len(said(run, kind)) >= num_said + len(MOMENTS), "it did arrive again"
        assert await check_round(run) < USUAL_S, "nor does it in the round after"

    in_history(test)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_whole_stream_of_an_earlier_round_changes_nothing_either(protocol: str) -> None:
    async def test(run: Run) -> None:
        old = [sent for sent in streams(run) if sent[0][2] == protocol]
        for by in BY:
            num_sent = len(run.network.sent)
            at_each_moment(run, lambda by=by: [run.say_again(by, sent) for sent in old])  # type: ignore[misc]
            assert await check_round(run) < USUAL_S, by
            run.network.tamper = None
            came = [sent for sent in run.network.sent[num_sent:] if sent[2] == protocol]
            assert len(came) >= len(old) * len(MOMENTS)
        assert await check_round(run) < USUAL_S

    in_history(test)


# -- on the author's own streams ---------------------------------------------------------------------------------------


def once_ahead(run: Run, author: str, kind: str) -> list[Sent]:
    """What the author said in its first rounds comes again, once, before the next of its kind on the same stream.

    Returns:
        What has not come yet.
    """
    waiting = [sent for sent in said(run, kind) if sent[0] == author]

    def ahead(sender: PeerId, to: PeerId, protocol: str, message: Message) -> list[Message]:
        for sent in waiting:
            if sent[:3] == (sender, to, protocol) and sent[3].kind == message.kind:
                waiting.remove(sent)
                return [sent[3]]
        return []

    run.network.ahead = ahead
    return waiting


OF_A_MEMBER = ("join", "round", "part", "ack", "result", "ready", "done", "vote", "thanks", "word", "coming")
OF_A_LEADER = ("welcome", "begin", "prepare", "commit", "ready", "result", "ack", "done", "heard", "call")
REPAIRED_S = 15.0
"""Until those who wait for the author go on without it; who leads and talks nonsense is replaced."""


@pytest.mark.parametrize(
    ("author", "kind"), [("d", kind) for kind in OF_A_MEMBER] + [("helper", kind) for kind in OF_A_LEADER]
)
def test_who_repeats_itself_on_its_own_stream_spoils_nobody_elses_round(author: str, kind: str) -> None:
    async def test(run: Run) -> None:
        waiting = once_ahead(run, author, kind)
        num_waiting = len(waiting)
        assert await check_round(run, "abc") < REPAIRED_S
        assert len(waiting) < num_waiting, "it was repeated"
        run.network.ahead = None
        assert await check_round(run, "abc") < REPAIRED_S

    in_history(test)
