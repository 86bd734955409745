"""Weight files of a graph, made available beside another graph that reads the same tensors."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx

from p2p_export.errors import InputError, RewriteError


@contextmanager
def shared_weights(model: onnx.ModelProto, source: Path, target: Path) -> Iterator[tuple[str, ...]]:
    """The external weight files of `model`, which lie in `source`, are in `target` inside the body.

    Hard-linked, or copied across file systems. They stay when the body ends well; when it raises,
    those that were not in `target` before are removed.
    """
    names = weight_files_of(model)
    made: list[Path] = []
    try:
        for name in names:
            if _share(name, source, target):
                made.append(target / name)
        yield names
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        raise


def weight_files_of(model: onnx.ModelProto) -> tuple[str, ...]:
    """Names of the files that hold external weights of `model`."""
    return tuple(
        sorted(
            {
                entry.value
                for tensor in model.graph.initializer
                for entry in tensor.external_data
                if entry.key == "location"
            }
        )
    )


def _share(name: str, source: Path, target: Path) -> bool:
    """Put one file into `target`; False when it is there already."""
    if Path(name).name != name:
        raise RewriteError(
            f"the graph's weights lie at {name!r}, outside its folder; save it with its weights "
            "beside it"
        )
    origin, destination = source / name, target / name
    if not origin.is_file():
        raise InputError(f"the weight file {origin} is missing; put it back beside the graph")
    if destination.exists():
        if not destination.samefile(origin):
            raise InputError(
                f"{destination} is there already and is another file; name another folder"
            )
        return False
    try:
        os.link(origin.resolve(), destination)
    except OSError:
        _copy_whole(origin, destination)
    return True


def _copy_whole(origin: Path, destination: Path) -> None:
    """Copy across file systems: the file appears whole or not at all."""
    partial = destination.with_name(f".{destination.name}.{os.getpid()}")
    try:
        shutil.copyfile(origin, partial)
        partial.replace(destination)
    except OSError as error:
        raise InputError(
            f"cannot write the weights {destination}: {error.strerror}; free space there "
            f"({origin.stat().st_size / 2**20:.0f} MiB are needed) or name another place"
        ) from None
    finally:
        partial.unlink(missing_ok=True)
