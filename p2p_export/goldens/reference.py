"""PyTorch's answers: transformers' own decoder, patched as the plan says, on prompts of embeddings.

This is the truth that goldens record (DESIGN §2). Nothing here shares code with the graphs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from p2p_export.engines.context import Context
from p2p_export.engines.goldens import GoldenPrompt, ReferenceCall
from p2p_export.models import Family
from p2p_export.models.positions import next_position_ids
from p2p_export.plan import Plan
from p2p_export.proxies import ProxySet

Cache = Sequence[npt.NDArray[Any]]


@dataclass(frozen=True)
class Reference:
    """A loaded transformers model (float32, eager) and the plan it is patched with; None: dense."""

    model: Any
    family: Family
    plan: Plan | None = None
    proxies: ProxySet = field(default_factory=lambda: ProxySet({}))

    def run(self, prompt: GoldenPrompt, *, decode_steps: int) -> list[ReferenceCall]:
        """Prefill the prompt, then decode `decode_steps` tokens, each the likeliest one."""
        calls: list[ReferenceCall] = []
        with self._patched(prompt):
            cache = _new_cache()
            for _ in range(1 + decode_steps):
                call = self._call(prompt, cache, *self._before(prompt, calls))
                calls.append(call)
                prompt = self._next(call)
        return calls

    def replay(self, calls: list[ReferenceCall]) -> list[ReferenceCall]:
        """The same rows once more, call by call, whatever token would be likeliest now."""
        again: list[ReferenceCall] = []
        with self._patched(calls[0].prompt):
            cache = _new_cache()
            for call in calls:
                before = self._before(call.prompt, again)
                again.append(self._call(call.prompt, cache, *before))
        return again

    def _before(self, prompt: GoldenPrompt, calls: list[ReferenceCall]) -> tuple[Context, Cache]:
        if calls:
            return calls[-1].after, calls[-1].cache_after
        spec = self.family.decoder_spec(self.model.config)
        shape = (prompt.visual_mask.shape[0], spec.num_key_value_heads, 0, spec.head_dim)
        empty = [np.zeros(shape, np.float32) for _ in range(2 * spec.num_hidden_layers)]
        return Context.empty(shape[0], spec.position_axes), empty

    def _next(self, call: ReferenceCall) -> GoldenPrompt:
        """The likeliest token as the next row of each batch row."""
        import torch

        decoder: Any = self.family.decoder(self.model)
        token = torch.from_numpy(call.logits.argmax(axis=1)[:, None])
        positions = next_position_ids(self.family.position_scheme, call.prompt.position_ids)
        return GoldenPrompt(
            decoder.get_input_embeddings()(token).detach().float().numpy(),
            np.ascontiguousarray(positions),
            np.zeros(token.shape, dtype=np.bool_),
        )

    def _call(
        self, prompt: GoldenPrompt, cache: Any, context: Context, before: Cache
    ) -> ReferenceCall:
        """Run one call; `cache` is transformers' own and grows, `before` is what it held."""
        import torch

        text: Any = self.family.decoder(self.model)
        head = self.model.get_submodule(self.family.head)
        past = before[0].shape[2]
        batch, length = prompt.visual_mask.shape
        with torch.no_grad():
            output = text(
                inputs_embeds=torch.from_numpy(prompt.inputs_embeds),
                attention_mask=torch.ones(batch, past + length, dtype=torch.int64),
                position_ids=torch.from_numpy(prompt.position_ids),
                use_cache=True,
                **{_cache_keyword(text): cache},
            )
            logits = head(output.last_hidden_state[:, -1]).float().numpy()
        return ReferenceCall(prompt, context, before, _cache_arrays(cache), logits)

    def _patched(self, prompt: GoldenPrompt) -> AbstractContextManager[Any]:
        if self.plan is None or not self.plan.planned:
            return nullcontext()
        import torch

        from p2p_export.calibration import patched

        mask = torch.from_numpy(prompt.visual_mask)
        context: AbstractContextManager[Any] = patched(self.model, self.plan, self.proxies, mask)
        return context


def decoder_modules(model: Any, family: Family) -> list[Any]:
    """The parts of the decoder that `computing_in` may convert one after the other."""
    text: Any = family.decoder(model)
    return [*family.decoder_layers(model), text.norm, model.get_submodule(family.head)]


def vision_modules(model: Any, family: Family) -> list[Any]:
    """What stands beside the text model: tower and projector."""
    parent, _, name = family.text_model.rpartition(".")
    return [child for own, child in model.get_submodule(parent).named_children() if own != name]


@contextmanager
def computing_in(modules: Sequence[Any], dtype: str) -> Iterator[None]:
    """Run `modules` with parameters and rows in another dtype ("float64", "float16").

    Parameters are converted before a module runs and put back behind it, so that at most one
    module's are held twice; buffers stay. What transformers computes in float32 whatever the dtype
    (norms, softmax) stays so.
    """
    import torch

    target = getattr(torch, dtype)
    originals: dict[Any, dict[str, Any]] = {}
    handles = []

    def enter(module: Any, args: Any, kwargs: Any) -> Any:
        originals[module] = {name: p.data for name, p in module.named_parameters()}
        for parameter in module.parameters():
            parameter.data = parameter.data.to(target)
        return _converted(args, target), _converted(kwargs, target)

    def leave(module: Any, _args: Any, _output: Any) -> None:
        restore(module, originals.pop(module))

    def restore(module: Any, tensors: dict[str, Any]) -> None:
        for name, parameter in module.named_parameters():
            parameter.data = tensors[name]

    try:
        for module in modules:
            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(module.register_forward_hook(leave))
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module, tensors in originals.items():
            restore(module, tensors)


def _converted(value: Any, dtype: Any) -> Any:
    """`value` with its float tensors in `dtype`, through tuples and dicts."""
    import torch

    if isinstance(value, torch.Tensor) and value.is_floating_point():
        lowest = torch.finfo(value.dtype).min
        converted = value.to(dtype)
        masked = value == lowest
        return converted.masked_fill(masked, torch.finfo(dtype).min) if masked.any() else converted
    if isinstance(value, dict):
        return {key: _converted(entry, dtype) for key, entry in value.items()}
    if isinstance(value, tuple):
        return tuple(_converted(entry, dtype) for entry in value)
    return value


def _new_cache() -> Any:
    from transformers import DynamicCache

    return DynamicCache()


def _cache_keyword(text: Any) -> str:
    """`cache`, or `past_key_values` before it was renamed; the wrong one is ignored in silence."""
    return "cache" if "cache" in inspect.signature(text.forward).parameters else "past_key_values"


def _cache_arrays(cache: Any) -> list[npt.NDArray[Any]]:
    """Key and value of each layer in turn, copied."""
    arrays = []
    for layer in cache.layers:
        arrays += [layer.keys.float().numpy().copy(), layer.values.float().numpy().copy()]
    return arrays
