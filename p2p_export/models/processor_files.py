"""Putting a model's processor and tokenizer into a bundle, in the form the runtime reads."""

from __future__ import annotations

import shutil
from pathlib import Path

from p2p_export.errors import InputError
from p2p_export.models.checkpoint import Checkpoint, load_processor

PROCESSOR_FOLDER = "processor"


def save_processor(checkpoint: Checkpoint, bundle: Path) -> str | None:
    """Write `bundle/processor/`; None when done, else why the model has no processor to write.

    transformers saves what it runs with, so `tokenizer.json` is there also for models that ship
    their tokenizer in another form.
    """
    folder = bundle / PROCESSOR_FOLDER
    try:
        processor = load_processor(checkpoint)
    except InputError as error:
        return str(error)
    processor.save_pretrained(folder)
    generation = checkpoint.folder / "generation_config.json"
    if generation.is_file():
        shutil.copyfile(generation, folder / generation.name)
    return None
