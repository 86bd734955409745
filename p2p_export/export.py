"""Plan -> bundle: export, rewrite, vision, goldens, manifest, checked before it appears."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from p2p_export import flops
from p2p_export.bundle import describe_files
from p2p_export.bundle_readme import bundle_readme
from p2p_export.bundle_writing import check_output, writing_bundle
from p2p_export.engines.validation import validate_bundle
from p2p_export.errors import CheckFailedError, PlanError
from p2p_export.export_options import ExportOptions, make_options
from p2p_export.goldens.writing import GoldenWriter
from p2p_export.graph_bindings import read_bindings
from p2p_export.manifest import (
    DECODER_FILE,
    DENSE_FILE,
    MANIFEST_FILE,
    PLAN_FILE,
    PROCESSOR_FOLDER,
    PROXIES_FILE,
    README_FILE,
    BundleModel,
    Limits,
    Manifest,
)
from p2p_export.model_facts import flops_summary, positions, token_ids, versions
from p2p_export.models.checkpoint import Checkpoint, find_checkpoint, load_model
from p2p_export.models.checkpoint_weights import check_weights
from p2p_export.models.processor_files import check_processor_files, copy_processor_files
from p2p_export.models.vision import VisionInfo
from p2p_export.plan import Plan, PlanModel, PlanProxies
from p2p_export.progress import SILENT, Progress
from p2p_export.proxies import ProxySet


def export_bundle(
    plan: Plan,
    output: str | os.PathLike[str],
    *,
    target: str = "ort",
    model: str | None = None,
    precision: str | None = None,
    lowering: str = "elided",
    layout: str = "index",
    only: Literal["decoder"] | None = None,
    dense: bool = True,
    max_context: int | None = None,
    max_batch: int | None = None,
    max_visual_tokens: int | None = None,
    force: bool = False,
    trust_remote_code: bool = False,
    progress: Progress = SILENT,
) -> Manifest:
    """Write the bundle of `plan` to the folder `output`, whole and validated or not at all.

    `model` (a folder, hub name or built-in name) replaces the plan's own; `precision` is "fp32" by
    default on a CPU target; `only="decoder"` leaves vision and embedding out; `dense=False` leaves
    the unpruned decoder out. The limits say what the bundle will refuse to exceed: tokens of one
    row's context, rows of a batch, visual tokens of one row's context.

    Raises `PlanError` when plan, proxies and model do not belong together, `InputError` for a
    target, model or output that cannot be used, `CheckFailedError` when the finished bundle does
    not answer as PyTorch does; nothing is left at `output` then.
    """
    options = make_options(
        target=target,
        precision=precision,
        lowering=lowering,
        layout=layout,
        only=only,
        dense=dense,
        limits=Limits(max_context, max_batch, max_visual_tokens),
    )
    plan.check_layout(layout)
    output = Path(output).absolute()
    check_output(output, force=force)
    checkpoint = find_checkpoint(
        plan.model.id if model is None else model, trust_remote_code=trust_remote_code
    )
    proxies = _check_plan(plan, checkpoint)
    check_weights(checkpoint.folder, checkpoint.id, checkpoint.config)
    check_processor_files(checkpoint.folder, checkpoint.id)
    if plan.certificate is None:
        progress.say(
            "warning: the plan has no certificate, so nothing is guaranteed about what its answers "
            "lose; `p2p-export evaluate` measures it"
        )
    with writing_bundle(output, force=force) as folder:
        return _Export(plan, proxies, checkpoint, options, folder, progress).run(
            trust_remote_code=trust_remote_code
        )


def _check_plan(plan: Plan, checkpoint: Checkpoint) -> ProxySet:
    """The plan's proxies, once plan, proxies and model are seen to belong together."""
    expected = plan.model
    if expected.architecture not in (None, checkpoint.family.architecture):
        raise PlanError(
            f"the plan is for a model of architecture {expected.architecture!r} and "
            f"{checkpoint.id} is {checkpoint.family.architecture!r}; name the plan's own model"
        )
    plan.check_layers(checkpoint.spec.num_hidden_layers)
    if expected.fingerprint not in (None, checkpoint.fingerprint):
        raise PlanError(
            f"the plan was made for other weights than those of {checkpoint.id} (the fingerprints "
            "differ); name the plan's own model or make a plan for this one"
        )
    proxies = ProxySet.for_plan(plan)
    proxies.check(plan, checkpoint.spec)
    return proxies


