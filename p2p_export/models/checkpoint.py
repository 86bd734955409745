"""Finding and loading a checkpoint: a built-in name, a local folder, or a hub name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2p_export.errors import InputError
from p2p_export.json_reading import shortened
from p2p_export.models import Family, family_of
from p2p_export.models.checkpoint_config import (
    CONFIG_FILE,
    REFUSALS,
    check_spec,
    read_config,
    reason_of,
    transformers_config,
)
from p2p_export.models.checkpoint_weights import check_finite, check_weights, weight_files
from p2p_export.models.decoder_spec import DecoderSpec
from p2p_export.models.processor_files import check_processor_files
from p2p_export.safetensors_header import read_header

BUILTIN_FOLDER = Path(__file__).resolve().parent.parent / "builtin"
HUB_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
SAMPLED_BYTES = 4096
MODEL_NAMES = "a folder, a hub name or a built-in model"


@dataclass(frozen=True)
class Checkpoint:
    """A model folder whose config we can read; weights are not loaded yet."""

    id: str
    folder: Path
    config: Any
    family: Family

    @property
    def spec(self) -> DecoderSpec:
        return self.family.decoder_spec(self.config)

    @property
    def fingerprint(self) -> str:
        """sha256 over the config and each tensor's name, shape, dtype and sampled bytes."""
        digest = hashlib.sha256()
        config = read_config(self.folder, self.id)
        for volatile in ("transformers_version", "_name_or_path"):
            config.pop(volatile, None)
        digest.update(json.dumps(config, sort_keys=True).encode())
        for line in sorted(_tensor_lines(weight_files(self.folder, self.id))):
            digest.update(line)
        return digest.hexdigest()


def builtin_models() -> tuple[str, ...]:
    """Names of the models that come with the package."""
    if not BUILTIN_FOLDER.is_dir():
        return ()
    return tuple(sorted(p.parent.name for p in BUILTIN_FOLDER.glob("*/config.json")))


def find_checkpoint(name: str, *, trust_remote_code: bool = False) -> Checkpoint:
    """Resolve `name` and read its config; `InputError` when there is no such model."""
    folder = _folder_of(name)
    if not (folder / CONFIG_FILE).is_file():
        raise InputError(
            f"{name} has no {CONFIG_FILE}; name a folder that holds a transformers checkpoint"
        )
    config = transformers_config(folder, name, trust_remote_code=trust_remote_code)
    checkpoint = Checkpoint(id=name, folder=folder, config=config, family=family_of(config))
    check_spec(checkpoint.spec, name)
    return checkpoint


def load_model(checkpoint: Checkpoint, *, dtype: str = "float32") -> Any:
    """The transformers model in eval mode, eager attention, from safetensors alone.

    `dtype` is a torch dtype name or "auto" for the checkpoint's own. Raises `InputError` unless the
    weight files hold exactly the weights that the config describes, all of them finite.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForImageTextToText

    check_weights(checkpoint.folder, checkpoint.id, checkpoint.config)
    refusals: tuple[type[Exception], ...] = (*REFUSALS, SafetensorError)
    try:
        model = AutoModelForImageTextToText.from_pretrained(
            checkpoint.folder,
            dtype=dtype,
            attn_implementation="eager",
            local_files_only=True,
            use_safetensors=True,
        )
    except refusals as error:
        raise InputError(
            f"the weights of {checkpoint.id} cannot be loaded: {reason_of(error)}; fetch the "
            "checkpoint again"
        ) from None
    check_finite(model, checkpoint.id)
    return model.eval()


def load_processor(checkpoint: Checkpoint, *, trust_remote_code: bool = False) -> Any:
    """The transformers processor, or `InputError` when the folder has none."""
    from transformers import AutoProcessor

    from p2p_export.models.image_only_processor import image_only

    video_less = image_only(checkpoint.folder)
    check_processor_files(checkpoint.folder, checkpoint.id)
    try:
        return (video_less or AutoProcessor).from_pretrained(
            checkpoint.folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except REFUSALS as error:
        raise InputError(
            f"{checkpoint.id} has no processor that transformers can load ({reason_of(error)}); "
            "add its tokenizer and image processor files"
        ) from None


def _folder_of(name: str) -> Path:
    if not name.strip():
        raise InputError(f"the model's name is empty; name {MODEL_NAMES}")
    if name in builtin_models():
        return BUILTIN_FOLDER / name
    folder, shown = Path(name), shortened(name)
    try:
        if folder.is_dir():
            return folder
        there = folder.exists()
    except (OSError, ValueError):  # longer than a path may be, or a NUL in it
        raise InputError(f"{shown!r} is no path and no hub name; name {MODEL_NAMES}") from None
    if there:
        raise InputError(f"{shown} is a file; name the folder that holds the checkpoint")
    looks_like_hub_name = name.count("/") <= 1 and not name.startswith((".", "/", "~"))
    if not looks_like_hub_name:
        raise InputError(f"no model folder at {shown}; check the path")
    return _hub_snapshot(name)


def _hub_snapshot(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise InputError(
            f"no model {shortened(name)!r}: not built in ({', '.join(builtin_models())}), not a "
            f"folder, and the hub did not give it ({type(error).__name__}); check the name or the "
            "connection"
        ) from None


def _tensor_lines(paths: Sequence[Path]) -> Iterator[bytes]:
    """One line per tensor of the weight files, read from headers and samples."""
    for path in paths:
        entries = read_header(path)
        with open(path, "rb") as file:
            for name, entry in entries.items():
                begin, end = entry.offset, entry.offset + entry.length
                digest = hashlib.sha256()
                for start in sorted({begin, (begin + end) // 2, max(begin, end - SAMPLED_BYTES)}):
                    file.seek(start)
                    digest.update(file.read(min(SAMPLED_BYTES, end - start)))
                line = f"{name} {list(entry.shape)} {entry.dtype} {digest.hexdigest()}\n"
                yield line.encode()
