"""The order by which a backbone ends its run, when the owner has given others at the same moment."""

from collab.config import parse_run
from collab.metrics.records import Notice
from collab.swarm.bundle import Bundle
from collab.swarm.mandate import Mandate
from collab.swarm.orders import MAX_ORDERS
from collab.swarm.statements import Amend, End, Rollback, Statement
from collab.tasks.base import Evaluation
from peers.evaluations import Measured
from peers.goal import Goal
from tests.fakes import NOW, FakeNetwork, FakeObserver, make_ports, run
from tests.swarm.people import PEOPLE

OWNER = PEOPLE[0]
RUN = parse_run(
    "{run_id: abc, until_loss: 1.0, task: {name: image_classification}, optimizer: {learning_rate: 0.1},"
    " strategy: {name: dedloc, target_batch_size: 64}}",
    origin="the test",
)
AMEND = Amend(from_epoch=100, learning_rate=0.01)


class Reached:
    """A run that has reached its goal at epoch 10."""

    def __init__(self) -> None:
        self.mandate = Mandate(Bundle(RUN, {}, OWNER.peer_id))
        self.ports = make_ports(FakeNetwork().join("backbone"))
        self.goal = Goal(self.ports, RUN, self.mandate, OWNER)
        self.goal.note_epoch(10, trainers=2)
        self.goal.note_measured(Measured(epoch=10, era="", digest="d", found=Evaluation(loss=0.5, accuracy=0.5)))
        assert self.said == [End(at_epoch=12)]

    def displace(self, *orders: Statement) -> None:
        """By more orders, which were given without knowing of the end."""
        book = Mandate(Bundle(RUN, {}, OWNER.peer_id)).book
        for order in orders:
            book = book.extended([book.signed(order, OWNER, NOW)])
        self.mandate.take(0, book.packed)
        assert self.said == [*orders]

    @property
    def said(self) -> list[Statement]:
        return [order.what for order in self.mandate.book.orders]

    @property
    def told(self) -> list[str]:
        assert isinstance(self.ports.observer, FakeObserver)
        return [event.text for event in self.ports.observer.events if isinstance(event, Notice)]


def test_the_end_is_ordered_again_once_after_the_orders_that_displaced_it() -> None:
    async def main() -> None:
        reached = Reached()
        reached.displace(AMEND, AMEND)
        for epoch in (11, 12):
            reached.goal.note_epoch(epoch, trainers=2)
            assert reached.said == [AMEND, AMEND, End(at_epoch=15)]
        assert reached.told[1:] == ["another order was given when this run had reached its goal; it ends at epoch 15"]

    run(main())


def test_an_earlier_end_of_the_owners_is_left_as_it_is() -> None:
    async def main() -> None:
        reached = Reached()
        reached.displace(AMEND, End(at_epoch=12))
        for epoch in (11, 12):
            reached.goal.note_epoch(epoch, trainers=2)
        assert reached.said == [AMEND, End(at_epoch=12)]
        assert [text.rpartition("; ")[2] for text in reached.told[1:]] == ["it ends at epoch 12 anyway"]

    run(main())


def test_a_run_that_goes_back_to_before_its_goal_does_not_end() -> None:
    async def main() -> None:
        reached = Reached()
        back = Rollback(to_epoch=5, lineage="a" * 64)
        reached.displace(AMEND, back)
        reached.goal.note_epoch(11, trainers=2)
        assert reached.said == [AMEND, back]

    run(main())


def test_where_there_is_no_room_for_another_order_that_is_said_and_the_backbone_goes_on() -> None:
    async def main() -> None:
        mandate, ports = Mandate(Bundle(RUN, {}, OWNER.peer_id)), make_ports(FakeNetwork().join("backbone"))
        book = mandate.book
        for _ in range(MAX_ORDERS):
            book = book.extended([book.signed(AMEND, OWNER, NOW)])
        mandate.take(0, book.packed)
        goal = Goal(ports, RUN, mandate, OWNER)
        goal.note_measured(Measured(epoch=10, era="", digest="d", found=Evaluation(loss=0.5, accuracy=0.5)))
        goal.note_epoch(11, trainers=2)
        assert isinstance(ports.observer, FakeObserver)
        (told,) = (event for event in ports.observer.events if isinstance(event, Notice))
        assert "cannot be ended" in told.text
        assert mandate.until_epoch is None

    run(main())
