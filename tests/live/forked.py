"""collab-peer in processes that need not load torch and hivemind each: forked from one that has loaded them.

Loading takes seconds of both cores, of which a test with four peers has none left for what it is about. What a command
says and does when it is started as people start it is seen in the demo and in ``test_process_end.py``.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
os.environ["HF_HUB_OFFLINE"] = "1"

from forked_process import ForkedProcess

Habits = Callable[[], None]
"""What makes a peer differ from others; called in its process before it begins, so it can be pickled."""


class Forked(ForkedProcess):
    """One collab-peer with its arguments."""

    def __init__(self, arguments: list[str], errors: Path, namespace: str = "", habits: Habits | None = None) -> None:
        """
        Args:
            errors: where its standard error is written.
            namespace: of the network, by its name; empty: this process's own.
        """
        super().__init__(_be, (arguments, habits), errors, place=namespace)


def _be(arguments: list[str], habits: Habits | None) -> None:
    sys.argv = ["collab-peer", *arguments]
    from peers.cli import main

    if habits is not None:
        habits()
    main()
