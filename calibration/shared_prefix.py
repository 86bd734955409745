"""Layers run on a batch whose questions share images: what questions share is computed once.

Attention is causal, so the rows in front of a question (system prompt, image) are the same for
every question about that image. They are run once per image, the question's own rows once per
question, through transformers' own layer modules: the layer sees the rows it computes as its
input and the keys and values of the rows in front of them as its cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from p2p_export.calibration.answering import cache_keyword
from p2p_export.calibration.dense_pass import DensePass
from p2p_export.calibration.embedding import DecoderBatch
from p2p_export.calibration.loaded_model import LoadedModel

# Makes a patch for calls whose visual rows are these, bool [N,R].
Patch = Callable[[torch.Tensor], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Rows:
    """Rows that are computed in one call.

    sequences: int64 [N], the sequence of the batch each line is taken from. places: int64 [N,R],
    which rows of it; the first may be repeated at the left to fill a line, so that what is computed
    there is ignored. visual: bool [N,R].
    """

    sequences: torch.Tensor
    places: torch.Tensor
    visual: torch.Tensor

    @classmethod
    def of(cls, batch: DecoderBatch, sequences: torch.Tensor, places: torch.Tensor) -> Rows:
        return cls(sequences, places, batch.visual_mask[sequences].gather(1, places))

    @property
    def filling(self) -> torch.Tensor:
        """bool [N,R]: the repeated places."""
        following = self.places[:, 1:] == self.places[:, :-1]
        return torch.nn.functional.pad(following, (0, 1))

    def take(self, values: torch.Tensor) -> torch.Tensor:
        """[..., B or 1, S, W] -> [..., N, R, W]: these rows of a tensor over the batch."""
        if values.shape[-3] != 1:
            values = values.index_select(-3, self.sequences)
        width = values.shape[-1]
        shape = (*values.shape[:-3], *self.places.shape, width)
        values = values.expand(*values.shape[:-3], len(self.sequences), *values.shape[-2:])
        return values.gather(-2, self.places[..., None].expand(shape))


@dataclass(frozen=True)
class KeyRows:
    """The rows whose keys a call sees, in the order they come: places int64 [N,K] in the sequence.

    hidden: bool [N,K], the keys of repeated rows, which would count twice.
    """

    places: torch.Tensor
    hidden: torch.Tensor


@dataclass(frozen=True)
class State:
    """Hidden states in front of some layer: shared [images,P,D] and own [B,R,D]."""

    shared: torch.Tensor
    own: torch.Tensor


@dataclass(frozen=True)
class KeysAndValues:
    """Behind RoPE, [N,Hkv,R,hd] each."""

    keys: torch.Tensor
    values: torch.Tensor

    def of(self, lines: torch.Tensor) -> KeysAndValues:
        return KeysAndValues(self.keys[lines], self.values[lines])


class SharedPrefix:
    """The layers of a model on one batch, split into shared and own rows."""

    def __init__(self, loaded: LoadedModel, batch: DecoderBatch, dense: DensePass) -> None:
        self.loaded = loaded
        self.dense = dense
        length = batch.attention_mask.shape[1]
        self.image_of, firsts = _images(batch)
        starts = length - batch.attention_mask.sum(1)
        count = _shared_length(batch, self.image_of, firsts, starts)
        offsets = torch.arange(count)
        self.shared = Rows.of(batch, firsts, starts[firsts, None] + offsets)
        own_count = int((length - starts).max()) - count
        places = torch.arange(length - own_count, length).expand(len(starts), -1)
        own = torch.maximum(places, starts[:, None] + count)
        self.own = Rows.of(batch, torch.arange(len(starts)), own)
        self.shared_keys = KeyRows(self.shared.places, torch.zeros_like(self.shared.visual))
        in_front = starts[:, None] + offsets
        self.own_keys = KeyRows(
            torch.cat([in_front, own], dim=1),
            torch.cat([torch.zeros_like(in_front, dtype=torch.bool), self.own.filling], dim=1),
        )
        self._arguments: dict[tuple[int, int], dict[str, Any]] = {}

    def entry(self, layer: int) -> State:
        """What `layer` read in the dense pass."""
        states = self.dense.entries[layer]
        return State(self.shared.take(states), self.own.take(states))

    def run(self, state: State, layers: Iterable[int], patch: Patch) -> State:
        """Pass `state` through `layers`, in order, each call inside `patch(its visual rows)`."""
        layers = list(layers)
        shared, own = state.shared, state.own
        in_front: dict[int, KeysAndValues] = {}
        with patch(self.shared.visual):
            for layer in layers if self.shared.places.numel() else ():
                cache = _Cache()
                shared = self._call(layer, shared, self.shared, self.shared_keys, cache)
                in_front[layer] = cache.computed
        with patch(self.own.visual):
            for layer in layers:
                cache = _Cache(in_front[layer].of(self.image_of) if layer in in_front else None)
                own = self._call(layer, own, self.own, self.own_keys, cache)
        return State(shared, own)

    def answer(self, state: State) -> torch.Tensor:
        """The answer position behind the final norm, [B,D], of a state behind the last layer."""
        row: torch.Tensor = self.loaded.decoder.get_submodule("norm")(state.own[:, -1])
        return row

    def _call(
        self, layer: int, hidden_states: torch.Tensor, rows: Rows, keys: KeyRows, cache: _Cache
    ) -> torch.Tensor:
        module = self.loaded.layers[layer]
        arguments = {**self._of_rows(layer, rows, keys), cache_keyword(module): cache}
        output = module(hidden_states, **arguments)
        states: torch.Tensor = output[0] if isinstance(output, tuple) else output
        return states

    def _of_rows(self, layer: int, rows: Rows, keys: KeyRows) -> dict[str, Any]:
        """The arguments the dense pass gave `layer`, for these rows alone."""
        key = (layer, id(rows))
        if key not in self._arguments:
            given = self.dense.arguments[layer]
            mask = given["attention_mask"]
            cos, sin = given["position_embeddings"]
            self._arguments[key] = {
                **given,
                "attention_mask": _mask_of(mask, rows, keys),
                "position_embeddings": (rows.take(cos), rows.take(sin)),
                "position_ids": None,
            }
        return self._arguments[key]


class _Cache:
    """What a layer takes for its cache: keys and values of the rows in front of those computed."""

    def __init__(self, in_front: KeysAndValues | None = None) -> None:
        self.in_front = in_front
        self.computed: KeysAndValues

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, *_args: Any, **_options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.computed = KeysAndValues(keys, values)
        if self.in_front is None:
            return keys, values
        return (
            torch.cat([self.in_front.keys, keys], dim=2),
            torch.cat([self.in_front.values, values], dim=2),
        )


def _mask_of(mask: torch.Tensor, rows: Rows, keys: KeyRows) -> torch.Tensor:
    """[B,1,S,S] additive or bool -> [N,1,R,K]: rows of queries, keys in the order they come."""
    taken = rows.take(mask.transpose(0, 1)).transpose(0, 1)
    columns = keys.places[:, None, None].expand(*taken.shape[:-1], -1)
    unseen = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
    return taken.gather(-1, columns).masked_fill(keys.hidden[:, None, None], unseen)


def _images(batch: DecoderBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """For each sample the number of its image, and for each image its first sample."""
    first: dict[str, int] = {}
    for place, sample in enumerate(batch.samples):
        first.setdefault(sample.image_id, place)
    number = {image: place for place, image in enumerate(first)}
    image_of = torch.tensor([number[sample.image_id] for sample in batch.samples])
    return image_of, torch.tensor(list(first.values()))


def _shared_length(
    batch: DecoderBatch, image_of: torch.Tensor, firsts: torch.Tensor, starts: torch.Tensor
) -> int:
    """Rows from the first real one that every sample has in common with its image's first sample.

    Compared by what the decoder reads, so nothing is assumed about templates; at least the last
    row stays each sample's own.
    """
    shortest = int(batch.attention_mask.sum(1).min()) - 1
    if shortest <= 0:
        return 0
    places = starts[:, None] + torch.arange(shortest)
    embeds = batch.inputs_embeds.gather(
        1, places[..., None].expand(-1, -1, batch.inputs_embeds.shape[-1])
    )
    positions = batch.position_ids.expand(*batch.position_ids.shape[:-2], len(starts), -1)
    positions = positions.gather(-1, places.expand(*positions.shape[:-1], shortest))
    first = firsts[image_of]
    # Batched kernels may round one image twice in two ways; visual rows of one image are equal.
    same = batch.visual_mask.gather(1, places)
    same = (same & same[first]) | (embeds == embeds[first]).all(-1)
    moved = positions != positions.index_select(-2, first)
    same &= ~(moved if moved.ndim == 2 else moved.any(0))
    return int(same.all(0).long().cumprod(0).sum())
