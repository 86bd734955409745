"""Layers as one writes them on a command line: `0,3-7,9:frozen`."""

from __future__ import annotations

import argparse
import re
from typing import cast

from p2p_export.plan import Mode

_PART = re.compile(r"(\d+)(?:-(\d+))?(?::(proxy|frozen))?")


def layer_list(text: str) -> dict[int, Mode]:
    """An argument type: layer -> mode; a part without a mode is `proxy`."""
    layers: dict[int, Mode] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise argparse.ArgumentTypeError(
                f"{part.strip()!r} is not a layer, write 5, 5-8 or 5-8:frozen with commas between"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise argparse.ArgumentTypeError(f"{part.strip()} runs backwards")
        layers.update(dict.fromkeys(range(first, last + 1), cast(Mode, match[3] or "proxy")))
    return layers
