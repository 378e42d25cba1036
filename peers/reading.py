"""The text that a peer reads: whether it is at that, and what it downloads of a streamed dataset, which its libp2p
daemon does not see, counted with the rest.
"""

import threading
from collections.abc import Callable, Iterator

from collab.config import CausalLMTask, HubData, Run
from collab.errors import BrokenOff
from peers.traffic import MonthlyTraffic

Tell = Callable[[str, int, int], None]
"""Hears how far what takes long is, in bytes; from any thread."""


def dataset_of(run: Run) -> HubData | None:
    """What each trainer downloads; None: nothing."""
    data = run.task.data if isinstance(run.task, CausalLMTask) else None
    return data if isinstance(data, HubData) else None


class Reading:
    """By threads of this process, of any of its sessions, which nobody waits for. Any thread may ask."""

    def __init__(self) -> None:
        self._changing, self._num_readers = threading.Lock(), 0

    @property
    def is_still(self) -> bool:
        """Whether nobody reads or encodes."""
        return not self._num_readers

    def until(self, is_over: Callable[[], bool]) -> Callable[[Iterator[str]], Iterator[str]]:
        """What the documents of one session pass.

        Args:
            is_over: asked after each document; from then on the session reads no more.
        """

        def overseen(texts: Iterator[str]) -> Iterator[str]:
            self._count(1)
            try:
                for text in texts:
                    if is_over():
                        raise BrokenOff("reading was broken off: this machine is wanted back")
                    yield text
            finally:
                self._count(-1)

        return overseen

    def _count(self, more: int) -> None:
        with self._changing:
            self._num_readers += more


class CountedReading:
    """Whoever reads text says how far it is; what that comes to is about what was downloaded: files are packed, and
    bring other columns than the text.

    A thread reads one part after the other, each from 0 until as much is read as there is.
    """

    def __init__(self, tell: Tell, what: str, traffic: MonthlyTraffic) -> None:
        """
        Args:
            tell: hears everything, too.
            what: how reading is called.
        """
        self._tell, self._what, self._traffic = tell, what, traffic
        self._read: dict[int, int] = {}
        """Bytes of the present part, by thread."""

    def tell(self, what: str, done_bytes: int, whole_bytes: int) -> None:
        """See ``Tell``."""
        self._tell(what, done_bytes, whole_bytes)
        if what != self._what:
            return
        thread = threading.get_ident()
        before = self._read.get(thread, 0)
        self._traffic.add(done_bytes - before if done_bytes >= before else done_bytes)  # a part may have broken off
        self._read[thread] = 0 if done_bytes == whole_bytes else done_bytes
