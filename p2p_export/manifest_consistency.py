"""What a manifest says in two places must agree: a runtime reads one of them and trusts it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from p2p_export.bindings import INPUTS_EMBEDS, LOGITS
from p2p_export.errors import BundleError
from p2p_export.models.vision import VisionInfo

if TYPE_CHECKING:
    from p2p_export.manifest import Manifest


def check_consistent(manifest: Manifest, where: str) -> None:
    """Raise `BundleError` naming the first fields that contradict each other."""
    contradiction = next(_contradictions(manifest), None)
    if contradiction is not None:
        raise BundleError(f"{where}: {contradiction}; export the bundle again")


def _contradictions(manifest: Manifest) -> Iterator[str]:
    yield from _decoder(manifest)
    yield from _positions(manifest)
    yield from _graphs(manifest)
    yield from _vision(manifest)


def _decoder(manifest: Manifest) -> Iterator[str]:
    spec = manifest.decoder
    beyond = [i for i in manifest.layers if i >= spec.num_hidden_layers]
    if beyond:
        yield f"`layers` lists layer {min(beyond)} and the decoder has {spec.num_hidden_layers}"
    if spec.num_attention_heads % spec.num_key_value_heads:
        yield (
            f"`decoder` has {spec.num_attention_heads} attention heads, which is no multiple of "
            f"its {spec.num_key_value_heads} key-value heads"
        )


def _positions(manifest: Manifest) -> Iterator[str]:
    spec, positions = manifest.decoder, manifest.positions
    mrope = positions.scheme == "mrope"
    axes = 3 if mrope else 1
    if spec.position_axes != axes:
        yield f"positions are {positions.scheme} and `decoder.position_axes` is not {axes}"
    if mrope == (positions.spatial_merge_size is None):
        yield (
            f"positions are {positions.scheme} and `positions.spatial_merge_size` is "
            f"{positions.spatial_merge_size}"
        )
    if sum(spec.mrope_section) != (spec.head_dim // 2 if mrope else 0):
        yield (
            f"positions are {positions.scheme} and `decoder.mrope_section` is "
            f"{list(spec.mrope_section)}"
        )


def _graphs(manifest: Manifest) -> Iterator[str]:
    from p2p_export.manifest import DECODER_FILE, DENSE_FILE

    for name in (DECODER_FILE, *manifest.graphs):
        if name not in manifest.files or name not in manifest.graphs:
            yield f"{name} is not listed under both `files` and `graphs`"
            return
    for name in (DECODER_FILE, DENSE_FILE):
        graph = manifest.graphs.get(name)
        if graph is None:
            continue
        widths = (
            (INPUTS_EMBEDS, graph.inputs, manifest.decoder.hidden_size),
            (LOGITS, graph.outputs, manifest.decoder.vocab_size),
        )
        for binding_name, bindings, width in widths:
            for binding in bindings:
                if binding.name == binding_name and binding.shape[-1:] != (width,):
                    yield (
                        f"{binding_name} of {name} has shape {list(binding.shape)} and `decoder` "
                        f"says {width}"
                    )


def _vision(manifest: Manifest) -> Iterator[str]:
    from p2p_export.manifest import VISION_FILE

    if manifest.vision is None:
        if VISION_FILE in manifest.graphs:
            yield f"`vision` is null and `graphs` lists {VISION_FILE}"
        return
    info = VisionInfo.from_dict(manifest.vision)
    if info.graph not in manifest.graphs:
        yield f"`vision.graph` is {info.graph!r}, which `graphs` does not list"
    if not manifest.tokens.image:
        yield "`vision` is there and `tokens.image` is empty"
    graph = manifest.graphs.get(info.graph)
    if graph is not None and {b.name for b in graph.inputs} != set(info.inputs):
        yield f"`vision.inputs` are not the inputs of {info.graph}"
