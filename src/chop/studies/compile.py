"""Study of torch.compile: models in eager mode and compiled."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.base.displayed import Displayed
from chop.bench.break_even import BreakEven, break_even, compile_seconds
from chop.bench.clock import block_seconds
from chop.bench.record import Comparison, Measured, format_bytes, format_ratio, format_seconds
from chop.bench.timing import Variant, compare
from chop.ir.graph import dummy_inputs
from chop.models.named import get_model
from chop.studies.graph_breaks import Compilations, compilations
from chop.studies.settings import BenchCompileConfig
from chop.studies.short_runs import (
    ShortRun,
    short_runs,
    short_runs_title,
)

EAGER = "eager"
MODES: Mapping[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune": {"mode": "max-autotune"},
    "freezing": {"options": {"freezing": True}},
}
"""Arguments of `torch.compile`. Freezing turns weights into constants in a kernel's layout."""
MODES_OF_DEVICE = {
    # On a CPU, reduce-overhead (CUDA graphs) equals the default mode.
    "cpu": ("default", "max-autotune", "freezing"),
    "cuda": ("default", "reduce-overhead", "max-autotune"),
}
PROBE_LENGTH = 2
"""Divisor of the text length in the last call, for counting recompilations."""


@dataclass(frozen=True)
class _CompileRow:
    """Result of one execution mode of a model at one batch size.

    Attributes:
        model: name of the model.
        batch: number of rows of an input.
        measured: measured times.
        break_even: break-even point of compilation. None for eager.
        course: rows of the course table. Empty for eager.
    """

    model: str
    batch: int
    measured: Measured
    break_even: BreakEven | None
    course: tuple[ShortRun, ...]

    def formatted(self) -> dict[str, Any]:
        """Formats the row for a table."""
        measured, is_eager = self.measured, self.break_even is None
        return {
            "mode": measured.name,
            "time": format_seconds(measured.seconds),
            "times as fast": "1" if is_eager else format_ratio(measured.ratio),
            "compiling": None if is_eager else format_seconds(compile_seconds(measured)),
            "pays after": None if is_eager else str(self.break_even),
            "difference": None if is_eager else f"{measured.largest_difference:.1e}",
            "memory": format_bytes(measured.peak_bytes),
        }


