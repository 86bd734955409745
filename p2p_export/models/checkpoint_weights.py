"""A checkpoint's weight files, held against its config before any weight is read."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from p2p_export.errors import InputError
from p2p_export.json_reading import read_json, shortened
from p2p_export.json_schema import first_error
from p2p_export.models.checkpoint_config import REFUSALS, reason_of, strict_dataclass_errors
from p2p_export.safetensors_header import TensorEntry, read_header

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
ADAPTER_FILE = "adapter_config.json"
INDEX_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["metadata", "weight_map"],
    "properties": {
        "metadata": {"type": "object"},
        "weight_map": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
# A shard beside the index, and nowhere else.
SHARD = re.compile(r"[^/\\\x00-\x1f]+\.safetensors")
# Tables that older checkpoints hold and that are computed from the config today.
COMPUTED = ("rotary_emb.inv_freq", "embeddings.position_ids")
AGAIN = "fetch the checkpoint again"


def weight_files(folder: Path, name: str) -> tuple[Path, ...]:
    """The safetensors files transformers loads from `folder`, all of them there and all in it."""
    if (folder / ADAPTER_FILE).is_file():
        raise InputError(
            f"{shortened(name)} holds {ADAPTER_FILE}, so its weights lie in another model; merge "
            "the adapter into it and save the whole"
        )
    if (folder / WEIGHTS_FILE).is_file():
        return (folder / WEIGHTS_FILE,)
    if not (folder / INDEX_FILE).is_file():
        raise InputError(
            f"{shortened(name)} has no weights we can load: neither {WEIGHTS_FILE} nor "
            f"{INDEX_FILE}; save them as safetensors"
        )
    index = read_json(folder / INDEX_FILE, advice=AGAIN)
    error = first_error(index, INDEX_SCHEMA)
    if error is None and not index["weight_map"]:
        error = "`weight_map` is empty"
    if error is not None:
        raise InputError(f"{INDEX_FILE} of {shortened(name)}: {error}; {AGAIN}")
    shards = sorted(set(index["weight_map"].values()))
    for shard in shards:
        if not SHARD.fullmatch(shard):
            raise InputError(
                f"{INDEX_FILE} of {shortened(name)} names {shortened(shard)!r}, which is no file "
                "beside it; do not use this checkpoint"
            )
        if not (folder / shard).is_file():
            raise InputError(f"{shortened(name)} lacks its weight file {shortened(shard)}; {AGAIN}")
    return tuple(folder / shard for shard in shards)


def check_weights(folder: Path, name: str, config: Any) -> None:
    """Raise `InputError` unless the weight files hold the tensors `config` describes, no fewer, no
    more, each of its shape. Reads headers; builds the model from shapes alone."""
    entries: dict[str, TensorEntry] = {}
    for path in weight_files(folder, name):
        entries.update(read_header(path))
    layers = _layers(config)
    if layers > len(entries):  # said before layers without end are built
        raise InputError(
            f"the config of {shortened(name)} describes {layers} layers and its weight files hold "
            f"{len(entries)} tensors in all; the config belongs to another model, {AGAIN}"
        )
    found = _loaded_on_paper(entries, config, name)
    missing = sorted(found["missing_keys"])
    if missing:
        raise InputError(
            f"{shortened(name)} lacks {len(missing)} of the weights its config describes, first "
            f"{missing[0]}; {AGAIN}"
        )
    unexpected = sorted(key for key in found["unexpected_keys"] if not key.endswith(COMPUTED))
    if unexpected:
        raise InputError(
            f"{shortened(name)} holds {len(unexpected)} weights that its config does not describe, "
            f"first {shortened(unexpected[0])}; the config belongs to another model, {AGAIN}"
        )
    mismatched = sorted(found["mismatched_keys"])
    if mismatched:
        tensor, stored, wanted = mismatched[0]
        raise InputError(
            f"{shortened(name)}: weight {tensor} has shape {list(stored)} and the config describes "
            f"{list(wanted)}; the config belongs to another model, {AGAIN}"
        )


def check_finite(model: Any, name: str) -> None:
    """Raise `InputError` naming the first weight of a loaded model that holds NaN or Inf."""
    for tensor_name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise InputError(
                f"weight {tensor_name} of {shortened(name)} holds NaN or Inf, so no answer of it "
                f"would be a number; {AGAIN}"
            )


def _layers(config: Any) -> int:
    """Layers of the deepest part."""
    parts = (config.get_text_config(), getattr(config, "vision_config", None))
    counts = [getattr(part, name, 0) for part in parts for name in ("num_hidden_layers", "depth")]
    return max(count for count in counts if isinstance(count, int))


@contextmanager
def _reports_silenced() -> Iterator[None]:
    """transformers shows a bar and a table of its own; we say what is wrong in a sentence."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _loaded_on_paper(entries: Mapping[str, TensorEntry], config: Any, name: str) -> dict[str, Any]:
    """What transformers would say of missing, unexpected and mismatched tensors, its renaming of
    older names included."""
    import torch
    from transformers import AutoModelForImageTextToText

    try:
        tensors = {key: torch.empty(entry.shape, device="meta") for key, entry in entries.items()}
        # transformers notes in the config how it was loaded: ours stays as it is.
        config = copy.deepcopy(config)
        with torch.device("meta"):
            model_class = type(AutoModelForImageTextToText.from_config(config))
        with _reports_silenced():
            _, found = model_class.from_pretrained(
                None,
                config=config,
                state_dict=tensors,
                device_map="meta",
                dtype="float32",
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except (*REFUSALS, *strict_dataclass_errors()) as error:
        raise InputError(
            f"the config of {shortened(name)} describes no model that transformers can build: "
            f"{reason_of(error)}; {AGAIN}"
        ) from None
    return dict(found)
