"""A checkpoint's tokenizer and processor files, as a bundle carries them in `processor/`."""

from __future__ import annotations

import shutil
from pathlib import Path

from p2p_export.errors import InputError
from p2p_export.json_reading import read_json, shortened

TOKENIZER_FILE = "tokenizer.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
PROCESSOR_FILES = (
    "config.json",
    "generation_config.json",
    TOKENIZER_FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "chat_template.json",
    CHAT_TEMPLATE_FILE,
)


def check_processor_files(checkpoint: Path, name: str) -> None:
    """Raise `InputError` for a file of these that is there and damaged; none has to be there."""
    advice = f"fetch the files of {shortened(name)} again"
    for file in PROCESSOR_FILES:
        path = checkpoint / file
        if path.is_file() and file not in (TOKENIZER_FILE, CHAT_TEMPLATE_FILE):
            document = read_json(path, advice=advice)
            if not isinstance(document, dict):
                raise InputError(f"{path} is no JSON object; {advice}")
    if (checkpoint / TOKENIZER_FILE).is_file():
        from tokenizers import Tokenizer

        try:
            Tokenizer.from_file(str(checkpoint / TOKENIZER_FILE))
        except Exception as error:  # noqa: BLE001 (the package raises bare Exception)
            reason = shortened(str(error))
            raise InputError(
                f"{checkpoint / TOKENIZER_FILE} is no tokenizer ({reason}); {advice}"
            ) from None


def copy_processor_files(checkpoint: Path, folder: Path) -> tuple[str, ...]:
    """Put what prepares prompts and images into `folder`; the names of what is there then.

    The runtime reads `tokenizer.json` alone: for a checkpoint that ships its tokenizer in another
    form (`vocab.json`, `tokenizer.model`) transformers converts it. A checkpoint without any of
    these files gives an empty tuple and no folder.
    """
    found = [name for name in PROCESSOR_FILES if (checkpoint / name).is_file()]
    if found:
        folder.mkdir(exist_ok=True)
    for name in found:
        shutil.copyfile(checkpoint / name, folder / name)
    if found and TOKENIZER_FILE not in found and _convert_tokenizer(checkpoint, folder):
        found.append(TOKENIZER_FILE)
    return tuple(found)


def _convert_tokenizer(checkpoint: Path, folder: Path) -> bool:
    """Write `tokenizer.json` from another form; False when the checkpoint has no tokenizer."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, ImportError):
        return False
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not tokenizer.get_vocab():
        return False
    backend.save(str(folder / TOKENIZER_FILE))
    return True
