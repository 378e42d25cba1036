"""Plain ``torch.distributed`` as a contestant: what the links give when nobody may fail."""

import os
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from averaging_engine import Result, Turn, Voice
from averaging_setup import CODEC_BYTES, Assignment
from averaging_vectors import weight


class GlooEngine:
    """Implements ``Engine``. A ring: everybody is a trainer, and sends and receives as much as anybody else."""

    contact = ""

    def __init__(self, work: Assignment, voice: Voice) -> None:
        self._work, self._voice = work, voice
        self._weights = {peer: weight(peer) for peer in range(len(work.parts))}
        self._unread_bytes = 0
        torch.set_num_threads(1)

    def connect(self, contacts: Sequence[str]) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = self._work.interface
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{self._work.contact or self._work.host}:{self._work.port}",
            rank=self._work.index,
            world_size=len(self._work.parts),
            timeout=timedelta(seconds=self._work.limit_s),
        )

    def average(self, turn: Turn) -> Result:
        if turn.vector is None:
            raise ValueError("gloo has no auxiliary peers")
        tensor = torch.from_numpy(turn.vector) * (turn.weight / sum(self._weights.values()))
        if self._work.codec == "half":
            tensor = tensor.half()
        reason = ""
        try:
            dist.barrier()
            self._voice.tell("group")
            dist.all_reduce(tensor)
            self._voice.tell("whole")
        except RuntimeError as error:
            reason = str(error)
        others = len(self._work.parts) - 1
        size = CODEC_BYTES[self._work.codec] * len(turn.vector)
        self._unread_bytes += int(2 * others / (others + 1) * size)
        return Result(
            mean=None if reason else tensor.float().numpy(),
            epoch=turn.epoch + 1,
            lineage=turn.lineage,
            is_committed=not reason,
            contributors={} if reason else self._weights,
            vector_bytes=size,
            result_bytes=size,
            reason=reason,
        )

    def take_payload_bytes(self) -> int:
        taken, self._unread_bytes = self._unread_bytes, 0
        return taken

    def leave(self) -> None:
        """The group goes with the process: leaving it in order would wait for peers that are dead."""
