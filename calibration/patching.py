"""The reference for everything downstream: patching visual rows by forward hooks (DESIGN §2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from p2p_export.errors import InputError
from p2p_export.models import family_of
from p2p_export.plan import Mode, Plan
from p2p_export.proxies import SITES, SITES_NEEDED, ProxySet, Site, tensor_name

Hook = Callable[[Any, Any, torch.Tensor], torch.Tensor]


@contextmanager
def patched(model: Any, plan: Plan, proxies: ProxySet, visual_mask: torch.Tensor) -> Iterator[Any]:
    """Overwrite the visual rows of every planned layer's sites while the body runs.

    Right behind each replaced linear (bias included, before RoPE) the rows that `visual_mask`
    [B,S] bool marks become the site's image proxy; all other rows stay as computed. A `proxy`
    layer is patched at all sites, a `frozen` one at all but k and v. Sites whose patched output
    nobody reads (q, gate, up) are overwritten where the proxies have a vector for them.

    The mask is that of the next forward calls. A call of one row per sequence, where the mask has
    more, is a decode step: text, passed through. Any other shape is an `InputError`.

    The model is left as it was found, also when the body raises. Raises `PlanError` when the plan
    or its proxies do not fit the model.
    """
    family = family_of(model.config)
    spec = family.decoder_spec(model.config)
    plan.check_layers(spec.num_hidden_layers)
    proxies.check(plan, spec)
    mask = visual_mask.to(dtype=torch.bool)
    handles = []
    try:
        for layer in plan.planned:
            for site in patched_sites(plan.mode(layer), layer, proxies):
                vector = torch.tensor(proxies.vector(layer, site))
                linear = family.site(model, layer, site)
                handles.append(linear.register_forward_hook(_overwrite(vector, mask)))
        yield model
    finally:
        for handle in handles:
            handle.remove()


def patched_sites(mode: Mode, layer: int, proxies: ProxySet) -> tuple[Site, ...]:
    """The sites of a layer that are overwritten: those its mode needs, and dead ones if known."""
    needed = SITES_NEEDED[mode]
    dead: tuple[Site, ...] = () if mode == "dense" else ("q", "gate", "up")
    return tuple(
        site
        for site in SITES
        if site in needed or (site in dead and tensor_name(layer, site) in proxies.tensors)
    )


def _overwrite(vector: torch.Tensor, visual_mask: torch.Tensor) -> Hook:
    def hook(_module: Any, _args: Any, output: torch.Tensor) -> torch.Tensor:
        rows = visual_mask.to(output.device)
        if output.shape[:2] != rows.shape:
            if output.shape[0] == rows.shape[0] and output.shape[1] == 1:
                return output
            raise InputError(
                f"the visual mask has shape {list(rows.shape)} and the model was called with "
                f"{list(output.shape[:2])} rows; pass the mask of the rows this call processes"
            )
        return torch.where(rows[..., None], vector.to(output), output)

    return hook
