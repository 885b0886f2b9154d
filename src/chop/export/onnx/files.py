"""Files of an ONNX graph: one file, with large weights in a second one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from chop.base.files import atomic_file, atomic_files

LARGEST = 2**31 - 2**24
"""Largest size of embedded weights, in bytes: protobuf messages are limited to 2 GiB."""
SMALL = 1024
"""Size in bytes below which tensors stay in the graph's file."""
DATA = ".data"
"""Suffix of the file for weights."""


def write_files(proto: Any, path: Path, check: Callable[[Path | None], None]) -> tuple[Path, ...]:
    """Writes all files of a graph or none, and removes the weights of an older one.

    Args:
        proto: `onnx.ModelProto`; weights for the second file are removed from it.
        path: path of the graph.
        check: raises an error if the graph is wrong, before it is moved to `path`. Takes the folder
            of the weights; None if the graph contains them.
    Returns: written files.
    """
    data = path.with_name(path.name + DATA)
    if sum(len(each.raw_data) for each in proto.graph.initializer) <= LARGEST:
        check(None)
        with atomic_file(path) as temporary:
            temporary.write_bytes(proto.SerializeToString())
        data.unlink(missing_ok=True)
        return (path,)
    with atomic_files(path.parent, path.name) as fresh:
        _move_weights(proto, fresh, data.name)
        check(fresh)
        (fresh / path.name).write_bytes(proto.SerializeToString())
    return path, data


def _move_weights(proto: Any, folder: Path, name: str) -> None:
    from onnx.external_data_helper import (
        convert_model_to_external_data,
        write_external_data_tensors,
    )

    convert_model_to_external_data(proto, location=name, size_threshold=SMALL)
    write_external_data_tensors(proto, str(folder))
