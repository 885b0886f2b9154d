"""Study of softmax: separate operations against fused kernels, and their memory traffic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from chop.base.displayed import Displayed
from chop.base.native import compiler
from chop.bench.outputs import largest_difference
from chop.bench.record import Comparison, Measured, format_bytes, format_ratio, format_seconds
from chop.bench.subprocess import in_subprocess
from chop.bench.timing import Variant, compare
from chop.kernels.triton.register import is_installed
from chop.studies.attention_implementations import DTYPES
from chop.studies.settings import SOFTMAX_SHAPE, BenchSoftmaxConfig, parse_shape

INTERPRETED_SHAPES = ("40x100", "3x1000", "2x20000")
"""Shapes for all paths of the kernel: several rows, one row, or parts of a row per program.
"""
NAIVE, TORCH, COMPILED, TRITON = "naive", "torch", "torch.compile", "Triton"
IN_PLACE, COPY = "torch, in place", "copy, in place"
"""Variants that write to existing memory.

On a CPU, the system first clears new memory page by page, which takes longer than softmax.
"""
Softmax = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """Problem size of a softmax.

    Attributes:
        rows: M.
        columns: N; the softmax is over columns.
        dtype: dtype name.
    """

    rows: int
    columns: int
    dtype: str

    @classmethod
    def parse(cls, shape: str, dtype: str) -> Case:
        """Parses a shape such as "4096x1024".

        >>> Case.parse("4096x1024", "float32").columns
        1024
        """
        rows, columns = parse_shape(shape, *SOFTMAX_SHAPE)
        return cls(rows, columns, dtype)

    @property
    def name(self) -> str:
        """Name in titles and file names."""
        return f"{self.rows}x{self.columns}-{self.dtype}"

    def moved_bytes(self, way: str) -> int:
        """Returns the bytes read and written if nothing stays in a cache between operations.

        - "naive": 8MN + 4M numbers. The largest of each row reads MN and writes M, subtracting it
          reads MN + M and writes MN, exponentials read and write MN, their sum reads MN and writes
          M, dividing reads MN + M and writes MN: 5MN + 2M are read and 3MN + 2M are written.
        - others: 2MN, one read and one write, as a copy. A row that does not fit on the chip of
          a GPU is read twice: 3MN.
        """
        numbers = self.rows * self.columns
        count = 8 * numbers + 4 * self.rows if way == NAIVE else 2 * numbers
        if way == TRITON:
            from chop.kernels.triton.softmax import LONGEST_ROW

            count = 3 * numbers if self.columns > LONGEST_ROW else count
        return count * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class _SoftmaxRow:
    """Result of one implementation on one case.

    Attributes:
        case: problem size.
        measured: measured times.
        moved_bytes: counted bytes, see `Case.moved_bytes`.
        bytes_per_second: one read and one write of the data, divided by the measured time.
        share_of_copy: time of copying the input divided by the measured time.
        error: the largest |result - result in float64| over all elements; None for the copy.
    """

    case: Case
    measured: Measured
    moved_bytes: int
    bytes_per_second: float
    share_of_copy: float
    error: float | None

    def formatted(self) -> dict[str, Any]:
        """Formats the row for a table."""
        way = self.measured.name
        return {
            "M x N": f"{self.case.rows}x{self.case.columns}",
            "dtype": self.case.dtype,
            "way": way,
            "time": format_seconds(self.measured.seconds),
            "times as fast": "1" if way == NAIVE else format_ratio(self.measured.ratio),
            "counted": format_bytes(self.moved_bytes),
            "needed per second": f"{self.bytes_per_second / 1e9:.2f} GB",
            "of a copy": f"{self.share_of_copy:.0%}",
            "error": self.error,
            "first call": format_seconds(self.measured.first_call_seconds),
        }


@dataclass(frozen=True, repr=False)
class _SoftmaxComparison(Displayed):
    """Results of the softmax study.

    Attributes:
        rows: results by case and implementation.
        comparisons: case name -> comparison with all times.
        interpreted: errors of the Triton kernel in Triton's interpreter, without times. Empty on a
            GPU and without Triton.
    """

    rows: tuple[_SoftmaxRow, ...]
    comparisons: Mapping[str, Comparison]
    interpreted: tuple[Mapping[str, Any], ...]

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Returns formatted rows by table title."""
        how = next(iter(self.comparisons.values())).how
        tables = {
            f"Softmax, separate operations and fused ({how})": [
                row.formatted() for row in self.rows
            ]
        }
        if self.interpreted:
            title = "Triton kernel in Triton's interpreter: errors, without times"
            tables[title] = [dict(row) for row in self.interpreted]
        return tables


