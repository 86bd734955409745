"""The README.md inside a bundle: what it is, how to run it, how to check it."""

from __future__ import annotations

from p2p_export.manifest import DECODER_FILE, DENSE_FILE, VISION_FILE, Manifest


def bundle_readme(manifest: Manifest) -> str:
    """Markdown; every command is to be run inside the bundle's folder."""
    planned = manifest.layers
    modes = ", ".join(f"{layer}: {mode}" for layer, mode in sorted(planned.items())) or "none"
    sections = [
        f"# {manifest.model.id}, exported by p2p-export\n",
        f"- architecture: {manifest.model.architecture}, {manifest.decoder.num_hidden_layers} "
        f"layers, {manifest.precision}\n"
        f"- planned layers: {modes}\n"
        f"- target: {manifest.target}; lowering: {manifest.lowering}; layout: {manifest.layout}\n",
        _run_section(manifest),
        "## Check\n\n```\np2p-export validate .\np2p-export bench .\np2p-export inspect .\n```\n",
        _polygraphy_section(manifest),
    ]
    return "\n".join(sections)


def polygraphy_command(manifest: Manifest, graph: str, phase: str) -> str:
    """The line that compares a graph with the goldens of a phase, run inside the bundle."""
    prefix = "golden/dense." if graph == DENSE_FILE else "golden/"
    golden = manifest.golden
    atol = golden.atol_of("image_features") if graph == VISION_FILE else golden.atol
    return (
        f"polygraphy run {graph} --onnxrt --load-inputs {prefix}{phase}.inputs.json "
        f"--load-outputs {prefix}{phase}.outputs.json --atol {atol:.3g} --rtol {golden.rtol:.3g}"
    )


def _run_section(manifest: Manifest) -> str:
    if manifest.vision is None:
        return (
            "## Run\n\n"
            f"The vision part is not in this bundle ({manifest.vision_missing}). Run the decoder "
            "on embeddings:\n\n"
            "```python\nfrom p2p_export.engines import open_bundle\n\n"
            'session = open_bundle(".")\n'
            "logits, state = session.prefill(inputs_embeds, position_ids, visual_mask)\n"
            "logits, state = session.decode(next_embeds, next_position_ids, state)\n```\n"
        )
    return (
        '## Run\n\n```\np2p-export run . --image photo.jpg --prompt "What is in the image?"\n```\n'
    )


def _polygraphy_section(manifest: Manifest) -> str:
    graphs = [DECODER_FILE] + ([DENSE_FILE] if manifest.has_dense else [])
    lines = [
        polygraphy_command(manifest, graph, phase)
        for graph in graphs
        for phase in ("prefill", "decode")
    ]
    if "image_features" in manifest.golden.noise_floor:
        lines.append(polygraphy_command(manifest, VISION_FILE, "vision"))
    return (
        "## Check with Polygraphy\n\n"
        "The goldens are PyTorch's answers; the tolerances come from a noise floor measured at "
        "export (`golden` in manifest.json). Each line exits 0 on a good bundle:\n\n"
        "```\n" + "\n".join(lines) + "\n```\n"
    )
