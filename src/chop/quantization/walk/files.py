"""Files of a block walk: codes of each part, values that enter the next one, and the journal."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from chop.base.files import atomic_file, atomic_folder, make_folder
from chop.ir.graph import MaseGraph
from chop.ir.storage.tensor_store import read_file
from chop.quantization.walk.values import Values
from chop.runs.journal import Journal, compute_key

JOURNAL = "journal.jsonl"
SCRATCH = "scratch"
WALK = "walk-"
"""Begins the name of a walk's folder: others are no walk's, and stay."""


class BlockFiles:
    """What is done of a walk; another process with the same settings goes on after it.

    The values and codes of a part have their names when they are complete, and the journal has the
    part and the sizes of its files after that: what it names is whole. Where a file is missing, the
    walk starts anew. Parts of a walk with other settings are removed.

    Args:
        folder: of walks; other files in it stay.
        settings: all that the result depends on, as JSON has it.

    Attributes:
        folder: of this walk.
        removed: whether there were parts of a walk with other settings.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        key = compute_key(settings)
        self.folder, self._key, self.removed = folder / f"{WALK}{key[:16]}", {"walk": key}, False
        for other in folder.glob(f"{WALK}*"):
            if other != self.folder:
                self.removed |= (other / JOURNAL).is_file()
                shutil.rmtree(other, ignore_errors=True)
        shutil.rmtree(self.folder / SCRATCH, ignore_errors=True)
        make_folder(self.folder / SCRATCH)
        self._journal = Journal(self.folder / JOURNAL)

    @property
    def scratch(self) -> Path:
        """For values that do not fit into memory; it is emptied when a walk starts."""
        return self.folder / SCRATCH

    def whole(self, parts: int) -> int:
        """How many parts are done, of so many."""
        done = next((n for n in range(parts) if not self._is_whole(n)), parts)
        if done in (0, parts) or self._entering(done) == self._noted(done - 1)["entering"]:
            return done
        return 0

    def record(self, part: int) -> dict[str, Any]:
        """What is kept of a part that is done, beside its tensors and values."""
        found: dict[str, Any] = self._noted(part)["record"]
        return found

    def inputs(self, part: int, mg: MaseGraph, exact: bool = False) -> Values:
        """The values that enter a part; those of the float model where they are `exact`."""
        if part == 0:
            return Values(mg.nodes, self.scratch)
        return Values.of_files(mg.nodes, self._values(part, exact))

    def tensors(self, part: int) -> dict[str, Tensor]:
        """The tensors of a part that is done, mapped."""
        file = self._shard(part)
        return read_file(file) if file.is_file() else {}

    def keep(
        self,
        part: int,
        state: Mapping[str, Tensor],
        values: Values | None,
        record: dict[str, Any],
        exact: Values | None = None,
    ) -> None:
        """Writes a part that is done, and removes the values that entered it.

        Args:
            part: its number.
            state: its tensors.
            values: those that enter the next part; None of the last one.
            record: of what the method did, as JSON has it.
            exact: those that enter the next part in the float model; None where a walk does
                without.
        """
        for found, folder in ((values, self._values(part + 1)), (exact, self._floats(part + 1))):
            if found is not None:
                with atomic_folder(folder) as fresh:
                    found.write(fresh)
        if state:
            with atomic_file(self._shard(part)) as fresh:
                save_file({name: x.contiguous() for name, x in state.items()}, fresh)
        sizes = {"codes": self._codes(part), "entering": self._entering(part + 1)}
        self._journal.add(self._of(part), {"record": record, **sizes})
        for done in (self._values(part), self._floats(part)):
            shutil.rmtree(done, ignore_errors=True)

    def remove(self) -> None:
        """Removes everything: the result is elsewhere."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # there are files of others
            self.folder.parent.rmdir()

    def _is_whole(self, part: int) -> bool:
        noted = self._journal.find(self._of(part), _is_noted)
        return noted is not None and noted["codes"] == self._codes(part)

    def _noted(self, part: int) -> dict[str, Any]:
        return self._journal.get(self._of(part))

    def _codes(self, part: int) -> int | None:
        """Bytes of a part's tensors; None where it has no file of them."""
        file = self._shard(part)
        return file.stat().st_size if file.is_file() else None

    def _entering(self, part: int) -> dict[str, int]:
        """Bytes of the values that enter a part, by name of their file."""
        folders = (self._values(part), self._floats(part))
        files = [file for folder in folders for file in folder.glob("*")]
        return {f"{file.parent.name}/{file.name}": file.stat().st_size for file in files}

    def _of(self, part: int) -> dict[str, Any]:
        return {**self._key, "part": part}

    def _values(self, part: int, exact: bool = False) -> Path:
        return self._floats(part) if exact else self.folder / f"values-{part:05}"

    def _floats(self, part: int) -> Path:
        return self.folder / f"floats-{part:05}"

    def _shard(self, part: int) -> Path:
        return self.folder / f"model-{part:05}.safetensors"


def _is_noted(found: Mapping[str, Any]) -> bool:
    """Returns true if an entry of the journal is one that `BlockFiles.keep` writes."""
    record = found.get("record")
    if not isinstance(record, dict) or not {"codes", "entering"} <= found.keys():
        return False
    pairs = record.get("left")
    are_pairs = isinstance(pairs, list) and all(isinstance(x, list) and len(x) == 2 for x in pairs)
    return are_pairs and isinstance(record.get("told"), dict)
