"""What a peer does for its own process."""

import asyncio
import gc
import io
import logging
import os
import signal
import subprocess
import sys
import threading
import weakref
from unittest.mock import patch

import pytest

from collab.errors import ConfigError
from peers.process import (
    EXIT_DECLINED,
    EXIT_ERROR,
    HELPER,
    HELPERS,
    Declined,
    ToStandardError,
    keep_heap_small,
    run_peer,
    start_helpers,
)

RINGS = """\
import gc, sys, weakref

from peers.process import settle_heap

kept = [[number] for number in range(400_000)]  # as much as is imported
settle_heap()


class Ring:
    def __init__(self):
        self.me = self


dead, later = [], []
for number in range(2000):
    ring = Ring()
    dead.append(weakref.ref(ring))
    gc.collect(1)  # it has lived for long
    del ring
    later += [[number] for _ in range(20)]
for number in range(20_000):
    later.append([number])
print(sum(ring() is not None for ring in dead))
"""


def test_dead_rings_are_found_after_the_heap_was_settled() -> None:
    """Without being asked for: of 2,000 that had lived for long, next to all."""
    result = subprocess.run([sys.executable, "-c", RINGS], capture_output=True, text=True, timeout=280, check=True)
    assert int(result.stdout) < 500


CONFIGURE = "from peers.process import configure_logging\nconfigure_logging('debug')\n"
IMPORT = "import huggingface_hub.file_download, httpx\n"
LOG = """
import logging
for name in ("huggingface_hub", "huggingface_hub.file_download", "httpx", "httpcore.connection"):
    for level in (logging.DEBUG, logging.INFO, logging.WARNING):
        logging.getLogger(name).log(level, "Error while downloading from %s", "https://signed.example/?X-Amz-Signature=x")
logging.getLogger("huggingface_hub").setLevel("INFO")
logging.getLogger("huggingface_hub.file_download").warning("https://signed.example")
logging.getLogger("huggingface_hub").error("this is an error")
"""


@pytest.mark.parametrize("program", [CONFIGURE + IMPORT + LOG, IMPORT + CONFIGURE + LOG], ids=["before", "after"])
@pytest.mark.parametrize("verbosity", ["", "debug"])
def test_no_library_logs_an_address_whether_it_is_imported_before_or_after_logging_is_set_up(
    program: str, verbosity: str
) -> None:
    env = {**os.environ, "HF_HUB_VERBOSITY": verbosity}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True, env=env
    )
    assert "signed.example" not in result.stdout + result.stderr
    assert "this is an error" in result.stderr


class Ring:
    """Nobody holds it but itself."""

    def __init__(self) -> None:
        self.me = self


def test_dead_rings_are_found_though_nothing_new_is_made_and_looking_for_them_takes_a_small_part_of_the_time() -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    async def main() -> None:
        ring = weakref.ref(Ring())
        keeping = asyncio.create_task(keep_heap_small(0.001))
        while len(pauses) < 3:
            await sleep(0.001)
        keeping.cancel()
        assert ring() is None

    gc.disable()
    try:
        with patch("peers.process.asyncio.sleep", pause):
            asyncio.run(main())
    finally:
        gc.enable()
    assert pauses[0] == 0.001
    assert min(pauses[1:]) > 0.1, "all of this process is looked at, and takes its time"


BURST = """\
import asyncio

from peers.process import keep_heap_small


def resident():
    with open("/proc/self/statm") as seen:
        return int(seen.read().split()[1]) * 4096


async def main():
    before = resident()
    burst = [bytearray(2000) for _ in range(40_000)]
    kept = burst[::50]
    del burst
    most = resident()
    keeping = asyncio.create_task(keep_heap_small(0.01))
    while resident() - before > (most - before) / 3:
        await asyncio.sleep(0.1)
    keeping.cancel()
    print(most - before, len(kept))


asyncio.run(main())
"""


def test_what_a_burst_took_goes_back_to_the_system_though_something_of_it_stays() -> None:
    result = subprocess.run([sys.executable, "-c", BURST], capture_output=True, text=True, timeout=280, check=True)
    most, kept = map(int, result.stdout.split())
    assert most > 50e6
    assert kept == 800


