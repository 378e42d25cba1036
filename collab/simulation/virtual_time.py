"""An asyncio event loop whose clock jumps, and the clock and compute ports that live on it.

Nothing here waits: while a callback can run the clock stands still, and when none can it jumps to the next timer. The
loop also knows which peer a callback belongs to (``OWNER``, inherited by every task, timer and callback of that peer),
so that one peer can be stopped in its tracks as SIGSTOP does.
"""

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from typing import Any, NoReturn, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH_S = 1_700_000_000.0
"""Swarm time when a simulation starts: fixed, so that runs repeat; recent, so that sanity checks on dates pass."""
MAX_TURNS_AT_ONE_INSTANT = 200_000
"""A thousand peers take some ten turns an instant; so many are a loop that never waits."""
OWNER: ContextVar[int | None] = ContextVar("OWNER", default=None)
"""Index of the peer whose code runs; None is the world itself."""

_logger = logging.getLogger(__name__)


class Deadlock(RuntimeError):
    """Somebody waits, and nothing is left that could ever wake them; the message names the pending tasks."""


class Livelock(RuntimeError):
    """Callbacks keep running without the clock ever moving: somebody retries without waiting."""


class _Task(asyncio.Task[Any]):
    """One whose place in a set follows from its number and not from where it is in the memory: who ends tasks of a set,
    or takes those that are done, then does so in the same order in every process.
    """

    def __init__(self, number: int, *args: Any, **kwargs: Any) -> None:
        self._number = number  # first: while it is made it is put into a set already
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in order of their virtual time, equal times in order of arrival."""

    _stopping: bool  # the base class's: somebody called stop()
    _check_closed: Callable[[], None]

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._runnable: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle | None, Callable[..., object], tuple[Any, ...]]] = []
        self._timers_made = self._tasks_made = 0
        self._timers_cancelled = 0
        self._turns_at_this_instant = 0
        self._parked: dict[int, list[asyncio.Handle]] = {}
        self._tasks: dict[int, WeakKeyDictionary[asyncio.Task[Any], None]] = {}

    def time(self) -> float:
        """Virtual seconds since the simulation started."""
        return self._now_s

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As asyncio's, in order of arrival."""
        handle = asyncio.Handle(callback, args, self, context)
        self._runnable.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's, in virtual seconds."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's; timers of the same instant run in the order in which they were made."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_made += 1
        heapq.heappush(self._timers, (when, self._timers_made, handle, _nothing, ()))  # when cancelled it holds nothing
        return handle

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """As asyncio's, and remembered under the peer that it belongs to."""
        self._check_closed()
        self._tasks_made += 1
        task: asyncio.Task[T] = _Task(self._tasks_made, coro, loop=self, name=name, context=context)
        owner = OWNER.get() if context is None else context.get(OWNER)
        if owner is not None:
            self._tasks.setdefault(owner, WeakKeyDictionary())[task] = None
        return task

    def run_in_executor(self, executor: object, func: object, *args: object) -> NoReturn:
        """Refused: a thread's time is real and its order is nobody's."""
        raise RuntimeError("simulated code used a thread; blocking work goes through the Compute port")

    # -- peers --------------------------------------------------------------------------------------------------------

    def freeze(self, owner: int) -> None:
        """Stop all code of ``owner`` from the next callback on; what becomes due is kept for :meth:`thaw`."""
        self._parked.setdefault(owner, [])

    def thaw(self, owner: int) -> None:
        """Let the code of ``owner`` go on, callbacks in the order in which they became due."""
        self._runnable.extend(self._parked.pop(owner, ()))

    def tasks_of(self, owner: int) -> list[asyncio.Task[Any]]:
        """Unfinished tasks that ``owner`` started, oldest first."""
        return [task for task in self._tasks.get(owner, ()) if not task.done()]

    # -- the loop -----------------------------------------------------------------------------------------------------

    def post(self, when: float, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Call ``callback`` at ``when``, before any peer's code of that instant.

        For the world itself: no handle and no context, at half the price of :meth:`call_at`; it cannot be cancelled.
        """
        self._timers_made += 1
        heapq.heappush(self._timers, (when, self._timers_made, None, callback, args))

    def _run_once(self) -> None:
        runnable, timers, pop = self._runnable, self._timers, heapq.heappop
        while not self._stopping:
            if not runnable:
                self._jump()
            while timers and timers[0][0] <= self._now_s:
                _, _, timer, callback, args = pop(timers)
                if timer is not None:
                    runnable.append(timer)
                else:
                    callback(*args)
            self._turns_at_this_instant += 1
            if self._turns_at_this_instant > MAX_TURNS_AT_ONE_INSTANT:
                self._turns_at_this_instant = 0  # so that what is cancelled now can still clean up
                raise Livelock(f"time stands still at {self._now_s} s; running: {self._name_tasks()}")
            for _ in range(len(runnable)):
                handle = runnable.popleft()
                if not handle._cancelled and not (self._parked and self._park(handle)):
                    handle._run()

    def _jump(self) -> None:
        timers = self._timers
        while timers and (timer := timers[0][2]) is not None and timer._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise Deadlock(f"nothing can happen any more at {self._now_s} s; waiting: {self._name_tasks()}")
        if timers[0][0] > self._now_s:
            self._now_s = timers[0][0]
            self._turns_at_this_instant = 0

    def _park(self, handle: asyncio.Handle) -> bool:
        context: Context = handle._context  # type: ignore[attr-defined]  # public as get_context() from 3.12 on
        owner = context.get(OWNER)
        if owner is None or owner not in self._parked:
            return False
        self._parked[owner].append(handle)
        return True

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        # Most timers are deadlines that are never reached; without this sweep they would fill the heap.
        self._timers_cancelled += 1
        if self._timers_cancelled > 1000 and 2 * self._timers_cancelled > len(self._timers):
            self._timers[:] = [timer for timer in self._timers if timer[2] is None or not timer[2]._cancelled]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0

    def _name_tasks(self) -> str:
        names = sorted(f"{task.get_name()} in {_innermost(task)}" for task in asyncio.all_tasks(self))
        shown = ", ".join(names[:20])
        return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown or "no task"

    def _process_events(self, event_list: object) -> None:
        """There is no selector, so there are no events."""

    def _write_to_self(self) -> None:
        """Nothing sleeps, so nothing has to be woken."""

    def shut_down(self) -> None:
        """Cancel what still runs, let it clean up, and close the loop."""
        if self.is_closed():
            return
        for owner in list(self._parked):
            self.thaw(owner)
        tasks = asyncio.all_tasks(self)
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                self.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.run_until_complete(self.shutdown_asyncgens())
        except (Deadlock, Livelock) as error:
            _logger.warning("a cancelled task does not end: %s", error)
        self.close()


def _nothing() -> None:
    """In place of a callback."""


def _innermost(task: asyncio.Task[Any]) -> str:
    """Where a task waits, as ``function:line``; the deepest coroutine says more than the outermost."""
    coroutine: Any = task.get_coro()
    place = "?"
    while coroutine is not None and getattr(coroutine, "cr_frame", None) is not None:
        place = f"{coroutine.__qualname__}:{coroutine.cr_frame.f_lineno}"
        coroutine = coroutine.cr_await
    return place


def run(main: Callable[[], Coroutine[Any, Any, T]] | Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` in virtual time.

    Raises:
        Deadlock: ``main`` waits for something that cannot happen.
        Livelock: somebody retries for ever without waiting.
    """
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main() if callable(main) else main)
    finally:
        loop.shut_down()


