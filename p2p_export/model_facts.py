"""What the manifest says of a model and of what made the bundle."""

from __future__ import annotations

import importlib.metadata
from dataclasses import asdict
from typing import Any

from p2p_export import flops
from p2p_export.manifest import Positions, TokenIds
from p2p_export.models import DecoderSpec, Family
from p2p_export.plan import Plan

VERSIONS_OF = ("torch", "transformers", "onnx", "onnx-graphsurgeon", "onnxruntime", "numpy")


def versions() -> dict[str, str]:
    """Versions of ourselves and of what takes part in an export."""
    from p2p_export import __version__

    found = {"p2p-export": __version__}
    for name in VERSIONS_OF:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def token_ids(model: Any, family: Family) -> TokenIds:
    """Special tokens, from the generation config or else the text config."""
    visual = family.visual_token_ids(model.config)
    sources = (getattr(model, "generation_config", None), model.config.get_text_config())

    def ids(name: str) -> tuple[int, ...]:
        for source in sources:
            value = getattr(source, name, None)
            if value is not None:
                return tuple(value) if isinstance(value, (list, tuple)) else (int(value),)
        return ()

    return TokenIds(
        image=visual[:1],
        video=visual[1:],
        bos=ids("bos_token_id"),
        eos=ids("eos_token_id"),
        pad=ids("pad_token_id"),
    )


def positions(model: Any, family: Family) -> Positions:
    """How the model counts positions."""
    if family.position_scheme == "sequential":
        return Positions("sequential")
    return Positions(family.position_scheme, model.config.vision_config.spatial_merge_size)


def flops_summary(spec: DecoderSpec, tokens: flops.Tokens, plan: Plan) -> dict[str, Any]:
    """FLOPs of one prefill of `tokens`, dense and pruned, by convention."""
    summary: dict[str, Any] = {"tokens": asdict(tokens)}
    for name, count in (("p2p", flops.p2p_flops), ("needed", flops.needed_flops)):
        dense, pruned = count(spec, tokens), count(spec, tokens, plan.layers)
        summary[name] = {"dense": dense, "pruned": pruned, "ratio": pruned / dense}
    return summary
