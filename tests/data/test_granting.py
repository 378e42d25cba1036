"""What a peer trains with a lease is always within what everybody else grants it, from the first moment on."""

import asyncio
import copy
import random
from collections import Counter
from contextlib import suppress

import pytest

from collab.data.block_set import page_of
from collab.data.blocks import BlockId, BlockPlan
from collab.data.coverage import Coverage
from collab.data.coverage_exchange import Word, merge
from collab.data.lease_board import LeaseBoard
from collab.data.leases import Leases
from collab.data.ledger import Ledger
from collab.data.surroundings import Surroundings
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord, PeerState
from collab.types import PeerId, Role
from tests.fakes import NOW, FakeDirectory, FakeNetwork, make_ports, run

PLAN = BlockPlan.of(1500, digest="a" * 32, seed=0, microbatch_size=8)
TARGET, BLOCK_S = 128, 0.001
HEARTBEAT_S, HEARD_S = 1.0, 0.5
"""How often a trainer says how fast it is, and when the others have read it."""
FETCH_S = 2.0
"""Until a newcomer has the state and the rounds after it."""
NAMES = ("a", "b", "c")


class SlowDirectory(FakeDirectory):
    """Each question takes a while, another one each time, and claims meet."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = random.Random(seed)

    async def store(self, *args: object, **options: object) -> bool:
        await asyncio.sleep(self._rng.uniform(0.005, 0.04))
        return await super().store(*args, **options)  # type: ignore[arg-type]

    async def get(self, *args: object, **options: object) -> object:  # type: ignore[override]
        await asyncio.sleep(self._rng.uniform(0.005, 0.04))
        return await super().get(*args, **options)  # type: ignore[arg-type]


class Trainer:
    """Trains blocks of a millisecond until there are enough for a step; its first one takes longer, as it does."""

    def __init__(self, name: str, swarm: "Fast", network: FakeNetwork, directory: FakeDirectory) -> None:
        self.name, self._swarm = name, swarm
        self.ports = make_ports(network.join(name), directory)
        self.coverage, self.ledger = Coverage(PLAN), Ledger.for_batches_of(TARGET)
        self.is_behind = False
        self._around = around = Surroundings(
            view=self._view, look=self._look, target_samples=TARGET, note_trained=swarm.note,
            is_behind=lambda: self.is_behind,
        )  # fmt: skip
        self.leases = Leases(LeaseBoard(self.ports, "f" * 64, PLAN), self.coverage, self.ledger, around)
        self.speed = 0.0
        self.heard: dict[str, tuple[float, int]] = {}
        """What everybody has said of its speed and its pass, as read here."""
        self.computed: list[BlockId] = []
        self.may_train = asyncio.Event()
        self.may_train.set()

    def _view(self) -> SwarmView:
        return SwarmView(tuple(self._record(name) for name in {self.name, *self.heard}), NOW)

    async def _look(self) -> None:
        """Everybody has reported that it is here before it claims anything."""
        for other in self._swarm.here:
            self.heard.setdefault(other.name, (0.0, 0))

    def _record(self, name: str) -> PeerRecord:
        speed, data_pass = (self.speed, self.leases.newest) if name == self.name else self.heard.get(name, (0.0, 0))
        return PeerRecord(
            peer=PeerId(name), fingerprint="f", name=name, role=Role.TRAINER, state=PeerState.TRAINING, said_at=NOW,
            can_be_dialled=True, samples_per_s=speed, data=PLAN.data, data_pass=data_pass,
        )  # fmt: skip

    async def take_over(self, other: "Trainer") -> None:
        """Come to where another one is, in which time rounds go by that we do not hear of."""
        self.is_behind = True
        for wait_s in (FETCH_S, 0.0):
            merge([other.word()], self.coverage, self.ledger, self.ports.clock.now())
            await asyncio.sleep(wait_s)
        self.is_behind = False

    def word(self) -> Word:
        """What it answers who asks what was trained."""
        passes = {number: (list(known.trained), list(known.again)) for number, known in self.coverage.passes.items()}
        accounts = {peer: (total, rate) for peer, total, rate in self.ledger.rows(self.ports.clock.now())}
        return Word(data=PLAN.data, passes=passes, accounts=accounts)

    async def train(self, first_s: float) -> None:
        while True:
            await self.may_train.wait()
            block = await self.leases.next_block()
            self._swarm.taken(self, block)
            block_s = BLOCK_S if self.speed else first_s
            await asyncio.sleep(block_s)
            speed = PLAN.samples_in(block.block) / block_s
            self.speed += (0.3 if self.speed else 1.0) * (speed - self.speed)
            self.computed.append(block)
            self._swarm.computed(self)

    async def say(self) -> None:
        while True:
            said = self.speed, self.leases.newest
            await asyncio.sleep(HEARD_S)
            for trainer in self._swarm.here:
                trainer.heard[self.name] = said
            await asyncio.sleep(HEARTBEAT_S - HEARD_S)

    def grants(self, block: BlockId, peer: PeerId) -> bool:
        """Whether we would leave a block to ``peer``, if we read its page now."""
        key, now, ours = page_of(block), self.ports.clock.now(), self.leases._holders
        holders, coverage = copy.copy(ours), Coverage(PLAN, {key[0]: copy.deepcopy(self.coverage.of(key[0]))})
        holders._words, holders._lines = {key: copy.deepcopy(ours._words.get(key, {}))}, {}
        holders._known, holders._coverage = copy.deepcopy(ours._known), coverage
        holders._ledger = copy.deepcopy(self.ledger)
        if peer not in holders.pace.speeds:
            records = [self._record(name) for name in sorted({self.name, peer, *self.heard})]
            holders.pace = self._around.pace(records, self.ports.transport.peer_id, self.ledger.rates(now))
        page, read = self.leases._board._page(key), self.leases._board._reader.read
        said = self.ports.directory.table.get(page.key, {})  # type: ignore[attr-defined]
        holders.take_in(key, {PeerId(name): read(word.value, PeerId(name), page) for name, word in said.items()}, now)
        is_trained = bool(coverage.of(key[0]).trained[key[1]] & block.bit)
        return is_trained or block.block in holders._words[key][peer].granted


class Fast:
    """Three trainers from a common start, and rounds."""

    def __init__(self, seed: int, round_s: float, lag_s: float) -> None:
        self._rng, self._round_s, self._lag_s = random.Random(seed), round_s, lag_s
        self.trainers: list[Trainer] = []
        self.here: list[Trainer] = []
        self.refused: list[tuple[float, str, BlockId, str]] = []
        self.leased: Counter[BlockId] = Counter()
        self.done: Counter[BlockId] = Counter()
        self._is_full = asyncio.Event()
        self.rounds = 0

    def taken(self, trainer: Trainer, block: BlockId) -> None:
        """``trainer`` begins a block; everybody else must grant it."""
        if block in trainer.leases._unleased:
            return
        self.leased[block] += 1
        at_s = asyncio.get_running_loop().time()
        for other in self.here:
            if other is not trainer and not other.grants(block, PeerId(trainer.name)):
                self.refused.append((at_s, trainer.name, block, other.name))

    def note(self, block: BlockId, _: bool) -> None:
        self.done[block] += 1

    def computed(self, trainer: Trainer) -> None:
        """A block more; with enough of them nobody trains on until the round is over."""
        if sum(PLAN.samples_in(b.block) for one in self.here for b in one.computed) >= TARGET:
            for one in self.here:
                one.may_train.clear()
            self._is_full.set()

    async def hold_rounds(self) -> None:
        while True:
            await self._is_full.wait()
            await asyncio.sleep(self._round_s)
            self._is_full.clear()
            self.rounds += 1
            used = [(one, list(one.computed)) for one in self.here]
            brought = [(PeerId(one.name), float(sum(PLAN.samples_in(b.block) for b in blocks))) for one, blocks in used]
            await asyncio.gather(*(self._commit(one, blocks, brought) for one, blocks in used))

    async def _commit(self, trainer: Trainer, blocks: list[BlockId], brought: list[tuple[PeerId, float]]) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, self._lag_s))
        if not trainer.is_behind:
            told = [one for one in brought if one[1] > 0]
            trainer.ledger.note_round(f"{self.rounds}", told, trainer.ports.clock.now())
        for block in blocks:
            trainer.computed.remove(block)
            trainer.leases.done(block)
        trainer.may_train.set()


def train(seed: int, *, round_s: float, lag_s: float, seconds: float, alone_s: float = 0.0) -> Fast:
    """So many seconds of it, after one of them has been alone for some."""
    swarm = Fast(seed, round_s, lag_s)
    rng = random.Random(seed)
    tasks: list[asyncio.Task[None]] = []

    async def come(trainer: Trainer) -> None:
        first = swarm.here[0] if swarm.here else None
        swarm.here.append(trainer)
        if first is not None and alone_s:
            trainer.heard[first.name] = first.speed, first.leases.newest
            tasks.append(asyncio.create_task(trainer.leases.run()))
            await trainer.take_over(first)
        else:
            trainer.heard = dict.fromkeys(NAMES[:1] if alone_s else NAMES, (0.0, 0))
            tasks.append(asyncio.create_task(trainer.leases.run()))
        tasks.extend(map(asyncio.create_task, (trainer.train(rng.uniform(0.05, 2.0)), trainer.say())))

    async def everything() -> None:
        async with FakeNetwork() as network:
            directory = SlowDirectory(seed)
            swarm.trainers = [Trainer(name, swarm, network, directory) for name in NAMES]
            tasks.append(asyncio.create_task(swarm.hold_rounds()))
            await come(swarm.trainers[0])
            await asyncio.sleep(alone_s)
            await asyncio.gather(*map(come, swarm.trainers[1:]))
            await asyncio.sleep(seconds)
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task

    run(everything())
    return swarm


@pytest.mark.parametrize(
    ("seed", "round_s", "lag_s"),
    [*((seed, 1.0, 0.3) for seed in range(4)), *((seed, 0.3, 0.3) for seed in range(4)), (0, 0.1, 0.05)],
)
def test_of_three_that_begin_at_once_nobody_trains_what_another_one_would_not_leave_to_it(
    seed: int, round_s: float, lag_s: float
) -> None:
    """Blocks take a millisecond, so that nobody can know in the first seconds how many of them a peer needs."""
    swarm = train(seed, round_s=round_s, lag_s=lag_s, seconds=10.0)
    assert swarm.refused == []
    assert [block for block, times in swarm.leased.items() if times > 1] == []
    assert swarm.rounds > 0.5 * 10.0 / (round_s + lag_s + 0.2)
    assert len(swarm.leased) > 0.85 * sum(swarm.done.values()), "nearly all of it with a lease"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("round_s", [0.3, 0.05])
def test_two_that_come_to_one_that_trains_leave_to_each_other_what_each_trains(seed: int, round_s: float) -> None:
    """It has claimed as one that is alone; they have said nothing of their speed yet, and miss rounds of its."""
    swarm = train(seed, round_s=round_s, lag_s=round_s / 2, seconds=8.0, alone_s=10.0)
    assert swarm.refused == []
    assert [block for block, times in swarm.leased.items() if times > 1] == []
    assert len(swarm.leased) > 0.75 * sum(swarm.done.values()), "most of it with a lease"
