"""Loads every checkpoint of a folder, each within seconds and a bounded memory; prints a report.

usage: load_within_limits.py FOLDER
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from chop.errors import CheckpointError
from chop.ir.graph import MaseGraph
from tests.limits import limit_memory, within

MEMORY = 512 * 2**20
SECONDS = 10


def load(path: Path) -> dict[str, Any]:
    """What came of it: the error or the nodes, the warnings, and the processor time in seconds."""
    start = time.process_time()
    try:
        with warnings.catch_warnings(record=True) as caught, within(SECONDS):
            warnings.simplefilter("always")
            outcome = f"{len(MaseGraph.from_checkpoint(path).nodes)} nodes"
    except CheckpointError as error:
        outcome = f"refused: {error}"
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"
    said = [str(warning.message) for warning in caught]
    return {"outcome": outcome, "warned": said, "seconds": time.process_time() - start}


def main(folder: Path) -> None:
    """Loads one after the other; the first, without limits, is well-formed and warms up."""
    MaseGraph.from_checkpoint(folder / "good")
    limit_memory(MEMORY)
    for path in sorted(folder.glob("*.mz")):
        sys.stdout.write(json.dumps({"name": path.stem, **load(path)}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