class _Export:
    """One export under way: each step adds files to `folder` and knowledge for the manifest."""

    def __init__(
        self,
        plan: Plan,
        proxies: ProxySet,
        checkpoint: Checkpoint,
        options: ExportOptions,
        folder: Path,
        progress: Progress,
    ) -> None:
        self.plan, self.proxies, self.checkpoint = plan, proxies, checkpoint
        self.options, self.folder, self.progress = options, folder, progress
        self.family, self.spec = checkpoint.family, checkpoint.spec
        self.vision: VisionInfo | None = None
        self.vision_missing: str | None = None

    def run(self, *, trust_remote_code: bool) -> Manifest:
        self.trust_remote_code = trust_remote_code
        steps: list[Callable[[], None]] = [
            self._load,
            self._export_decoder,
            self._export_vision,
            self._copy_files,
            self._make_goldens,
            self._write_manifest,
            self._validate,
        ]
        for step in self.progress.track(steps, description="export", total=len(steps)):
            step()
        return self.manifest

    def _load(self) -> None:
        self.model = load_model(self.checkpoint)

    def _export_decoder(self) -> None:
        from p2p_export.graphs import export_decoder, rewrite_decoder
        from p2p_export.graphs.onnxruntime_operators import use_onnxruntime_operators

        dense = export_decoder(
            self.model,
            self.family,
            self.spec,
            self.folder,
            precision=self.options.precision,
        )
        rewrite_decoder(
            dense,
            self.plan,
            self.proxies,
            self.folder / DECODER_FILE,
            lowering=self.options.lowering,
            layout=self.options.layout,
        )
        if self.options.target == "ort":
            for graph in (dense, self.folder / DECODER_FILE):
                use_onnxruntime_operators(graph)

    def _export_vision(self) -> None:
        if self.options.only_decoder:
            self.vision_missing = "left out with --only decoder"
            return
        from p2p_export.graphs.embedding import export_embedding
        from p2p_export.graphs.vision import export_vision

        export_embedding(self.model, self.family, self.folder, precision=self.options.precision)
        if self.family.vision is None:
            self.vision_missing = (
                f"the vision part of {self.family.architecture} cannot be exported yet"
            )
            self.progress.say(
                f"{self.vision_missing}: the bundle holds the decoder and the token embedding, "
                "image embeddings have to come from elsewhere"
            )
            return
        self.vision = export_vision(
            self.model, self.family, self.folder, precision=self.options.precision
        )

    def _copy_files(self) -> None:
        """Plan, proxies and what of the checkpoint prepares prompts; a missing file is fine."""
        proxies = None
        if self.plan.proxies is not None:
            sha256 = self.proxies.save(self.folder / PROXIES_FILE)
            proxies = PlanProxies(PROXIES_FILE, sha256, self.plan.proxies.kind)
        model = PlanModel(
            self.plan.model.id,
            self.family.architecture,
            self.spec.num_hidden_layers,
            self.checkpoint.fingerprint,
        )
        replace(self.plan, model=model, proxies=proxies).save(self.folder / PLAN_FILE)
        copy_processor_files(self.checkpoint.folder, self.folder / PROCESSOR_FOLDER)

    def _make_goldens(self) -> None:
        writer = GoldenWriter(
            self.folder,
            self.model,
            self.checkpoint,
            self.plan,
            self.proxies,
            self.options.precision,
            self.options.lowering,
            self.options.layout,
            self.vision,
            self.trust_remote_code,
        )
        self.golden, self.example = writer.write(dense=self.options.dense)
        if not self.options.dense:
            (self.folder / DENSE_FILE).unlink()

    def _write_manifest(self) -> None:
        options, plan = self.options, self.plan
        fingerprint = self.checkpoint.fingerprint
        manifest = Manifest(
            versions=versions(),
            target=options.target,
            precision=options.precision,
            lowering=options.lowering,
            layout=options.layout,
            model=BundleModel(self.checkpoint.id, self.family.architecture, fingerprint),
            decoder=self.spec,
            layers={layer: plan.mode(layer) for layer in plan.planned},
            newline=plan.newline,
            tokens=token_ids(self.model, self.family),
            positions=positions(self.model, self.family),
            limits=options.limits,
            graphs={path.name: read_bindings(path) for path in sorted(self.folder.glob("*.onnx"))},
            golden=self.golden,
            vision=None if self.vision is None else self.vision.to_dict(),
            vision_missing=self.vision_missing,
            flops=self._flops(),
        )
        (self.folder / README_FILE).write_text(bundle_readme(manifest), encoding="utf-8")
        self.manifest = replace(manifest, files=describe_files(self.folder))
        (self.folder / MANIFEST_FILE).write_bytes(self.manifest.to_json())

    def _flops(self) -> dict[str, Any]:
        """Of one prefill of the first golden prompt, dense and pruned, in both conventions."""
        visual = float(self.example.visual_mask[0].sum())
        tokens = flops.Tokens(total=float(self.example.visual_mask.shape[1]), visual=visual)
        return flops_summary(self.spec, tokens, self.plan)

    def _validate(self) -> None:
        report = validate_bundle(self.folder)
        failed = [check for check in report.checks if not check.passed]
        if failed:
            raise CheckFailedError(
                f"the exported bundle fails its validation and was not written: {failed[0].name}: "
                f"{failed[0].detail}"
            )