def bench_softmax(config: BenchSoftmaxConfig) -> _SoftmaxComparison:
    """Measures all shapes and dtypes; on a CPU, it also checks the Triton kernel."""
    comparisons, rows = {}, []
    for case in (Case.parse(shape, dtype) for dtype in config.dtypes for shape in config.shapes):
        comparisons[case.name], own = _measure(case, config)
        rows += own
    interpreted = []
    if torch.device(config.device).type != "cuda" and is_installed():
        shapes = INTERPRETED_SHAPES[:1] if config.quick else INTERPRETED_SHAPES
        interpreted = in_subprocess(interpreted_errors, shapes, TRITON_INTERPRET="1")
    return _SoftmaxComparison(tuple(rows), comparisons, tuple(interpreted))


def naive_softmax(x: Tensor) -> Tensor:
    """Computes exp(x - max) / sum with one operation at a time.

    Args:
        x: (M, N), floating point.
    Returns: (M, N).
    """
    largest = x.max(dim=1)[0]
    shifted = x - largest[:, None]
    exponentials = shifted.exp()
    total = exponentials.sum(dim=1)
    return exponentials / total[:, None]


def implementations(device: torch.device) -> dict[str, Softmax]:
    """Returns the variants available on a device, the baseline first."""
    variants: dict[str, Softmax] = {NAIVE: naive_softmax, TORCH: partial(torch.softmax, dim=-1)}
    on_gpu = device.type == "cuda"
    if is_installed() if on_gpu else compiler() is not None:
        variants[COMPILED] = torch.compile(naive_softmax, dynamic=False)
    if on_gpu and is_installed():
        from chop.kernels.triton.softmax import softmax

        variants[TRITON] = softmax
    return variants


def interpreted_errors(shapes: list[str]) -> list[dict[str, Any]]:
    """Returns errors of the Triton kernel and of torch against float64 on a CPU.

    It must run in a process with TRITON_INTERPRET=1 set before Triton is imported.
    """
    from chop.kernels.triton.softmax import softmax

    rows = []
    for case in (Case.parse(shape, dtype) for shape in shapes for dtype in DTYPES):
        x = _input(case, 0, torch.device("cpu"))
        exact = [x.double().softmax(-1)]
        row: dict[str, Any] = {"M x N": f"{case.rows}x{case.columns}", "dtype": case.dtype}
        for name, way in ((TRITON, softmax), (TORCH, partial(torch.softmax, dim=-1))):
            row[f"error of {name}"] = largest_difference([way(x)], exact, name)
        rows.append(row)
    return rows


def _measure(case: Case, config: BenchSoftmaxConfig) -> tuple[Comparison, list[_SoftmaxRow]]:
    device = torch.device(config.device)
    x = _input(case, config.seed, device)
    torch.compiler.reset()  # else the last of many shapes would not be compiled
    target = torch.empty_like(x)
    calls = {name: partial(way, x) for name, way in implementations(device).items()}
    calls[IN_PLACE] = partial(torch.softmax, x, -1, out=target)
    copy = partial(target.copy_, x)
    comparison = compare(
        [Variant(name, call) for name, call in {**calls, COPY: copy}.items()],
        outputs=False,
        **config.how,
    )
    with torch.inference_mode():
        exact = [x.double().softmax(-1)]
        errors = {name: largest_difference([way()], exact, name) for name, way in calls.items()}
    copying = comparison[COPY].ratio.median
    needed = 2 * x.nbytes
    rows = [
        _SoftmaxRow(
            case=case,
            measured=each,
            moved_bytes=case.moved_bytes(each.name),
            bytes_per_second=needed / comparison.decisive_seconds(each.name),
            share_of_copy=each.ratio.median / copying,
            error=errors.get(each.name),
        )
        for each in comparison
    ]
    return comparison, rows


def _input(case: Case, seed: int, device: torch.device) -> Tensor:
    """Returns normally distributed input, so that the position of the maximum varies by row."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(case.rows, case.columns, generator=draw)
    return x.to(device, DTYPES[case.dtype])
