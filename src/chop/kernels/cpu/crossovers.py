"""Rows from which oneDNN multiplies 8-bit codes faster than the loops of this package.

Both compute the same numbers. Which is faster depends on the processor, the number of threads, the
rows of the activations and the size of the weight. It is measured once per machine, which takes a
second or two, and stored in the cache folder.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from chop.base.files.atomic import atomic_file
from chop.base.files.documents import read_json
from chop.base.files.reading import NotReadableError
from chop.base.hub import cache_folder
from chop.errors import ChopError
from chop.kernels.cpu.build import target
from chop.runs.environment import processor_name

SHAPES = ((3072, 768), (4096, 4096))
"""Weights (outputs, columns) of the measurement. Others use the nearest in number of elements."""
COUNTS = (16, 32, 64, 128, 256)
"""Rows of activations that are measured."""
FEWEST = COUNTS[0]
REPEATS = 5
MARGIN = 1.15
FILE = "crossovers.json"
Call = Callable[[], object]
Clock = Callable[[], float]
Calls = Callable[[tuple[int, int], int], tuple[Call, Call]]
"""Makes a product by the loops and by oneDNN from the shape of a weight and a number of rows."""
Table = Mapping[int, float]
"""Rows by number of elements of the weight; infinity if oneDNN is never faster."""
TABLES: dict[int, Table] = {}
"""Tables of this process by number of threads, because the file may not be writable."""


def find_rows(elements: int, threads: int, calls: Calls) -> float:
    """Returns the rows from which oneDNN is faster, measured if the machine has no entry yet.

    Args:
        elements: number of elements of the weight.
        threads: number of threads of torch.
        calls: products to measure.
    """
    table = stored_table(threads) or measure(threads, calls)
    return table[min(table, key=lambda known: abs(math.log(known / elements)))]


def measure(threads: int, calls: Calls) -> Table:
    """Measures the table of this machine and stores it."""
    # The time of a thread excludes other processes, which the time of several threads cannot.
    clock = time.thread_time if threads == 1 else time.perf_counter
    table = {math.prod(shape): _crossover(shape, calls, clock) for shape in SHAPES}
    TABLES[threads] = table
    _write_table(threads, table)
    return table


def _crossover(shape: tuple[int, int], calls: Calls, clock: Clock) -> float:
    """Returns the fewest rows from which oneDNN is faster for this and all larger counts."""
    fewest = math.inf
    for rows in reversed(COUNTS):
        loops, onednn = calls(shape, rows)
        if not _is_slower(loops, onednn, clock):
            break
        fewest = rows
    return fewest


def _is_slower(first: Call, second: Call, clock: Clock) -> bool:
    """Returns whether the fastest of several calls of `first` is slower than that of `second`.

    A difference below `MARGIN` does not count, so that a busy machine gives the same table.
    """
    first(), second()  # the first calls allocate and prepare
    times = [(_seconds(first, clock), _seconds(second, clock)) for _ in range(REPEATS)]
    return min(x for x, _ in times) > MARGIN * min(x for _, x in times)


def _seconds(call: Call, clock: Clock) -> float:
    start = clock()
    call()
    return clock() - start


def stored_table(threads: int) -> Table | None:
    """Returns the table of this process or the stored one of this machine; None without one."""
    if threads in TABLES:
        return TABLES[threads]
    stored = _read_all().get(_machine(threads))
    names = {str(math.prod(shape)) for shape in SHAPES}
    if not isinstance(stored, dict) or stored.keys() != names:
        return None
    if not all(x is None or (isinstance(x, int) and x in COUNTS) for x in stored.values()):
        return None
    TABLES[threads] = {int(name): math.inf if x is None else x for name, x in stored.items()}
    return TABLES[threads]


def _write_table(threads: int, table: Table) -> None:
    rows = {str(name): None if math.isinf(x) else int(x) for name, x in table.items()}
    try:
        path = cache_folder() / FILE
        with atomic_file(path) as temporary:
            temporary.write_text(json.dumps(_read_all() | {_machine(threads): rows}, indent=1))
    except (OSError, ChopError):
        return  # a cache that cannot be written costs a measurement per process


def _read_all() -> dict[str, object]:
    try:
        entries: dict[str, object] = read_json(Path(cache_folder()) / FILE, "cached")
    except (OSError, NotReadableError):
        return {}
    return entries


def _machine(threads: int) -> str:
    """Identifies what the measurement depends on."""
    loops = " ".join(target()) or "all instruction sets"
    return f"{processor_name()}, {loops}, torch {torch.__version__}, {threads} threads"
