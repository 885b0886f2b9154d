"""Files of a graph in ONNX: one, or beyond the size of a message the weights in one beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from chop.base.files import atomic_file, atomic_files

LARGEST = 2**31 - 2**24
"""Bytes of weights that a file holds itself: protobuf takes messages of less than 2 GiB."""
SMALL = 1024
"""Bytes of tensors that stay in the file of the graph."""
DATA = ".data"
"""Behind the name of the file: the one with its weights."""


def write_files(proto: Any, path: Path, check: Callable[[Path | None], None]) -> tuple[Path, ...]:
    """Writes the files of a graph, all or none, and removes weights that an older one had.

    Args:
        proto: an `onnx.ModelProto`; weights that get a file of their own leave it.
        path: of the graph.
        check: raises an error where the graph is wrong, before it is at `path`; takes the folder
            of its weights, None where they are in it.
    Returns: what was written.
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
