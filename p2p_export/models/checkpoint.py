"""Finding and loading a checkpoint: a built-in name, a local folder, or a hub name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2p_export.errors import InputError
from p2p_export.models import Family, family_of
from p2p_export.models.decoder_spec import DecoderSpec
from p2p_export.safetensors_header import read_header

BUILTIN_FOLDER = Path(__file__).resolve().parent.parent / "builtin"
HUB_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
SAMPLED_BYTES = 4096


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
        config = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        for volatile in ("transformers_version", "_name_or_path"):
            config.pop(volatile, None)
        digest.update(json.dumps(config, sort_keys=True).encode())
        for line in sorted(_tensor_lines(self.folder)):
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
    if not (folder / "config.json").is_file():
        raise InputError(
            f"{name} has no config.json; name a folder that holds a transformers checkpoint"
        )
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        model_type = _model_type(folder)
        raise InputError(
            f"the config of {name} (model_type {model_type!r}) cannot be read: "
            f"{str(error).splitlines()[0]}"
        ) from None
    return Checkpoint(id=name, folder=folder, config=config, family=family_of(config))


def load_model(checkpoint: Checkpoint, *, dtype: str = "float32") -> Any:
    """The transformers model in eval mode, eager attention, from safetensors alone.

    `dtype` is a torch dtype name or "auto" for the checkpoint's own.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForImageTextToText

    try:
        model, loading = AutoModelForImageTextToText.from_pretrained(
            checkpoint.folder,
            dtype=dtype,
            attn_implementation="eager",
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise InputError(
            f"the weights of {checkpoint.id} cannot be loaded: {str(error).splitlines()[0]}"
        ) from None
    missing = sorted(loading["missing_keys"])
    if missing:
        raise InputError(
            f"the checkpoint {checkpoint.id} lacks {len(missing)} of its weights, first "
            f"{missing[0]}; download it again"
        )
    return model.eval()


def load_processor(checkpoint: Checkpoint, *, trust_remote_code: bool = False) -> Any:
    """The transformers processor, or `InputError` when the folder has none."""
    from transformers import AutoProcessor

    from p2p_export.models.image_only_processor import image_only

    video_less = image_only(checkpoint.folder)
    try:
        return (video_less or AutoProcessor).from_pretrained(
            checkpoint.folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{checkpoint.id} has no processor that transformers can load "
            f"({str(error).splitlines()[0]}); add its tokenizer and image processor files"
        ) from None


def _folder_of(name: str) -> Path:
    if name in builtin_models():
        return BUILTIN_FOLDER / name
    folder = Path(name)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise InputError(f"{name} is a file; name the folder that holds the checkpoint")
    looks_like_hub_name = name.count("/") <= 1 and not name.startswith((".", "/", "~"))
    if not looks_like_hub_name:
        raise InputError(f"no model folder at {name}; check the path")
    return _hub_snapshot(name)


def _hub_snapshot(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise InputError(
            f"no model {name!r}: not built in ({', '.join(builtin_models())}), not a folder, and "
            f"the hub did not give it ({type(error).__name__}); check the name or the connection"
        ) from None


def _model_type(folder: Path) -> str | None:
    try:
        value = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value.get("model_type") if isinstance(value, dict) else None


def _tensor_lines(folder: Path) -> Iterator[bytes]:
    """One line per tensor of the folder's safetensors files, read from headers and samples."""
    for path in sorted(folder.glob("*.safetensors")):
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
