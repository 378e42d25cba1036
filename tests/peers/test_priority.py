"""What a peer takes of processors, disks and a GPU's memory: what others leave, and never more than it was told."""

import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from collab.errors import ConfigError
from peers import priority
from peers.gpu import gpu_of, keep_within
from peers.priority import NICE, give_way

CONTEXT = multiprocessing.get_context("forkserver")


def _niced(answer: Connection, before: int, autogroup: Path) -> None:
    priority.AUTOGROUP = autogroup
    os.setpriority(os.PRIO_PROCESS, 0, before)
    give_way()
    answer.send(os.getpriority(os.PRIO_PROCESS, 0))


def niced(before: int, autogroup: Path) -> int:
    """How nice a process is that was as nice as that, or as we are, and gives way. Only downwards, as everybody may; a
    process of its own, since nobody may go back up.
    """
    here, there = CONTEXT.Pipe(duplex=False)
    child = CONTEXT.Process(target=_niced, args=(there, max(before, os.getpriority(os.PRIO_PROCESS, 0)), autogroup))
    child.start()
    after: int = here.recv()
    child.join()
    assert child.exitcode == 0
    return after


@pytest.mark.parametrize(("before", "after"), [(NICE, NICE), (19, 19)])
def test_others_go_first_and_whoever_lets_them_already_goes_no_further_forward(
    tmp_path: Path, before: int, after: int
) -> None:
    assert niced(before, tmp_path / "not there") == max(after, os.getpriority(os.PRIO_PROCESS, 0))


@pytest.mark.parametrize(
    ("before", "after"),
    [("/autogroup-7 nice 0\n", "10"), ("/autogroup-7 nice -5\n", "10"), *[("/autogroup-7 nice 19\n",) * 2], ("", "")],
)
def test_other_sessions_go_first_where_processors_are_shared_among_sessions(
    tmp_path: Path, before: str, after: str
) -> None:
    autogroup = tmp_path / "autogroup"
    autogroup.write_text(before)
    niced(NICE, autogroup)
    assert autogroup.read_text() == after


class Card:
    """A GPU of 16 GB."""

    total_bytes = 16_000_000_000

    def __init__(self) -> None:
        self.fractions: list[float] = []

    def limit(self, fraction: float) -> None:
        self.fractions.append(fraction)


@pytest.mark.parametrize(("gigabytes", "fraction"), [(4.0, 0.25), (16.0, 1.0), (80.0, 1.0), (1e-9, 0.001)])
def test_so_many_gigabytes_are_a_part_of_a_card_and_never_more_than_it_has(gigabytes: float, fraction: float) -> None:
    card = Card()
    keep_within(card, gigabytes)
    assert card.fractions == [pytest.approx(fraction)]


def test_where_there_is_no_gpu_its_memory_cannot_be_limited() -> None:
    assert gpu_of(torch.device("cpu")) is None
    with pytest.raises(ConfigError, match="--gpu-memory") as error:
        keep_within(None, 4.0)
    assert "leave it out" in error.value.hint
