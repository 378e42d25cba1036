"""hivemind's contestants of bench_time_to_loss.py: ``hivemind.Optimizer``, plain, delayed and with local updates."""

from functools import partial
from typing import Any

import hivemind
import torch
from hivemind.compression import Float16Compression
from race_setup import Work

MATCHMAKING_S = 1.0
"""Its best for the fixed cost of a step; see docs/benchmarks.md."""
AVERAGING_LIMIT_S = 30.0
STATE_EVERY = 5
"""Steps between averages of parameters, each of which costs as much as one of gradients; its default is 1."""
NEVER = ("use_relay", "use_auto_relay", "auto_nat", "nat_port_map")


def start_dht(host: str, contact: str) -> tuple[Any, str]:
    """A DHT peer that listens at ``host``, and how to reach it."""
    dht = hivemind.DHT(
        start=True,
        initial_peers=contact.split() or None,
        host_maddrs=[f"/ip4/{host}/tcp/0"],
        **dict.fromkeys(NEVER, False),
    )
    addresses = [str(address) for address in dht.get_visible_maddrs()]
    return dht, " ".join(address for address in addresses if f"/{host}/" in address)


class HivemindPeer:
    """``hivemind.Optimizer``: float16, the true bandwidth; or with local updates and averages of parameters."""

    def __init__(self, model: torch.nn.Module, work: Work, *, is_auxiliary: bool = False) -> None:
        self._dht, self.contact = start_dht(work.host, work.contact)
        section = work.run.optimizer
        is_local = work.engine.name == "hivemind-local"
        is_delayed = work.engine.name == "hivemind-delay"
        group = {"request_timeout": MATCHMAKING_S / 2, "target_group_size": 16, "bandwidth": work.up_mbit_per_s}
        averager = partial(hivemind.optim.grad_averager.GradientAverager, **group)
        self._optimizer = hivemind.Optimizer(
            dht=self._dht,
            run_id="race",
            batch_size_per_step=None if is_auxiliary else work.batch,
            target_batch_size=work.engine.target,
            params=model.parameters(),
            optimizer=partial(
                torch.optim.AdamW, lr=section.learning_rate, betas=section.betas, weight_decay=section.weight_decay
            ),
            use_local_updates=is_local,
            delay_grad_averaging=is_delayed,
            delay_optimizer_step=is_delayed,
            average_state_every=1 if is_local else STATE_EVERY,
            matchmaking_time=MATCHMAKING_S,
            averaging_timeout=AVERAGING_LIMIT_S,
            grad_compression=Float16Compression(),
            state_averaging_compression=Float16Compression(),
            averager_opts=group,
            grad_averager_factory=None if is_local else averager,  # the options above reach the state's averager alone
            auxiliary=is_auxiliary,
        )
        self._parameters = list(model.parameters())

    @property
    def epoch(self) -> int:
        return int(self._optimizer.local_epoch)

    def step(self, loss: float) -> None:
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def assist(self) -> None:
        """What an auxiliary peer does again and again: take part in the next round, if there is one."""
        self._optimizer.step()

    def leave(self) -> None:
        self._optimizer.shutdown()
        self._dht.shutdown()
