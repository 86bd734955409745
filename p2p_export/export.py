"""Plan -> bundle: export, rewrite, vision, goldens, manifest, checked before it appears."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from p2p_export import flops
from p2p_export.bundle import check_output, describe_files, writing_bundle
from p2p_export.bundle_readme import bundle_readme
from p2p_export.engines.goldens import (
    PHASES,
    GoldenPrompt,
    ReferenceCall,
    golden_case,
    save_goldens,
)
from p2p_export.engines.validation import validate_bundle
from p2p_export.errors import CheckFailedError, PlanError
from p2p_export.export_options import ExportOptions, make_options
from p2p_export.golden_prompts import processor_prompt, random_prompts
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
    Positions,
    TokenIds,
)
from p2p_export.models.checkpoint import Checkpoint, find_checkpoint, load_model
from p2p_export.models.processor_files import copy_processor_files
from p2p_export.noise import GRAPH_DTYPE, OTHER_DTYPE, golden_tolerances
from p2p_export.plan import Plan, PlanModel, PlanProxies
from p2p_export.progress import SILENT, Progress
from p2p_export.proxies import ProxySet
from p2p_export.reference import Reference, computing_in

DECODE_STEPS = 2
# A golden prompt whose cache is larger than this is left out: goldens travel with the bundle.
GOLDEN_CACHE_BYTES = 16 * 2**20
VERSIONS_OF = ("torch", "transformers", "onnx", "onnx-graphsurgeon", "onnxruntime", "numpy")


def export_bundle(
    plan: Plan,
    output: str | os.PathLike[str],
    *,
    target: str = "ort",
    model: str | None = None,
    precision: str | None = None,
    lowering: str = "fused",
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
    output = Path(output).absolute()
    check_output(output, force=force)
    checkpoint = find_checkpoint(model or plan.model.id, trust_remote_code=trust_remote_code)
    proxies = _check_plan(plan, checkpoint)
    if plan.certificate is None:
        progress.say(
            "warning: the plan has no certificate, so nothing says what its answers lose; "
            "`p2p-export plan` makes one"
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
        self.vision: dict[str, Any] | None = None
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
        info = export_vision(self.model, self.family, self.folder, precision=self.options.precision)
        self.vision = info.to_dict()

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
        prompts = random_prompts(self.model, self.family)
        real = processor_prompt(
            self.model,
            self.checkpoint,
            newline=self.plan.newline,
            trust_remote_code=self.trust_remote_code,
        )
        self.example = real or prompts[0]
        source = "random" if real is None else "processor"
        if real is not None and self._cache_bytes(real) <= GOLDEN_CACHE_BYTES:
            prompts = [real, *prompts]
        patched = Reference(self.model, self.family, self.plan, self.proxies)
        calls, again = self._answers(patched, prompts)
        self._save(DECODER_FILE, calls)
        if self.options.dense:
            dense, dense_again = self._answers(Reference(self.model, self.family), prompts)
            self._save(DENSE_FILE, dense)
            calls, again = calls + dense, again + dense_again
        self.golden = golden_tolerances(
            calls, again, precision=self.options.precision, source=source
        )
        if not self.options.dense:
            (self.folder / DENSE_FILE).unlink()

    def _answers(
        self, reference: Reference, prompts: list[GoldenPrompt]
    ) -> tuple[list[ReferenceCall], list[ReferenceCall]]:
        """Each prompt's calls in float32, and the same calls in the dtype that measures noise."""
        calls, again = [], []
        for prompt in prompts:
            found = reference.run(prompt, decode_steps=DECODE_STEPS)
            with computing_in(self.model, self.family, OTHER_DTYPE[self.options.precision]):
                again += reference.replay(found)
            calls += found
        return calls, again

    def _save(self, graph: str, calls: list[ReferenceCall]) -> None:
        names = frozenset(one.name for one in read_bindings(self.folder / graph).inputs)
        dtype = GRAPH_DTYPE[self.options.precision]
        for phase in PHASES:
            chosen = [c for c in calls if (c.cache_before[0].shape[2] > 0) == (phase == "decode")]
            cases = [golden_case(call, names, dtype) for call in chosen]
            save_goldens(self.folder, graph, phase, cases)

    def _cache_bytes(self, prompt: GoldenPrompt) -> int:
        per_token = 2 * self.spec.num_hidden_layers * self.spec.key_value_size * 4
        return int(prompt.visual_mask.size) * per_token

    def _write_manifest(self) -> None:
        options, plan = self.options, self.plan
        fingerprint = self.checkpoint.fingerprint
        config = self.model.config
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
            tokens=token_ids(self.model, self.family.visual_token_ids(config)),
            positions=Positions(
                self.family.position_scheme,
                getattr(config.vision_config, "spatial_merge_size", None)
                if self.family.position_scheme == "mrope"
                else None,
            ),
            limits=options.limits,
            graphs={path.name: read_bindings(path) for path in sorted(self.folder.glob("*.onnx"))},
            golden=self.golden,
            vision=self.vision,
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


def flops_summary(spec: Any, tokens: flops.Tokens, plan: Plan) -> dict[str, Any]:
    """FLOPs of one prefill of `tokens`, dense and pruned, by convention."""
    summary: dict[str, Any] = {"tokens": asdict(tokens)}
    for name, count in (("p2p", flops.p2p_flops), ("needed", flops.needed_flops)):
        dense, pruned = count(spec, tokens), count(spec, tokens, plan.layers)
        summary[name] = {"dense": dense, "pruned": pruned, "ratio": pruned / dense}
    return summary


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


def token_ids(model: Any, visual: tuple[int, ...]) -> TokenIds:
    """Special tokens, from the generation config or else the text config."""
    text = model.config.get_text_config()
    generation = getattr(model, "generation_config", None)

    def ids(name: str) -> tuple[int, ...]:
        value = getattr(generation, name, None)
        if value is None:
            value = getattr(text, name, None)
        if value is None:
            return ()
        return tuple(value) if isinstance(value, (list, tuple)) else (int(value),)

    return TokenIds(
        image=visual[:1],
        video=visual[1:],
        bos=ids("bos_token_id"),
        eos=ids("eos_token_id"),
        pad=ids("pad_token_id"),
    )
