"""Proxies: each site's mean output per stream, over a sample's tokens first, then over samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from p2p_export.calibration.embedding import DecoderBatch, embed
from p2p_export.calibration.loaded_model import LoadedModel
from p2p_export.calibration.prompting import Prompter
from p2p_export.calibration.samples import Sample
from p2p_export.errors import InputError
from p2p_export.progress import SILENT, Progress
from p2p_export.proxies import SITES, STREAMS, ProxySet, Site, tensor_name


def collect_proxies(
    loaded: LoadedModel,
    prompter: Prompter,
    samples: Sequence[Sample],
    *,
    batch_size: int = 16,
    progress: Progress = SILENT,
) -> ProxySet:
    """Mean proxies of every layer, site and stream over the prompts of `samples`.

    Example-balanced: a sample counts once, however many tokens it has. Sums are float64; memory is
    layers x sites x width. Padding counts for neither stream.
    """
    means = _RunningMeans(loaded)
    batches = prompter.batches(samples, batch_size)
    total = -(-len(samples) // batch_size)
    for prompts in progress.track(batches, description="calibrate", total=total):
        means.add(embed(loaded, prompts))
    return means.proxies()


class _RunningMeans:
    """Sums over samples of each site's per-sample means, float64 [2 streams, width] a site."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.places: list[tuple[int, Site]] = [
            (layer, site) for layer in range(loaded.spec.num_hidden_layers) for site in SITES
        ]
        size = loaded.spec.site_size
        self.sums = {
            (layer, site): torch.zeros(len(STREAMS), size(site), dtype=torch.float64)
            for layer, site in self.places
        }
        self.counts = torch.zeros(len(STREAMS), dtype=torch.float64)

    def add(self, batch: DecoderBatch) -> None:
        streams = torch.stack([batch.visual_mask, batch.text_mask], dim=1).double()
        lengths = streams.sum(dim=-1, keepdim=True)
        weights = streams / lengths.clamp(min=1)
        self.counts += (lengths[..., 0] > 0).sum(dim=0)
        handles = []
        try:
            for layer, site in self.places:
                linear = self.loaded.family.site(self.loaded.model, layer, site)
                hook = self._accumulate(self.sums[layer, site], weights)
                handles.append(linear.register_forward_hook(hook))
            with torch.no_grad():
                self.loaded.decoder(
                    inputs_embeds=batch.inputs_embeds,
                    attention_mask=batch.attention_mask,
                    position_ids=batch.position_ids,
                    use_cache=False,
                )
        finally:
            for handle in handles:
                handle.remove()

    def proxies(self) -> ProxySet:
        """The means as float32 vectors; `InputError` when the model's activations overflow."""
        tensors = {}
        for (layer, site), sums in self.sums.items():
            means = (sums / self.counts.clamp(min=1)[:, None]).numpy().astype(np.float32)
            if not np.isfinite(means).all():
                raise InputError(
                    f"layer {layer} gives NaN or Inf at site {site} on the calibration samples; "
                    "check the weights of the model"
                )
            for stream, mean in zip(STREAMS, means, strict=True):
                tensors[tensor_name(layer, site, stream)] = mean
        return ProxySet(tensors)

    @staticmethod
    def _accumulate(sums: torch.Tensor, weights: torch.Tensor) -> Callable[..., None]:
        def hook(_module: Any, _args: Any, output: torch.Tensor) -> None:
            sums.add_(torch.einsum("bts,bsw->tw", weights, output.double()))

        return hook