HEAPS = """\
import ctypes
import sys
from threading import Barrier, Thread

from peers.process import set_up_heap


class Told(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


def apart():
    return told().hblkhd


told = ctypes.CDLL(None).mallinfo2
told.restype = Told
if sys.argv[1] == "set up":
    set_up_heap()
together = Barrier(9)
threads = [Thread(target=lambda: (bytearray(5000), together.wait())) for _ in range(8)]
for thread in threads:
    thread.start()
together.wait()
with open("/proc/self/maps") as seen:
    starts = [int(line.split("-")[0], 16) for line in seen if line.split()[-1] == "0"]
heaps = sum(start % (64 << 20) == 0 for start in starts)
large = bytearray(20_000_000)
del large
before = apart()
kept = bytearray(1_000_000)
print(heaps, apart() - before)
"""


@pytest.mark.parametrize("is_set_up", [False, True])
def test_threads_share_a_heap_and_large_buffers_stay_apart_from_it(is_set_up: bool) -> None:
    words = [sys.executable, "-c", HEAPS, "set up" if is_set_up else "as it is"]
    result = subprocess.run(words, capture_output=True, text=True, timeout=280, check=True)
    heaps, apart = map(int, result.stdout.split())
    assert (heaps <= 1, apart >= 1_000_000) == (is_set_up, is_set_up)


def test_threads_of_work_that_blocks_are_there_from_the_beginning_and_no_more_come() -> None:
    async def main() -> None:
        start_helpers()
        loop = asyncio.get_running_loop()
        names, release = list[str](), threading.Event()

        def busy() -> None:
            names.append(threading.current_thread().name)
            release.wait()

        assert len(helpers()) == HELPERS
        jobs = [loop.run_in_executor(None, busy) for _ in range(HELPERS + 3)]
        while len(names) < HELPERS:
            await asyncio.sleep(0.001)
        assert len(helpers()) == HELPERS == len(set(names))
        release.set()
        await asyncio.gather(*jobs)

    asyncio.run(main())
    assert not helpers()


def helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(HELPER)]


def test_a_no_has_an_exit_code_of_its_own_and_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    async def declines(_: asyncio.Event) -> None:
        raise Declined("not joined")

    async def fails(_: asyncio.Event) -> None:
        raise ConfigError("no such thing")

    assert run_peer(declines) == EXIT_DECLINED == 3
    assert capsys.readouterr().err == "not joined\n"
    assert run_peer(fails) == EXIT_ERROR
    assert capsys.readouterr().err == "error: no such thing\n"


def test_whoever_is_asked_to_leave_leaves_whatever_comes_of_saying_so(caplog: pytest.LogCaptureFixture) -> None:
    async def main(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.wait_for(stop.wait(), 60.0)

    with patch("peers.process.announce", side_effect=OSError), caplog.at_level(logging.ERROR, "asyncio"):
        assert run_peer(main) == 0
    assert "OSError" in caplog.text


def test_waits_that_a_library_gives_up_are_no_errors_and_other_tasks_are(caplog: pytest.LogCaptureFixture) -> None:
    async def give_up(task: asyncio.Task[object]) -> None:
        await asyncio.sleep(0.01)
        del task
        gc.collect()

    async def stand_still() -> None:
        await asyncio.get_running_loop().create_future()

    async def main(_: asyncio.Event) -> None:
        for _ in range(3):
            await give_up(asyncio.create_task(asyncio.Event().wait()))
        assert not caplog.records
        await give_up(asyncio.create_task(stand_still()))

    with caplog.at_level(logging.ERROR, "asyncio"):
        assert run_peer(main) == 0
    assert "stand_still" in caplog.text
    assert "Event.wait" not in caplog.text


def test_what_is_logged_goes_where_standard_error_goes_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """A panel takes that over, and would be torn by what goes past it."""
    log = logging.getLogger("tests.of what is logged")
    handler = ToStandardError()
    log.addHandler(handler)
    for _ in range(2):
        taken_over = io.StringIO()
        monkeypatch.setattr(sys, "stderr", taken_over)
        log.warning("the disk is full")
        assert taken_over.getvalue() == "the disk is full\n"
    log.removeHandler(handler)
