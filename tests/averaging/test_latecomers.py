"""A member that was frozen comes back to a round that the others have finished long ago."""

import asyncio
from dataclasses import replace

from collab.averaging.base import Committed
from collab.averaging.certificates import Certified
from collab.averaging.course import Course
from collab.averaging.division import Division
from collab.averaging.messages import ROUND_PROTOCOL, Group
from collab.averaging.plan import PART_ELEMENTS
from collab.averaging.silence import Silence
from collab.averaging.succession import Succession
from collab.averaging.timeouts import FIRST, MeasuredTimeouts
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import PeerId
from tests.averaging.certifying import certify
from tests.averaging.course_lab import A, B, C, make_group
from tests.averaging.records import make_record
from tests.averaging.swarm import Rounds, random_vectors
from tests.fakes import FakeNetwork, run


def resume_of(group: Group, gone: PeerId) -> Message:
    fields = {
        "group": group.to_message().fields,
        "generation": 0,
        "jobs": Division.of(group.spans, group.part_elements).to_rows(),
        "promised": 1,
        "gone": [gone],
    }
    return Message("resume", fields)


def test_the_first_successor_that_is_asked_to_lead_on_says_what_became_of_the_round() -> None:
    """It used to gather members for it and wait until nobody had come; then the next one did."""

    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a")
            for name in "abc":
                await rounds.add_trainer(name)
            outcome = (await rounds.average(random_vectors("abc", 1000)))["b"]
            assert isinstance(outcome, Committed)
            group = Group.from_message(next(message for *_, message in network.sent if message.kind == "begin"))
            stream = await network.join("c").open(PeerId("b"), ROUND_PROTOCOL, timeout_s=1.0)
            await stream.send(resume_of(group, PeerId("a")), timeout_s=1.0)
            assert (await stream.receive(timeout_s=0.5)).kind == "welcome"
            verdict = await stream.receive(timeout_s=0.5)
            assert verdict.kind == "commit"
            assert verdict.get("record", dict) == outcome.record.to_fields()

    run(main())


def test_a_member_that_misses_its_leader_later_than_all_others_waits_for_what_they_decide() -> None:
    """It was turned away, led on with the round alone, and tried the next one while the others were at this one."""

    async def main() -> None:
        async with FakeNetwork() as network:
            group, decided = replace(make_group(), part_elements=PART_ELEMENTS), asyncio.Event()
            begun = list[frozenset[PeerId]]()
            certified = certify(make_record(epoch=group.epoch, lineage=group.lineage))

            async def conduct(course: Course, streams: object) -> None:
                begun.append(frozenset(course.live))
                await decided.wait()

            def committed(epoch: int, lineage: str) -> Certified | None:
                return certified if decided.is_set() else None

            clock = asyncio.get_running_loop().time
            transports = {peer: network.join(peer) for peer in (B, C)}
            timeouts, silence = MeasuredTimeouts(clock, FIRST), Silence(clock, 0.5)
            succession = Succession(transports[B], timeouts, silence, conduct, committed)

            async def serve(stream: Stream) -> None:
                await succession.serve(stream, await stream.receive(timeout_s=1.0))

            await transports[B].serve(ROUND_PROTOCOL, serve)
            streams = {}
            for peer, delay_s in ((B, 0.0), (C, FIRST.silence_s + 0.1)):
                await asyncio.sleep(delay_s)
                streams[peer] = await transports[peer].open(B, ROUND_PROTOCOL, timeout_s=1.0)
                await streams[peer].send(resume_of(group, A), timeout_s=1.0)
                assert (await streams[peer].receive(timeout_s=1.0)).kind == "welcome"
            assert begun == [{B}], "it has gone on without the late one"
            assert {(await streams[C].receive(timeout_s=1.0)).kind for _ in range(20)} == {"wait"}
            decided.set()
            told = await streams[C].receive(timeout_s=1.0)
            while told.kind == "wait":
                told = await streams[C].receive(timeout_s=1.0)
            assert told.get("record", dict) == certified.record.to_fields()

    run(main())
