"""A parameter store that dies and comes back, as a Redis server does: with what it had persisted, and nothing else."""

from collections.abc import Callable

from collab.data.work_units import Unit
from collab.errors import StateError
from collab.simulation.world import World
from collab.swarm.parameter_store.base import Assimilated, Kept, Out, ParameterStore, Push, Stored, Verdict
from collab.swarm.parameter_store.in_process import InProcessStore

COMPLAINT = "the parameter store at redis://10.1.2.3: no route"
FULL = "the parameter store at redis://10.1.2.3: OOM command not allowed"


def units_done(store: ParameterStore, shards: int) -> list[Unit]:
    """All that are in the parameters, in order."""
    kept = store.keep()
    assert kept is not None
    settled = [Unit(number, shard) for number in range(1, kept.first_open) for shard in range(shards)]
    return settled + sorted(kept.done)


class Way:
    """Implements ``ParameterStore``: one backbone's own way to a store that others have, too."""

    def __init__(self, store: ParameterStore) -> None:
        self._store = store
        self.is_broken, self.is_full = False, False

    def begin(self, first: Kept) -> bool:
        return self._open().begin(first)

    def read(self, known: int | None = None) -> Stored | None:
        return self._open().read(known)

    def version(self) -> int | None:
        return self._open().version()

    def assimilate(self, push: Push) -> Assimilated:
        if self.is_full:
            raise StateError(FULL, hint="make room")
        return self._open().assimilate(push)

    def done(self, pass_number: int) -> dict[int, str] | None:
        return self._open().done(pass_number)

    def passes(self) -> range:
        return self._open().passes()

    def note_out(self, out: Out) -> None:
        self._open().note_out(out)

    def note_back(self, unit: Unit) -> None:
        self._open().note_back(unit)

    def out(self) -> list[Out]:
        return self._open().out()

    def keep(self) -> Kept | None:
        return self._open().keep()

    def settle(self, first_open: int) -> None:
        if self.is_full:
            raise StateError(FULL, hint="make room")
        self._open().settle(first_open)

    def close(self) -> None:
        pass

    def _open(self) -> ParameterStore:
        if self.is_broken:
            raise StateError(COMPLAINT, hint="is the way to it open?")
        return self._store


class MortalStore:
    """Implements ``ParameterStore`` over one in memory; while it is down every call fails, as a connection does."""

    def __init__(self, world: World) -> None:
        self._world, self._inner = world, InProcessStore()
        self.first: Kept | None = None
        """What it has begun with."""
        self.noted: dict[Unit, Out] = {}
        """What is out, as far as the disk has it: longer than pushes lie in memory."""
        self.pushes: list[Push] = []
        """All that are in the parameters, in order."""
        self.is_down, self.deaths = False, 0
        self._dies_in_a_push: Callable[[], None] | None = None
        """What then happens."""
        self._is_applied = False
        """Of the push in which it dies, whether that was persisted before; nobody hears of it."""

    # -- the script --------------------------------------------------------------------------------------------------

    def fail_at(self, time_s: float, *, for_s: float, forgets: int = 0) -> None:
        """It is killed, and started again after so long.

        Args:
            forgets: that many of the last pushes were not on the disk yet when the power failed.
        """
        self._world.call_at(time_s, lambda: self._die(for_s, forgets))

    def fail_in_a_push_after(self, time_s: float, *, for_s: float, is_applied: bool) -> None:
        """It is killed in the middle of the next push: who pushed cannot know whether it counts."""

        def arm() -> None:
            self._is_applied, self._dies_in_a_push = is_applied, lambda: self._die(for_s, 0)

        self._world.call_at(time_s, arm)

    def _die(self, for_s: float, forgets: int) -> None:
        self.is_down, self.deaths = True, self.deaths + 1
        self._world.call_at(self._world.time_s + for_s, lambda: self._rise(forgets))

    def _rise(self, forgets: int) -> None:
        self.is_down = False
        if not forgets or self.first is None:
            return
        kept, self.pushes, self._inner = self.pushes[:-forgets], [], InProcessStore()
        self._inner.begin(self.first)
        for out in self.noted.values():
            self._inner.note_out(out)
        for push in kept:
            self._assimilate(push)

    # -- ParameterStore ----------------------------------------------------------------------------------------------

    def begin(self, first: Kept) -> bool:
        self._check()
        is_first = self._inner.begin(first)
        if is_first:
            self.first = first
        return is_first

    def read(self, known: int | None = None) -> Stored | None:
        self._check()
        return self._inner.read(known)

    def version(self) -> int | None:
        self._check()
        return self._inner.version()

    def assimilate(self, push: Push) -> Assimilated:
        self._check()
        if self._dies_in_a_push is None:
            return self._assimilate(push)
        die, self._dies_in_a_push = self._dies_in_a_push, None
        if self._is_applied:
            self._assimilate(push)
        die()
        raise StateError("the parameter store: the connection broke")

    def done(self, pass_number: int) -> dict[int, str] | None:
        self._check()
        return self._inner.done(pass_number)

    def passes(self) -> range:
        self._check()
        return self._inner.passes()

    def note_out(self, out: Out) -> None:
        self._check()
        self._inner.note_out(out)
        self.noted[out.unit] = out

    def note_back(self, unit: Unit) -> None:
        self._check()
        self._inner.note_back(unit)
        self.noted.pop(unit, None)

    def out(self) -> list[Out]:
        self._check()
        return self._inner.out()

    def keep(self) -> Kept | None:
        self._check()
        return self._inner.keep()

    def settle(self, first_open: int) -> None:
        self._check()
        self._inner.settle(first_open)

    def close(self) -> None:
        pass

    # -- inside ------------------------------------------------------------------------------------------------------

    def _assimilate(self, push: Push) -> Assimilated:
        answer = self._inner.assimilate(push)
        if answer.verdict is Verdict.TAKEN:
            self.pushes.append(push)
        return answer

    def _check(self) -> None:
        if self.is_down:
            raise StateError("the parameter store: nobody answers", hint="does the server run?")

    def replayed(self) -> Stored:
        """What all pushes that are in the parameters come to, one after the other."""
        again = InProcessStore()
        assert self.first is not None
        again.begin(self.first)
        for push in self.pushes:
            assert again.assimilate(push).verdict is Verdict.TAKEN, f"{push.unit} is in the parameters twice"
        stored = again.read()
        assert stored is not None
        return stored
