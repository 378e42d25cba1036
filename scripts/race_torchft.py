"""torchft's contestant of bench_time_to_loss.py: its DiLoCo over gloo, each trainer a replica of its own.

torchft is no dependency of this project: ``pip install torchft==0.2.0``.
"""

import os
from contextlib import ExitStack
from datetime import timedelta

import torch
from netlab import Lab
from race_setup import Work
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, and not in its list of names
from torchft import Manager, ProcessGroupGloo
from torchft.checkpointing.http_transport import HTTPTransport
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo

LIMIT = timedelta(seconds=30)
"""For one exchange; hivemind has as much."""
QUORUM_LIMIT = timedelta(seconds=90)
"""For the others to come to the next quorum: after a kill some may wait in an exchange until its limit, and again in
the one after that."""
CONNECT_LIMIT = timedelta(seconds=30)
JOIN_LIMIT_MS = 10_000
"""The lighthouse waits so long for replicas that live and have not come to the quorum."""
DEAD_AFTER_MS = 3_000
"""Without a heartbeat; they come ten times a second."""
MIXED_AFTER_DELAY = 0.5
"""Of the own parameters, when an exchange that went on beside microbatches comes in: Streaming DiLoCo's alpha."""


def start_lighthouse(host: str) -> tuple[LighthouseServer, str]:
    """Where replicas agree on who takes part, and its URL."""
    lighthouse = LighthouseServer(
        bind="[::]:0", min_replicas=2, join_timeout_ms=JOIN_LIMIT_MS, heartbeat_timeout_ms=DEAD_AFTER_MS
    )
    return lighthouse, f"http://{host}:{lighthouse.address().rpartition(':')[2]}"


class NamedTransport(HTTPTransport):  # type: ignore[misc]  # torchft is not in every environment that checks types
    """How a newcomer fetches the state, at an address: machines' names mean nothing behind links of a lab."""

    def __init__(self, host: str) -> None:
        self._host = host
        super().__init__(timeout=LIMIT, num_chunks=0)

    def address(self) -> str:
        scheme, _, place = super().address().partition("://")
        port_and_path = place.rpartition(":")[2]
        return f"{scheme}://{self._host}:{port_and_path}"


class TorchftPeer:
    """``DiLoCo`` with one bucket for all parameters; whole, or beside the second half of the next phase."""

    def __init__(self, model: torch.nn.Module, work: Work) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = Lab.interface
        self._store = TCPStore(work.host, 0, is_master=True, wait_for_workers=False)
        section, engine = work.run.optimizer, work.engine
        self._inner = torch.optim.AdamW(
            model.parameters(), lr=section.learning_rate, betas=section.betas, weight_decay=section.weight_decay
        )
        momentum = engine.outer_momentum
        outer = torch.optim.SGD(
            model.parameters(), lr=engine.outer_learning_rate, momentum=momentum, nesterov=momentum > 0
        )
        self._manager = Manager(
            pg=ProcessGroupGloo(timeout=LIMIT),
            load_state_dict=model.load_state_dict,
            state_dict=model.state_dict,
            min_replica_size=2,
            use_async_quorum=False,
            timeout=LIMIT,
            quorum_timeout=QUORUM_LIMIT,
            connect_timeout=CONNECT_LIMIT,
            rank=0,
            world_size=1,
            store_addr=work.host,
            store_port=self._store.port,
            lighthouse_addr=work.contact,
            replica_id=f"trainer_{work.index}",
            hostname=work.host,
            checkpoint_transport=NamedTransport(work.host),
            init_sync=False,
        )
        every = work.microbatches_between_exchanges
        diloco = DiLoCo(
            self._manager,
            [model],
            self._inner,
            outer,
            sync_every=every,
            use_bucketization=True,
            fragment_sync_delay=every // 2 if engine.delay else 0,
            fragment_update_alpha=MIXED_AFTER_DELAY if engine.delay else 0.0,
        )
        self._hooks = ExitStack()
        self._hooks.enter_context(diloco)
        self._parameters = list(model.parameters())

    @property
    def epoch(self) -> int:
        return int(self._manager.current_step())

    def step(self, loss: float) -> None:
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._inner.step()
        self._inner.zero_grad()

    def leave(self) -> None:
        self._hooks.close()
        self._manager.shutdown(wait=False)
