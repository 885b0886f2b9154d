"""Loads every checkpoint of a folder, each within seconds and a bounded memory; prints a report.

usage: load_within_limits.py FOLDER
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from chop.errors import CheckpointError
from chop.ir.graph import MaseGraph

MEMORY = 512 * 2**20
SECONDS = 10


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _out_of_time(*_: Any) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


def load(path: Path) -> dict[str, Any]:
    """What came of it: the error or the nodes, the warnings, and the processor time in seconds."""
    start = time.process_time()
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            outcome = f"{len(MaseGraph.from_checkpoint(path).nodes)} nodes"
    except CheckpointError as error:
        outcome = f"refused: {error}"
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    said = [str(warning.message) for warning in caught]
    return {"outcome": outcome, "warned": said, "seconds": time.process_time() - start}


def main(folder: Path) -> None:
    """Loads one after the other; the first, without limits, is well-formed and warms up."""
    MaseGraph.from_checkpoint(folder / "good")
    signal.signal(signal.SIGALRM, _out_of_time)
    limit = _address_space() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for path in sorted(folder.glob("*.mz")):
        sys.stdout.write(json.dumps({"name": path.stem, **load(path)}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