class VirtualClock:
    """The clock port on a virtual loop."""

    def __init__(self, loop: VirtualLoop, *, error_s: float = 0.0) -> None:
        self._loop = loop
        self.error_s = error_s
        """How far this peer's idea of swarm time is ahead; may be changed while it runs."""

    def now(self) -> float:
        """Swarm time as this peer believes it."""
        return EPOCH_S + self._loop.time() + self.error_s

    def monotonic(self) -> float:
        """Virtual seconds; no error touches them."""
        return self._loop.time()


class VirtualCompute:
    """The compute port on a virtual loop: one worker that takes ``samples / samples_per_s`` for each piece of work."""

    def __init__(self, loop: VirtualLoop, *, samples_per_s: float, per_call_s: float = 0.0) -> None:
        if not samples_per_s > 0 or per_call_s < 0:
            raise ValueError(f"samples_per_s must be > 0 and per_call_s >= 0, got {samples_per_s} and {per_call_s}")
        self._loop = loop
        self._free_at_s = 0.0
        self._per_call_s = per_call_s
        self.samples_per_s = samples_per_s
        """May be changed while the peer runs; holds for work that is handed in after it."""

    async def run(self, work: Callable[[], T], *, samples: float = 0.0) -> T:
        """Call ``work`` when its time is over; work without samples costs ``per_call_s``, by default nothing."""
        ends_at_s = max(self._free_at_s, self._loop.time()) + self._per_call_s + samples / self.samples_per_s
        if ends_at_s == self._loop.time():
            return work()
        self._free_at_s = ends_at_s
        done: asyncio.Future[T] = self._loop.create_future()

        def call() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - handed to whoever awaits the work
                if not done.cancelled():
                    done.set_exception(error)
            else:
                if not done.cancelled():  # else the caller has gone, and its work was done all the same, as in a thread
                    done.set_result(result)

        self._loop.call_at(ends_at_s, call)
        return await done

    async def beside(self, work: Callable[[], T]) -> T:
        """Costs no time."""
        return work()

    async def apart(self, work: Callable[[], T]) -> T:
        """Costs no time."""
        return work()
