"""How much of a machine a peer takes when others want it, too: by default what they leave."""

import ctypes
import logging
import os
import re
from pathlib import Path

logger = logging.getLogger(__name__)

NICE = 10
"""About a tenth of a processor that somebody else wants, and all of one that nobody does."""
SYS_IOPRIO_SET, IOPRIO_WHO_PROCESS = 251, 1
"""Of Linux on x86-64."""
IOPRIO_BEST_EFFORT, LOWEST = 2, 7
"""Behind everybody else on a disk, and not only when nobody else uses it: a checkpoint must get there."""
AUTOGROUP = Path("/proc/self/autogroup")
"""Of Linux with ``sched_autogroup``, as desktops have it: processors go to sessions first, each as nice as is said
here, and only within a session to processes. Everybody may make their own nicer."""


def give_way() -> None:
    """Let everybody else's programs go first, on processors and disks; threads and children inherit it.

    Called before any thread is started. A machine that is niced further stays so.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) < NICE:
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    _let_sessions_go_first()
    wanted = (IOPRIO_BEST_EFFORT << 13) | LOWEST
    if ctypes.CDLL(None, use_errno=True).syscall(SYS_IOPRIO_SET, IOPRIO_WHO_PROCESS, 0, wanted):
        logger.info("this system does not let disks know who goes first errno=%d", ctypes.get_errno())


def _let_sessions_go_first() -> None:
    """Ours as a whole: what else runs in the same terminal goes last with us, until the terminal is closed."""
    try:
        said = re.search(r"nice (-?\d+)", AUTOGROUP.read_text(encoding="ascii"))
        if said is not None and int(said[1]) < NICE:
            AUTOGROUP.write_text(str(NICE), encoding="ascii")
    except (OSError, ValueError) as error:
        logger.info("this system does not let sessions know who goes first reason=%s", error)
