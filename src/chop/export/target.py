"""Interface of export targets: kinds of files that other engines run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from chop.base.installed import how_to_get, require
from chop.errors import ChopError, first_line
from chop.ir.graph import MaseGraph

Runner = Callable[[Mapping[str, Any]], Mapping[str, Tensor]]
"""Runs a model on inputs by the graph's names and returns outputs by name."""
SUMS = "sums are computed in another order, and numbers near a tie may be rounded differently"
"""Reason why outputs of an engine differ although it computes from the same values."""


def _nothing_refused(mg: MaseGraph) -> dict[str, str]:
    """Returns no refusals, for targets that store every format, some as floats."""
    return {}


@dataclass(frozen=True)
class Written:
    """Files written for a target.

    Attributes:
        path: path of the file or folder.
        files: all written files.
        notes: sentences for users of the files.
        cause: reason why outputs differ although the file is right; "" for the target's reason.
    """

    path: Path
    files: tuple[Path, ...]
    notes: tuple[str, ...]
    cause: str = ""

    @property
    def size_bytes(self) -> int:
        """Total size of the files in bytes."""
        return sum(file.stat().st_size for file in self.files)


@dataclass(frozen=True)
class Target:
    """Kind of file, with functions that write and read it.

    Attributes:
        name: name for `--to`.
        engines: engines that read such files.
        takes: supported formats.
        library: import name of the package that reads it back.
        extra: extra of chop that installs the library; "" if chop or the target's package requires
            it.
        suffix: suffix of the file; "" for a folder.
        write: (graph, path, tokenizer or None) -> written `files` of a folder, and `notes`. Raises
            ConfigError with all unsupported modules before anything is written.
        read: path -> model as the library reads it.
        refusals: graph -> reasons by path of unsupported modules. Raises ConfigError like `write`
            if the target cannot store such a model in any format.
        formats: supported weight formats as format strings, candidates for replacements.
        weights: path -> weights by module path as the target's library decodes them, in the layer's
            shape; matrices may be transposed, or have grouped and padded rows. None if the library
            does not return weights.
        cause: reason why outputs may differ from the graph's with equal weights.
        weight_cause: reason why weights may differ; "" for `cause`.
        needs: other packages that writing requires.
        beside: suffixes of additional files with the same stem.
        stem: stem of the file in a folder shared with other targets.
        read_unrounded: path -> model as the library reads it, without rounded layer inputs. None if
            the writer compares without roundings.
        is_timed: True if the result of `read` runs as in the engines; False if it uses floats.
        takes_cache: files of decoders have a key-value cache, as inputs and outputs or as state.
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

    @property
    def holds_any(self) -> bool:
        """True if the target stores every model, with floats in place of formats that it lacks."""
        return self.refusals is _nothing_refused

    def why_not(self, mg: MaseGraph) -> str:
        """Returns the reason why the target cannot store a graph; "" if it can.

        Args:
            mg: graph with packed weights.
        """
        try:
            refused = [*self.refusals(mg).items()]
        except ChopError as error:
            return first_line(error)
        except ModuleNotFoundError as error:  # of an optional library
            return f"the check needs {error.name}: {how_to_get(self.extra)}"
        if not refused:
            return ""
        others = f" ({len(refused) - 1} more)" if len(refused) > 1 else ""
        return f"{refused[0][0]}: {refused[0][1]}{others}"

    def export(self, mg: MaseGraph, path: Path, tokenizer: Any = None) -> Written:
        """Writes a graph, and adds a missing suffix to the path.

        Args:
            mg: graph; it is not changed.
            path: file or folder.
            tokenizer: tokenizer of the model, for targets with engines that take text.
        """
        if self.suffix and path.suffix != self.suffix:
            path = path.with_name(path.name + self.suffix)
        written = self.write(mg, path, tokenizer)
        files = written.get("files") or [path.with_suffix(x) for x in (self.suffix, *self.beside)]
        notes, cause = tuple(written.get("notes", ())), written.get("cause", "")
        return Written(path, tuple(files), notes, cause)

    def require(self) -> None:
        """Checks that the required packages are installed.

        Raises:
            UnavailableError: if one is missing; the message has the command that installs it.
        """
        require(self.name, self.library, *self.needs, extra=self.extra)
