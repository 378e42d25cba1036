"""LAMB, the optimiser for large batches."""

from collections.abc import Callable
from typing import Any

import torch


class Lamb(torch.optim.Optimizer):
    """Adam's direction, scaled for each tensor to the size of its weights.

    For each tensor x with gradient g at its step t, all in float32::

        m = beta1 m + (1 - beta1) g                  m_hat = m / (1 - beta1^t)
        v = beta2 v + (1 - beta2) g^2                v_hat = v / (1 - beta2^t)
        u = m_hat / (sqrt(v_hat) + epsilon) + weight_decay x
        x = x - learning_rate * (||x|| / ||u||) u

    The ratio of norms is 1 where either norm is 0: a bias that starts at zero learns like Adam's. Weight decay is part
    of u, so it is scaled too. phi of the paper is the identity.

    State per tensor: ``step`` (scalar float32 tensor, as torch's AdamW has it), ``exp_avg``, ``exp_avg_sq``.

    Source: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (ICLR 2020),
    algorithm 2.
    """

    def __init__(
        self,
        params: Any,
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"impossible LAMB settings: lr={lr} betas={betas} eps={eps} weight_decay={weight_decay}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step with the gradients in ``.grad``; tensors without one are left alone."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_tensor(parameter, parameter.grad, group)
        return loss

    def _step_tensor(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        if gradient.is_sparse:
            raise ValueError("LAMB takes dense gradients only")
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0, dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state["step"] += 1
        count = int(state["step"].item())
        beta1, beta2 = group["betas"]
        state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        denominator = (state["exp_avg_sq"] / (1 - beta2**count)).sqrt_().add_(group["eps"])
        update = (state["exp_avg"] / (1 - beta1**count)).div_(denominator)
        if group["weight_decay"]:
            update.add_(parameter, alpha=group["weight_decay"])
        size, update_size = torch.linalg.vector_norm(parameter), torch.linalg.vector_norm(update)
        # On the device: asking for the norms on the host would stop a GPU once per tensor.
        trust = torch.where((size > 0) & (update_size > 0), size / update_size, torch.ones_like(size))
        parameter.sub_(update.mul_(trust * group["lr"]))