@dataclass(frozen=True, repr=False)
class _CompileComparison(Displayed):
    """Results of the compile study.

    Attributes:
        rows: results by model and batch size, for eager and each mode.
        comparisons: case name -> comparison with all times.
        graphs: model -> graph breaks and recompilations.
        start_seconds: start-up time of the compiler, once per process. Not included in the rows.
    """

    rows: tuple[_CompileRow, ...]
    comparisons: Mapping[str, Comparison]
    graphs: Mapping[str, Compilations]
    start_seconds: float

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Returns formatted rows by table title."""
        how = next(iter(self.comparisons.values())).how
        started = f"compiler start-up of {format_seconds(self.start_seconds)} excluded"
        by_case: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            title = f"torch.compile of {row.model}, batch {row.batch} ({how}; {started})"
            by_case.setdefault(title, []).append(row.formatted())
        return {
            **by_case,
            self._short_runs_title: [
                line.formatted(EAGER, "compiled") for row in self._course for line in row.course
            ],
            "Graphs and graph breaks": [
                line
                for model, compilations in self.graphs.items()
                for line in _format_graphs(model, compilations)
            ],
        }

    @property
    def _course(self) -> list[_CompileRow]:
        """Rows of the course table for the first mode of each case; the manifest has all modes."""
        first: dict[tuple[str, int], _CompileRow] = {}
        for row in self.rows:
            if row.course:
                first.setdefault((row.model, row.batch), row)
        return list(first.values())

    @property
    def _short_runs_title(self) -> str:
        row = self._course[0]
        device = next(iter(self.comparisons.values())).environment["device"]
        what = f"eager and mode {row.measured.name}"
        return short_runs_title(device, what, row.course, row.measured)


def _format_graphs(model: str, compilations: Compilations) -> list[dict[str, Any]]:
    broken = [("graph break", place) for place in compilations.breaks]
    again = [(f"recompile, call {each.call + 1}", each.place) for each in compilations.recompiles]
    head = {"model": model, "graphs": compilations.graphs, "breaks": len(compilations.breaks)}
    head["recompiles"] = len(compilations.recompiles)
    lines = [
        {**head, "what": what, "where": f"{Path(place.file).name}:{place.line}"}
        | {"why": place.reason}
        for what, place in (*broken, *again)
    ]
    return lines or [{**head, "what": None, "where": None, "why": None}]


def bench_compile(config: BenchCompileConfig) -> _CompileComparison:
    """Measures all models and batch sizes.

    Raises:
        ConfigError: if a model is unknown, or its inputs cannot be generated.
        UnavailableError: if a model does not exist.
    """
    place = torch.device(config.device)
    modes = config.modes or MODES_OF_DEVICE.get(place.type, ("default",))
    models = {name: get_model(name) for name in config.models}  # raises for unknown names
    start, graphs = _compiler_start_seconds(place), {}
    comparisons: dict[str, Comparison] = {}
    rows: list[_CompileRow] = []
    for name, model in models.items():
        model.to(place)
        give = partial(random_inputs, model, image_size=config.image_size, device=place)
        for batch in config.batch_sizes:
            comparison = _measure(model, give(batch, config.length), modes, config)
            comparisons[f"{name.replace('/', '_')}-batch-{batch}"] = comparison
            rows += _rows(name, batch, comparison, config)
        calls = [give(batch, config.length) for batch in config.batch_sizes]
        calls.append(give(max(config.batch_sizes) + 1, max(1, config.length // PROBE_LENGTH)))
        graphs[name] = compilations(model, calls)
    return _CompileComparison(tuple(rows), comparisons, graphs, start)


def _compiler_start_seconds(device: torch.device) -> float:
    """Measures the start-up time of the compiler: modules, helper processes, headers."""
    begun = time.perf_counter()
    torch.compile(torch.relu)(torch.zeros(8, device=device))
    return time.perf_counter() - begun


def random_inputs(
    model: nn.Module,
    batch: int,
    length: int,
    *,
    image_size: int | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """Returns random inputs of a model by name.

    Args:
        model: built-in model, one of `chop.models.MODELS`, or a Hugging Face model.
        batch: number of rows.
        length: number of tokens, for text inputs.
        image_size: side of images if the model's configuration has none.
        device: device of the inputs.
    """
    made = dummy_inputs(model, batch=batch, length=length)
    inputs = {name: _rows_like(x, batch) for name, x in made.items()}
    pixels = inputs.get("pixel_values")
    takes_any = not hasattr(getattr(model, "config", model), "image_size")
    if pixels is not None and hasattr(model, "config") and takes_any and image_size:
        inputs["pixel_values"] = torch.randn(*pixels.shape[:-2], image_size, image_size)
    return {name: x.to(device) for name, x in inputs.items()}


def _rows_like(x: Tensor, batch: int) -> Tensor:
    """Returns `batch` rows like an example: the example, repeated rows, or new random numbers."""
    if len(x) == batch:
        return x
    if x.is_floating_point():
        return torch.randn(batch, *x.shape[1:], dtype=x.dtype)
    return x[torch.arange(batch) % len(x)]


def _measure(
    model: nn.Module, inputs: Mapping[str, Tensor], modes: Sequence[str], config: BenchCompileConfig
) -> Comparison:
    torch.compiler.reset()
    variants = [Variant(EAGER, partial(model, **inputs))]
    variants += [Variant(mode, prepare=partial(_compiled, model, mode, inputs)) for mode in modes]
    return compare(variants, **config.how)


def _compiled(model: nn.Module, mode: str, inputs: Mapping[str, Tensor]) -> Callable[[], Any]:
    """Compiles a model without reusing earlier compilations, and calls it once."""
    from chop.private.compile_api import fresh_cache

    with fresh_cache():
        call = partial(torch.compile(model, **MODES[mode]), **inputs)
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return call


def _rows(
    name: str, batch: int, comparison: Comparison, config: BenchCompileConfig
) -> list[_CompileRow]:
    eager, *compiled = comparison

    def course(each: Measured) -> tuple[ShortRun, ...]:
        case, block = f"{name}, batch {batch}", block_seconds(config.seconds)
        return tuple(short_runs(case, eager, each, config.iterations, block))

    return [
        _CompileRow(name, batch, eager, None, ()),
        *(
            _CompileRow(name, batch, each, break_even(eager, each), course(each))
            for each in compiled
        ),
    ]
