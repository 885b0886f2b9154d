"""Target: a kind of file that other engines run; one module of this folder for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from chop.base.installed import require
from chop.ir.graph import MaseGraph

Runner = Callable[[Mapping[str, Any]], Mapping[str, Tensor]]
"""Outputs by name, of inputs by the graph's names."""
SUMS = "sums are added in another order, and numbers next to a tie may be rounded the other way"
"""Why outputs of an engine differ that computes from the same values."""


def _nothing_refused(mg: MaseGraph) -> dict[str, str]:
    """Of a target that holds every format, some as floats."""
    return {}


@dataclass(frozen=True)
class Written:
    """What was written for a target.

    Attributes:
        path: of the file or folder.
        files: all that were written.
        notes: sentences on what a user of the files would not expect.
        cause: why outputs differ though the file is right; "" for the reason of its target.
    """

    path: Path
    files: tuple[Path, ...]
    notes: tuple[str, ...]
    cause: str = ""

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.stat().st_size for file in self.files)


@dataclass(frozen=True)
class Target:
    """A kind of file, and how it is written and read.

    Attributes:
        name: as `--to` takes it.
        engines: that read such files.
        takes: which formats it holds.
        library: the package that reads it back, as it is imported.
        extra: the optional part of chop that installs the library; "" where no part does, as chop
            needs it anyway or the package of the target needs it.
        suffix: of the file; "" for a folder.
        write: graph, path, tokenizer or None -> what was written: `files` of a folder, `notes`.
            Raises ConfigError, with every module that it cannot hold, before anything is written.
        read: path -> the model as the library reads it.
        refusals: graph -> by path of a module why the target cannot hold it. Raises ConfigError,
            as `write` does, where it holds no such model, whatever the formats.
        formats: of weights that it holds, as format strings: candidates for what it refuses.
        weights: path -> by path of a module its weight as the target's library decodes it, of a
            layer's shape; matrices may be transposed, or have their rows in groups and filled up.
            None: the library gives none.
        cause: why outputs may differ from those of the graph though the weights are equal.
        weight_cause: why weights may differ; "" for the same reason.
        needs: other packages that writing takes.
        beside: suffixes of other files of the same stem.
        stem: of the file in a folder that has those of other targets, too.
        read_unrounded: path -> the model as the library reads it, no inputs of layers rounded;
            None: the writer compares without roundings.
        is_timed: whether what `read` gives runs as in the engines; else it computes with floats.
        takes_cache: whether the files of decoders have a key-value cache as inputs and outputs.
    """

    name: str
    engines: str
    takes: str
    library: str
    extra: str
    suffix: str
    write: Callable[[MaseGraph, Path, Any], Mapping[str, Any]]
    read: Callable[[Path], Runner]
    refusals: Callable[[MaseGraph], Mapping[str, str]] = _nothing_refused
    formats: tuple[str, ...] = ()
    weights: Callable[[Path], Mapping[str, Tensor]] | None = None
    cause: str = SUMS
    weight_cause: str = ""
    needs: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    stem: str = "model"
    read_unrounded: Callable[[Path], Runner] | None = None
    is_timed: bool = True
    takes_cache: bool = False

    def export(self, mg: MaseGraph, path: Path, tokenizer: Any = None) -> Written:
        """Writes a graph; a missing suffix is added to the path.

        Args:
            mg: the graph; it stays as it is.
            path: the file or folder.
            tokenizer: of the model, for targets whose engines take text.
        """
        if self.suffix and path.suffix != self.suffix:
            path = path.with_name(path.name + self.suffix)
        found = self.write(mg, path, tokenizer)
        files = found.get("files") or [path.with_suffix(x) for x in (self.suffix, *self.beside)]
        notes, cause = tuple(found.get("notes", ())), found.get("cause", "")
        return Written(path, tuple(files), notes, cause)

    def require(self) -> None:
        """Raises an error where a package is not installed.

        Raises:
            UnavailableError: with the command that installs it.
        """
        require(self.name, self.library, *self.needs, extra=self.extra)
