"""Rows from which PyTorch (oneDNN, MKL) multiplies faster than the loops of this package.

Which is faster depends on the processor, the number of threads, the kind of product, the rows of
the activations and the size of the weight. It is measured once per machine and kind of product, in
less than two seconds of processor time for all kinds, and stored in the cache folder.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.base.files.atomic import atomic_file
from chop.base.files.documents import read_json
from chop.base.files.reading import NotReadableError
from chop.base.hub import cache_folder
from chop.errors import ChopError
from chop.kernels.cpu.build import library, product_instructions, target
from chop.kernels.matmul_precision import MatmulPrecision, matmul_precision
from chop.runs.environment import processor_name

COUNTS = (16, 32, 64, 128, 256)
"""Rows of activations that are measured."""
FEWEST = COUNTS[0]
FEW_REPEATS, REPEATS, LONGEST = 2, 7, 0.04
"""Calls of each product: at least, at most, and the seconds after which there are no more."""
MARGIN, CLEAR = 1.15, 3.0
"""Ratios of times that count, and that need no further calls if these are long."""
PERIOD = 4099
"""Number of random bytes of a measurement; prime, so that repeated ones differ between rows."""
FILE = "crossovers.json"
Call = Callable[[], object]
Clock = Callable[[], float]
Calls = Callable[[tuple[int, int], int], tuple[Call, Call]]
"""Makes a product by the loops and by PyTorch from the shape of a weight and a number of rows."""
Table = Mapping[int, float]
"""Rows by number of elements of the weight; infinity if PyTorch is never faster."""
TABLES: dict[tuple[str, int], Table] = {}
"""Tables of this process by kind and number of threads, because the file may not be writable."""


@dataclass(frozen=True)
class Crossover:
    """Choice between the loops and PyTorch for one kind of product.

    Attributes:
        name: name in the file and in messages.
        calls: makes the products that are measured.
        shapes: weights (outputs, columns) of the measurement. Others use the nearest in number of
            elements.
        is_supported: returns False if there is no choice on this processor.
        why_unsupported: the reason, as a clause.
        rival: what multiplies in place of the loops, for messages.
        precision: float32 matmul precision of the measurement.
    """

    name: str
    calls: Calls
    shapes: tuple[tuple[int, int], ...]
    is_supported: Callable[[], bool]
    why_unsupported: str
    rival: str = "oneDNN"
    precision: MatmulPrecision = "highest"

    def is_used(self, shape: Sequence[int], rows: int) -> bool:
        """Returns True if PyTorch multiplies a number of rows by a weight (outputs, columns)."""
        if rows < FEWEST:
            return False
        fewest = _fewest_rows(self.name, math.prod(shape), torch.get_num_threads())
        return rows >= fewest and _has_onednn()

    def measure(self, threads: int) -> Table:
        """Measures the table of this machine and stores it."""
        # Modes belong to a thread: the caller's fake tensors, autocast and default device would
        # change the products.
        with matmul_precision(self.precision), ThreadPoolExecutor(1) as executor:
            table = executor.submit(self._measured, threads).result()
        TABLES[self.name, threads] = table
        _write_table(self.name, threads, table)
        return table

    def stored_table(self, threads: int) -> Table | None:
        """Returns the table of this process or the stored one of this machine; None without one."""
        if (self.name, threads) in TABLES:
            return TABLES[self.name, threads]
        stored = _machine_tables(_read_all(), threads).get(self.name)
        names = {str(math.prod(shape)) for shape in self.shapes}
        if not isinstance(stored, dict) or stored.keys() != names:
            return None
        if not all(x is None or (type(x) is int and x in COUNTS) for x in stored.values()):
            return None
        table = {int(name): math.inf if x is None else x for name, x in stored.items()}
        TABLES[self.name, threads] = table
        return table

    def _measured(self, threads: int) -> Table:
        # The time of a thread excludes other processes, which the time of several threads cannot.
        clock = time.thread_time if threads == 1 else time.perf_counter
        return {math.prod(shape): self._crossing(shape, clock) for shape in self.shapes}

    def _crossing(self, shape: tuple[int, int], clock: Clock) -> float:
        """Returns the fewest rows from which PyTorch is faster for this and all larger counts."""
        fewest = math.inf
        for rows in reversed(COUNTS):
            loops, rival = self.calls(shape, rows)
            if not _is_slower(loops, rival, clock):
                break
            fewest = rows
        return fewest


CROSSOVERS: dict[str, Crossover] = {}
"""Kinds of products by name."""


def register(crossover: Crossover) -> Crossover:
    """Adds a kind of product to those that `measure_all` measures."""
    CROSSOVERS[crossover.name] = crossover
    return crossover


def measure_all() -> None:
    """Measures all kinds of products again, for torch's number of threads."""
    if library().library is not None and _has_onednn():
        for crossover in CROSSOVERS.values():
            if crossover.is_supported():
                crossover.measure(torch.get_num_threads())
    _fewest_rows.cache_clear()


