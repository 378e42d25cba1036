"""hivemind's stock averager as a contestant, told the true bandwidths."""

import multiprocessing
from collections.abc import Sequence
from typing import Any

import hivemind
import torch
from averaging_engine import Result, Turn, Voice
from averaging_setup import CODEC_BYTES, Assignment, Part
from averaging_vectors import weight
from hivemind.averaging import DecentralizedAverager
from hivemind.compression import CompressionBase, Float16Compression, NoCompression

CODECS: dict[str, type[CompressionBase]] = {"none": NoCompression, "half": Float16Compression}
"""Its 8-bit codecs fail with numpy 2.4."""
MATCHMAKING_S = 4.0
"""Only the whole step contains it; a full group does not wait for its end."""


class Watched(DecentralizedAverager):  # type: ignore[misc]  # hivemind is untyped
    """Tells when an all-reduce begins and ends. These two methods run in a process that hivemind forks."""

    voice: Voice
    parts: dict[str, Part]
    payload_vectors: Any
    """Vectors sent so far: a number in shared memory."""

    async def _aggregate_with_group(self, group_info: Any, *args: Any, **options: Any) -> Any:  # hivemind's own hook
        self.voice.tell("group")
        gathered = await super()._aggregate_with_group(group_info, *args, **options)
        self.voice.tell("whole")
        return gathered

    async def _run_allreduce_inplace_(self, tensors: Any, group_info: Any, *args: Any, **options: Any) -> Any:
        total = sum(options["peer_fractions"])
        share = options["peer_fractions"][group_info.peer_ids.index(self.peer_id)] / total
        senders = len(group_info.peer_ids) - list(self.parts.values()).count(Part.AUXILIARY)
        contributes = self.parts[str(self.peer_id)] is not Part.AUXILIARY
        self.payload_vectors.value += contributes * (1 - share) + (senders - contributes) * share
        return await super()._run_allreduce_inplace_(tensors, group_info, *args, **options)


class HivemindEngine:
    """Implements ``Engine``."""

    def __init__(self, work: Assignment, voice: Voice) -> None:
        torch.set_num_threads(1)
        self._work, self._voice = work, voice
        self._dht = hivemind.DHT(
            start=True,
            initial_peers=work.contact.split() or None,
            host_maddrs=[f"/ip4/{work.host}/tcp/0"],
            use_relay=False,
            use_auto_relay=False,
            auto_nat=False,
            nat_port_map=False,
        )
        self._averager: Any = None
        self._payload_vectors = multiprocessing.Value("d", 0.0)
        self._indices: dict[str, int] = {}
        addresses = [str(address) for address in self._dht.get_visible_maddrs()]
        self.contact = " ".join(address for address in addresses if f"/{work.host}/" in address)

    def connect(self, contacts: Sequence[str]) -> None:
        work = self._work
        self._indices = {contact.split()[0].rpartition("/")[2]: index for index, contact in enumerate(contacts)}
        Watched.voice, Watched.payload_vectors = self._voice, self._payload_vectors
        Watched.parts = {peer: work.parts[index] for peer, index in self._indices.items()}
        self._averager = Watched(
            [torch.zeros(work.num_elements)],
            self._dht,
            start=True,
            prefix="bench",
            target_group_size=len(work.parts),
            min_matchmaking_time=MATCHMAKING_S,
            request_timeout=MATCHMAKING_S / 2,
            compression=CODECS[work.codec](),
            bandwidth=work.true_mbit_per_s,
            auxiliary=work.part is Part.AUXILIARY,
            client_mode=work.part is Part.CLIENT,
            allreduce_timeout=work.limit_s,
            allow_state_sharing=False,
        )

    def average(self, turn: Turn) -> Result:
        if turn.vector is not None:
            with self._averager.get_tensors() as (tensor,):
                tensor.copy_(torch.from_numpy(turn.vector))
        options = {"weight": turn.weight} if turn.vector is not None else {}
        reason, group = "", dict[Any, Any]()
        try:
            group = self._averager.step(timeout=self._work.limit_s, allow_retries=False, **options) or {}
        except Exception as error:  # noqa: BLE001 - hivemind raises whatever its parts raised; a lost round is a figure
            reason = repr(error)
        members = [self._indices[str(peer)] for peer in group]
        weights = {index: weight(index) for index in members if self._work.parts[index] is not Part.AUXILIARY}
        size = CODEC_BYTES[self._work.codec] * self._work.num_elements
        return Result(
            mean=self._mean() if turn.vector is not None else None,
            epoch=turn.epoch + 1,
            lineage=turn.lineage,
            is_committed=bool(group),
            contributors=weights,
            vector_bytes=size,
            result_bytes=size,
            reason=reason,
        )

    def _mean(self) -> Any:
        with self._averager.get_tensors() as (tensor,):
            return tensor.numpy()

    def take_payload_bytes(self) -> int:
        with self._payload_vectors.get_lock():
            vectors, self._payload_vectors.value = self._payload_vectors.value, 0.0
        return int(vectors * CODEC_BYTES[self._work.codec] * self._work.num_elements)

    def leave(self) -> None:
        if self._averager is not None:
            self._averager.shutdown()
        self._dht.shutdown()
