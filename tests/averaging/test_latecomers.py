"""A member that was frozen comes back to a round that the others have finished long ago."""

from collab.averaging.base import Committed
from collab.averaging.division import Division
from collab.averaging.messages import ROUND_PROTOCOL, Group
from collab.net.wire import Message
from collab.types import PeerId
from tests.averaging.swarm import Rounds, random_vectors
from tests.fakes import FakeNetwork, run


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
            fields = {
                "group": group.to_message().fields,
                "generation": 0,
                "jobs": Division.of(group.spans, group.part_elements).to_rows(),
                "promised": 1,
                "gone": ["a"],
            }
            stream = await network.join("c").open(PeerId("b"), ROUND_PROTOCOL, timeout_s=1.0)
            await stream.send(Message("resume", fields), timeout_s=1.0)
            assert (await stream.receive(timeout_s=0.5)).kind == "welcome"
            verdict = await stream.receive(timeout_s=0.5)
            assert verdict.kind == "commit"
            assert verdict.get("record", dict) == outcome.record.to_fields()

    run(main())
