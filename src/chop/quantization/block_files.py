"""Files of a block walk: codes of each part, values that enter the next one, and the journal."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from chop.files import atomic_file, atomic_folder, make_folder
from chop.ir.graph import MaseGraph
from chop.quantization.block_values import Values
from chop.runs.journal import Journal, key_of

JOURNAL = "journal.jsonl"
SCRATCH = "scratch"


class BlockFiles:
    """What is done of a walk; another process with the same settings goes on after it.

    The values and codes of a part have their names when they are complete, and the journal has the
    part after that: what it names is whole. Parts of a walk with other settings are removed.

    Args:
        folder: of the walk, and of nothing else.
        settings: all that the result depends on, as JSON has it.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder, self._key = folder / key_of(settings)[:16], {"walk": key_of(settings)}
        for other in folder.iterdir() if folder.is_dir() else ():
            if other != self.folder:
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
        done = next((n for n in range(parts) if self._journal.find(self._of(n)) is None), parts)
        return done if done in (0, parts) or self._values(done).is_dir() else 0

    def told(self, part: int) -> dict[str, Any]:
        """What the method told of a part that is done."""
        found: dict[str, Any] = self._journal.get(self._of(part))["told"]
        return found

    def inputs(self, part: int, mg: MaseGraph) -> Values:
        """The values that enter a part."""
        if part == 0:
            return Values(mg.nodes, self.scratch)
        return Values.of_files(mg.nodes, self._values(part))

    def tensors(self, part: int) -> dict[str, Tensor]:
        """The tensors of a part that is done, mapped."""
        file = self._shard(part)
        return load_file(file) if file.is_file() else {}

    def keep(
        self, part: int, state: Mapping[str, Tensor], values: Values | None, told: dict[str, Any]
    ) -> None:
        """Writes a part that is done, and removes the values that entered it.

        Args:
            part: its number.
            state: its tensors.
            values: those that enter the next part; None of the last one.
            told: by the method.
        """
        if values is not None:
            with atomic_folder(self._values(part + 1)) as fresh:
                values.write(fresh)
        if state:
            with atomic_file(self._shard(part)) as fresh:
                save_file({name: x.contiguous() for name, x in state.items()}, fresh)
        self._journal.add(self._of(part), {"told": told})
        shutil.rmtree(self._values(part), ignore_errors=True)

    def remove(self) -> None:
        """Removes everything: the result is elsewhere."""
        shutil.rmtree(self.folder.parent, ignore_errors=True)

    def _of(self, part: int) -> dict[str, Any]:
        return {**self._key, "part": part}

    def _values(self, part: int) -> Path:
        return self.folder / f"values-{part:05}"

    def _shard(self, part: int) -> Path:
        return self.folder / f"model-{part:05}.safetensors"
