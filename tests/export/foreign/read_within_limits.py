"""Loads every model of a folder, each within seconds and a bounded memory; prints a report.

usage: read_within_limits.py FOLDER
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from chop.errors import ChopError
from chop.models import load_model
from tests.limits import limit_memory, within

MEMORY = 3 * 2**30  # most of it are stacks of the threads that transformers reads with
SECONDS = 10
WARM = "good-"
"""How the names of well-formed models begin, which are loaded without limits first."""


def load(path: Path) -> dict[str, Any]:
    """What came of it: the error or the class of the model, and the processor time in seconds."""
    start = time.process_time()
    try:
        with within(SECONDS):
            outcome = f"loaded: {type(load_model(path)).__name__}"
    except ChopError as error:
        outcome = f"refused: {error}"
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"
    return {"outcome": outcome, "seconds": time.process_time() - start}


def main(folder: Path) -> None:
    """Loads one after the other."""
    logging.disable(logging.CRITICAL)
    paths = sorted(folder.iterdir())
    for path in paths:
        if path.name.startswith(WARM):
            load_model(path)
    limit_memory(MEMORY)
    for path in paths:
        sys.stdout.write(json.dumps({"name": path.name, **load(path)}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
