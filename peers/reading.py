"""The text that a peer reads: whether it is at that, and what it downloads of a streamed dataset, which its libp2p
daemon does not see, counted with the rest. That is about as much as the text is long: files are packed, and bring other
columns than the text.
"""

import threading
from collections.abc import Callable, Iterator

from collab.config import CausalLMTask, HubData, Run
from collab.errors import BrokenOff
from peers.traffic import MonthlyTraffic


def dataset_of(run: Run) -> HubData | None:
    """What each trainer downloads; None: nothing."""
    data = run.task.data if isinstance(run.task, CausalLMTask) else None
    return data if isinstance(data, HubData) else None


class Reading:
    """By threads of this process, of any of its sessions, which nobody waits for. Any thread may ask."""

    def __init__(self, traffic: MonthlyTraffic) -> None:
        self._traffic = traffic
        self._changing, self._num_readers = threading.Lock(), 0

    @property
    def is_still(self) -> bool:
        """Whether nobody reads or encodes."""
        return not self._num_readers

    def until(self, is_over: Callable[[], bool], *, is_downloaded: bool) -> Callable[[Iterator[str]], Iterator[str]]:
        """What the documents of one session pass.

        Args:
            is_over: asked after each document; from then on the session reads no more.
            is_downloaded: what is read counts, on whichever side it is.
        """

        def overseen(texts: Iterator[str]) -> Iterator[str]:
            self._count(1)
            try:
                for text in texts:
                    if is_downloaded:
                        self._traffic.add(len(text.encode()))
                    if is_over():
                        raise BrokenOff("reading was broken off: this machine is wanted back")
                    yield text
            finally:
                self._count(-1)

        return overseen

    def _count(self, more: int) -> None:
        with self._changing:
            self._num_readers += more
