"""Files of a block walk: codes of each part, inputs of the next one, and the journal."""

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
"""Prefix of the folder of a walk. Other folders are not touched."""


class BlockFiles:
    """Progress of a walk in files, which another process with the same settings can resume.

    Values and codes of a part get their names when they are complete. Then the journal records the
    part and the sizes of its files, so all recorded files are complete. If a file is missing, the
    walk restarts. Parts of a walk with other settings are removed.

    Args:
        folder: folder of walks; other files in it are not touched.
        settings: everything that the result depends on, as JSON.

    Attributes:
        folder: folder of this walk.
        removed: true if parts of a walk with other settings were removed.
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
        """Folder for values that do not fit into memory, emptied when a walk starts."""
        return self.folder / SCRATCH

    def whole(self, parts: int) -> int:
        """Returns the number of finished parts of `parts`."""
        done = next((n for n in range(parts) if not self._is_whole(n)), parts)
        if done in (0, parts) or self._entering(done) == self._entry(done - 1)["entering"]:
            return done
        return 0

    def record(self, part: int) -> dict[str, Any]:
        """Returns the record of a finished part, without its tensors and values."""
        record: dict[str, Any] = self._entry(part)["record"]
        return record

    def inputs(self, part: int, mg: MaseGraph, exact: bool = False) -> Values:
        """Returns the values that enter a part, of the float model if `exact`."""
        if part == 0:
            return Values(mg.nodes, self.scratch)
        return Values.from_files(mg.nodes, self._values(part, exact))

    def tensors(self, part: int) -> dict[str, Tensor]:
        """Returns the tensors of a finished part, memory-mapped."""
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
        """Writes a finished part and removes its input values.

        Args:
            part: number of the part.
            state: tensors of the part.
            values: inputs of the next part; None for the last part.
            record: report of the method, as JSON.
            exact: inputs of the next part in the float model; None if the walk does not run it.
        """
        for batches, folder in ((values, self._values(part + 1)), (exact, self._floats(part + 1))):
            if batches is not None:
                with atomic_folder(folder) as fresh:
                    batches.write(fresh)
        if state:
            with atomic_file(self._shard(part)) as fresh:
                save_file({name: x.contiguous() for name, x in state.items()}, fresh)
        sizes = {"codes": self._codes(part), "entering": self._entering(part + 1)}
        self._journal.add(self._of(part), {"record": record, **sizes})
        for done in (self._values(part), self._floats(part)):
            shutil.rmtree(done, ignore_errors=True)

    def remove(self) -> None:
        """Removes all files when the result is stored elsewhere."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # there are files of others
            self.folder.parent.rmdir()

    def _is_whole(self, part: int) -> bool:
        entry = self._journal.find(self._of(part), _is_entry)
        return entry is not None and entry["codes"] == self._codes(part)

    def _entry(self, part: int) -> dict[str, Any]:
        return self._journal.get(self._of(part))

    def _codes(self, part: int) -> int | None:
        """Returns the size of a part's tensors in bytes; None if it has no file."""
        file = self._shard(part)
        return file.stat().st_size if file.is_file() else None

    def _entering(self, part: int) -> dict[str, int]:
        """Returns the sizes in bytes of the input values of a part by file name."""
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


def _is_entry(entry: Mapping[str, Any]) -> bool:
    """Returns true if a journal entry has the form that `BlockFiles.keep` writes."""
    record = entry.get("record")
    if not isinstance(record, dict) or not {"codes", "entering"} <= entry.keys():
        return False
    pairs = record.get("left")
    are_pairs = isinstance(pairs, list) and all(isinstance(x, list) and len(x) == 2 for x in pairs)
    return are_pairs and isinstance(record.get("told"), dict)
