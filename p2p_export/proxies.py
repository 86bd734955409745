"""Proxies: the fixed vectors that stand in for a site's output on a stream."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from p2p_export.atomic_file import write_atomically
from p2p_export.errors import PlanError

if TYPE_CHECKING:
    from p2p_export.models.decoder_spec import DecoderSpec
    from p2p_export.plan import Plan

Site = Literal["q", "k", "v", "o", "gate", "up", "down"]
Stream = Literal["image", "text"]

SITES: tuple[Site, ...] = ("q", "k", "v", "o", "gate", "up", "down")
STREAMS: tuple[Stream, ...] = ("image", "text")

# Patched q, gate and up are dead (DESIGN §2), so a graph needs only these.
SITES_NEEDED: Mapping[str, tuple[Site, ...]] = {
    "dense": (),
    "proxy": ("k", "v", "o", "down"),
    "frozen": ("o", "down"),
}
# Which sites' outputs a mode replaces, as the method says it.
SITES_REPLACED: Mapping[str, tuple[Site, ...]] = {
    "dense": (),
    "proxy": SITES,
    "frozen": ("q", "o", "gate", "up", "down"),
}


def tensor_name(layer: int, site: Site, stream: Stream = "image", part: str = "") -> str:
    """`layers.{i}.{site}.{stream}`, with `.std` or `.token` behind it for those parts."""
    return f"layers.{layer}.{site}.{stream}" + (f".{part}" if part else "")


@dataclass(frozen=True)
class ProxySet:
    """float32 vectors by tensor name, as they lie in proxies.safetensors."""

    tensors: Mapping[str, npt.NDArray[np.float32]]

    def vector(self, layer: int, site: Site, stream: Stream = "image") -> npt.NDArray[np.float32]:
        """µ(layer, site, stream), [site output size]; `PlanError` when it is missing."""
        name = tensor_name(layer, site, stream)
        if name not in self.tensors:
            raise PlanError(f"the proxies hold no {name}; calibrate again with `p2p-export plan`")
        return self.tensors[name]

    def check(self, plan: Plan, spec: DecoderSpec) -> None:
        """Raise `PlanError` unless each vector the plan needs is there, finite, of its size."""
        for layer in plan.planned:
            for site in SITES_NEEDED[plan.mode(layer)]:
                vector = self.vector(layer, site)
                expected = (spec.site_size(site),)
                if vector.shape != expected:
                    raise PlanError(
                        f"proxy {tensor_name(layer, site)} has shape {list(vector.shape)} and the "
                        f"model needs {list(expected)}; use the proxies of this model"
                    )
                if not np.isfinite(vector).all():
                    raise PlanError(
                        f"proxy {tensor_name(layer, site)} holds NaN or Inf; calibrate again"
                    )

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, sha256: str | None = None) -> ProxySet:
        """Read proxies.safetensors; with `sha256`, refuse a file of another content."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise PlanError(f"the proxies {path} cannot be read: {error.strerror}") from None
        if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
            raise PlanError(
                f"the proxies {path} are not the ones the plan was made with (their sha256 "
                "differs); restore the file or calibrate again"
            )
        try:
            tensors = load(content)
        except (SafetensorError, ValueError, KeyError) as error:
            raise PlanError(f"{path} is not a safetensors file: {error}") from None
        return cls({name: np.asarray(value, dtype=np.float32) for name, value in tensors.items()})

    @classmethod
    def for_plan(cls, plan: Plan) -> ProxySet:
        """The proxies a plan names, or an empty set when it needs none."""
        path = plan.proxies_path
        if path is None or plan.proxies is None:
            return cls({})
        return cls.load(path, sha256=plan.proxies.sha256)

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the file, whole or not at all; return its sha256."""
        from safetensors.numpy import save

        content: bytes = save(
            {name: np.ascontiguousarray(self.tensors[name]) for name in sorted(self.tensors)}
        )
        write_atomically(Path(path), content)
        return hashlib.sha256(content).hexdigest()
