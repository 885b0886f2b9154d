"""Values at a cut of a graph by batch, in memory up to a limit and otherwise in files."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, fx

from chop.base.files import writing
from chop.base.nested import tree_tensors
from chop.errors import ChopError
from chop.ir.storage.torch_file import read_torch_file


class NoBlocksError(ChopError, ValueError):
    """Raised if a graph cannot be walked block by block."""


MEMORY_BYTES = 2**27
"""Maximum bytes of values at a cut that stay in memory."""
PLAIN = (Tensor, int, float, str, type(None), torch.dtype, torch.device)
"""Types of values in files, in addition to lists, tuples and mappings of them."""


class Values:
    """Values that later nodes of a graph read, for each batch.

    Args:
        nodes: nodes of the graph.
        folder: existing folder for temporary files of values; None keeps all in memory.
    """

    def __init__(self, nodes: Iterable[fx.Node], folder: Path | None) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._folder = folder
        self._own: Path | None = None
        self._known: dict[int, dict[str, Any]] = {}
        self._files: dict[int, Path] = {}
        self._bytes = 0

    @classmethod
    def from_files(cls, nodes: Iterable[fx.Node], folder: Path) -> Self:
        """Opens the values that `write` has written."""
        values = cls(nodes, folder)
        values._files = {int(file.stem): file for file in folder.glob("*.pt")}
        return values

    def get(self, batch: int) -> dict[fx.Node, Any]:
        """Returns the values of a batch by node; empty if none were stored."""
        file = self._files.get(batch)
        values = self._known.get(batch, {}) if file is None else read_torch_file(file)
        return {self._nodes[name]: x for name, x in values.items()}

    def by_batch(self, count: int) -> Sequence[dict[fx.Node, Any]]:
        """Returns a sequence with the values of each batch, which are read on access."""
        return _Batches(self, count)

    def put(self, batch: int, values: Mapping[fx.Node, Any]) -> None:
        """Stores the values of a batch.

        Raises:
            NoBlocksError: if a value has a type that files do not support.
            WriteError: if the disk is full or read-only.
        """
        stored = {node.name: _portable(x, node.name) for node, x in values.items()}
        size = sum(x.nbytes for x in tree_tensors(stored))
        if self._folder is None or self._bytes + size <= MEMORY_BYTES:
            self._known[batch] = stored
            self._bytes += size
            return
        with writing(self._folder):
            if self._own is None:
                self._own = Path(tempfile.mkdtemp(dir=self._folder))
                weakref.finalize(self, shutil.rmtree, self._own, ignore_errors=True)
            self._files[batch] = self._own / f"{batch}.pt"
            torch.save(stored, self._files[batch])

    def write(self, folder: Path) -> None:
        """Writes a file per batch."""
        for batch in sorted({*self._known, *self._files}):
            stored = {node.name: x for node, x in self.get(batch).items()}
            torch.save(stored, folder / f"{batch}.pt")


class _Batches(Sequence[dict[fx.Node, Any]]):
    def __init__(self, values: Values, count: int) -> None:
        self._values, self._count = values, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, batch: Any) -> Any:
        if not 0 <= batch < self._count:
            raise IndexError(batch)
        return self._values.get(batch)


def _portable(value: Any, name: str) -> Any:
    """Returns a detached value that does not share a larger memory."""
    if isinstance(value, Tensor):
        own = value.detach()
        return own.clone() if own.untyped_storage().nbytes() > 2 * own.nbytes else own
    if isinstance(value, Mapping) and type(value) is dict:
        return {key: _portable(x, name) for key, x in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_portable(x, name) for x in value)
    if isinstance(value, PLAIN) or type(value) is torch.Size:
        return value
    kind = type(value).__name__
    raise NoBlocksError(f"the value of node '{name}' is a {kind}, which files do not support")
