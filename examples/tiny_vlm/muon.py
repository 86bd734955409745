"""Muon for the weight matrices, AdamW for everything else."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made (nearly) orthogonal by a Newton-Schulz iteration.

    Matrices of one shape are handled together. See K. Jordan et al., "Muon: an optimizer for
    hidden layers in neural networks" (2024).
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    matrix = (parameter.shape[0], parameter[0].numel())
                    by_shape.setdefault(matrix, []).append(parameter)
            for (rows, columns), parameters in by_shape.items():
                updates = torch.stack([self._moved(p, group["momentum"]) for p in parameters])
                updates = orthogonalized(updates) * max(1.0, rows / columns) ** 0.5
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(update.view_as(parameter), alpha=-group["lr"])

    def _moved(self, parameter: nn.Parameter, momentum: float) -> torch.Tensor:
        state = self.state[parameter]
        gradient = parameter.grad.flatten(1)
        buffer = state.setdefault("momentum", torch.zeros_like(gradient))
        buffer.lerp_(gradient, 1 - momentum)
        return gradient.lerp(buffer, momentum)


def orthogonalized(matrices: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Push the singular values of [N, rows, columns] matrices towards one."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = (matrices.mT if tall else matrices).bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(matrices.dtype)


def build_optimizers(
    model: nn.Module, extra: nn.Module, *, muon_lr: float = 0.006, adamw_lr: float = 1e-3
) -> list[torch.optim.Optimizer]:
    """Muon on the matrices inside the towers; AdamW on embeddings, heads, norms and biases."""
    apart = ("embed", "lm_head", "class_embedding")
    matrices, rest = [], list(extra.parameters())
    for name, parameter in model.named_parameters():
        inside = parameter.ndim >= 2 and not any(word in name for word in apart)
        (matrices if inside else rest).append(parameter)
    return [
        Muon(matrices, lr=muon_lr),
        torch.optim.AdamW(rest, lr=adamw_lr, betas=(0.9, 0.98), weight_decay=0.01),
    ]
