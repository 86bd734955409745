"""Random tiny checkpoints on disk and the bundles made of them, once a run."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from answering_bundle import processor
from random_models import RANDOM_MODELS, random_proxies

from p2p_export import Plan
from p2p_export.bundle import describe_files
from p2p_export.export import export_bundle
from p2p_export.manifest import MANIFEST_FILE
from p2p_export.manifest_schema import manifest_sha256
from p2p_export.models import family_of
from p2p_export.plan import PlanModel, PlanProxies

LAYERS = 4
# Layer 0 stays dense and reads visual rows; 1 and 2 are a region that 3, frozen, reads again.
MODES: dict[int, Any] = {1: "proxy", 2: "proxy", 3: "frozen"}


@cache
def workplace() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="exported-bundles-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def random_model(family: str, layers: int = LAYERS) -> Any:
    model = RANDOM_MODELS[family](layers)
    model.generation_config.bos_token_id, model.generation_config.eos_token_id = 1, 2
    return model


@cache
def checkpoint(family: str, layers: int = LAYERS) -> Path:
    """The random model with its processor, as transformers saves them."""
    folder = workplace() / f"{family}-{layers}-checkpoint"
    random_model(family, layers).save_pretrained(folder)
    processor(family).save_pretrained(folder)
    return folder


def plan_for(family: str, layers: int = LAYERS) -> Plan:
    """A plan with random proxies beside it: `MODES`, as far as the model has such layers."""
    config = random_model(family, layers).config
    name = f"{family}-{layers}.safetensors"
    random_proxies(family_of(config).decoder_spec(config)).save(workplace() / name)
    return Plan(
        PlanModel(str(checkpoint(family, layers))),
        {i: mode for i, mode in MODES.items() if i < layers},
        proxies=PlanProxies(name, kind="mean"),
        certificate={"by": "the test"},
        folder=workplace(),
    )


@cache
def bundle(family: str) -> Path:
    """Read only: copy it to change it. LLaVA's is whole, the others hold the decoder alone."""
    folder = workplace() / f"{family}-bundle"
    export_bundle(plan_for(family), folder, only=None if family == "llava" else "decoder")
    return folder


def copy_of(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the document and sign it again, as someone would who wants to be believed."""
    path = folder / MANIFEST_FILE
    document = json.loads(path.read_text())
    change(document)
    document["sha256"] = manifest_sha256(document)
    path.write_text(json.dumps(document))


def sign(folder: Path) -> None:
    """Let the manifest hold the sizes and sums of the files as they are now."""
    files = {
        name: {"sha256": file.sha256, "size": file.size}
        for name, file in describe_files(folder).items()
    }
    change_manifest(folder, lambda document: document.update(files=files))