@cache
def _fewest_rows(name: str, elements: int, threads: int) -> float:
    """Returns the rows from which PyTorch is faster, measured if the machine has no entry yet."""
    crossover = CROSSOVERS[name]
    if not (crossover.is_supported() and _has_onednn()):
        return math.inf
    table = crossover.stored_table(threads) or crossover.measure(threads)
    return table[min(table, key=lambda known: abs(math.log(known / elements)))]


def random_bytes(count: int) -> Tensor:
    """Returns bytes for a measurement; leaves torch's random state unchanged."""
    random = torch.Generator("cpu").manual_seed(0)
    # Drawing millions of them would take longer than the products.
    period = torch.randint(0, 256, (PERIOD,), generator=random, dtype=torch.uint8, device="cpu")
    return period.repeat(count // PERIOD + 1)[:count]


def _has_onednn() -> bool:
    """Returns False if torch was built without oneDNN, or the user has switched it off."""
    backend: Any = torch.backends.mkldnn  # the type stubs lack the switch
    return bool(backend.enabled) and torch.backends.mkldnn.is_available()


def _is_slower(first: Call, second: Call, clock: Clock) -> bool:
    """Returns whether the fastest of several calls of `first` is slower than that of `second`.

    A difference below `MARGIN` does not count, so that a busy machine gives the same table.
    """
    slow, quick = _seconds(first, clock), _seconds(second, clock)
    if slow > LONGEST and slow > CLEAR * quick:
        return True
    # The first calls allocate and prepare, so shorter times of them do not count.
    times: list[tuple[float, float]] = []
    start = clock()
    while len(times) < FEW_REPEATS or (len(times) < REPEATS and clock() - start < LONGEST):
        times.append((_seconds(first, clock), _seconds(second, clock)))
    return min(x for x, _ in times) > MARGIN * min(x for _, x in times)


def _seconds(call: Call, clock: Clock) -> float:
    start = clock()
    call()
    return clock() - start


def _write_table(name: str, threads: int, table: Table) -> None:
    rows = {str(key): None if math.isinf(x) else int(x) for key, x in table.items()}
    try:
        path = cache_folder() / FILE
        stored = _read_all()
        tables = _machine_tables(stored, threads) | {name: rows}
        with atomic_file(path) as temporary:
            temporary.write_text(json.dumps(stored | {_machine(threads): tables}, indent=1))
    except (OSError, ChopError):
        return  # a cache that cannot be written costs a measurement per process


def _machine_tables(stored: Mapping[str, object], threads: int) -> dict[str, object]:
    tables = stored.get(_machine(threads))
    return tables if isinstance(tables, dict) else {}


def _read_all() -> dict[str, object]:
    try:
        entries: dict[str, object] = read_json(Path(cache_folder()) / FILE, "cached")
    except (OSError, NotReadableError):
        return {}
    return entries


def _machine(threads: int) -> str:
    """Identifies what the measurement depends on; virtual processors share names."""
    loops = " ".join(target()) or "all instruction sets"
    has = " ".join(name for name, is_there in product_instructions().items() if is_there)
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
    onednn = f"oneDNN for {limit}" if limit else "oneDNN"
    torch_version = f"torch {torch.__version__}"
    return f"{processor_name()}, {has}, {loops}, {onednn}, {torch_version}, {threads} threads"
