"""Graph breaks and recompilations of torch.compile in a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from chop.private.compile_api import (
    clear_compilation_metrics,
    explain,
    get_compilation_metrics,
)

Inputs = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """Source line reported by torch.

    Attributes:
        file: path of the file.
        line: line number from 1, or 0 if unknown.
        reason: torch's explanation in one line.
    """

    file: str
    line: int
    reason: str


@dataclass(frozen=True)
class _Recompile:
    """Call that triggered a recompilation.

    Attributes:
        call: index of the call, from 0.
        place: recompiled function and failed guard.
    """

    call: int
    place: Place


@dataclass(frozen=True)
class Compilations:
    """Result of tracing a model with torch.compile.

    Attributes:
        graphs: number of graphs of one call.
        breaks: graph breaks with their source lines.
        recompiles: recompilations in later calls.
    """

    graphs: int
    breaks: tuple[Place, ...]
    recompiles: tuple[_Recompile, ...]


def compilations(model: nn.Module, calls: Iterable[Inputs]) -> Compilations:
    """Traces a model like `torch.compile`, without generating code.

    This resets the compiled code of the process, which torch compiles again when needed.

    Args:
        model: model on the device of its inputs.
        calls: keyword arguments of each call. Differences from the first may cause recompilations.
    """
    asked = list(calls)
    with _fresh_dynamo(), torch.inference_mode():
        explained = explain(model)(**asked[0])
    breaks = tuple(_place(reason) for reason in explained.break_reasons)
    return Compilations(explained.graph_count, breaks, tuple(recompiles(model, asked)))


def recompiles(model: nn.Module, calls: Iterable[Inputs]) -> Iterator[_Recompile]:
    """Returns the recompilations in a sequence of calls."""
    with _fresh_dynamo(), torch.inference_mode():
        traced = torch.compile(model, backend="eager")
        for number, inputs in enumerate(calls):
            clear_compilation_metrics()
            traced(**inputs)
            for metrics in get_compilation_metrics():
                if metrics.recompile_reason:
                    place = Place(
                        str(metrics.co_filename),
                        metrics.co_firstlineno or 0,
                        _first_line(metrics.recompile_reason.partition(": ")[2]),
                    )
                    yield _Recompile(number, place)


@contextmanager
def _fresh_dynamo() -> Iterator[None]:
    """Context manager with an empty compile cache, which is cleared again afterwards."""
    torch.compiler.reset()
    try:
        yield
    finally:
        torch.compiler.reset()


def _place(reason: Any) -> Place:
    innermost = reason.user_stack[-1] if reason.user_stack else None
    text = _first_line(reason.reason)
    if innermost is None:
        return Place("unknown", 0, text)
    return Place(innermost.filename, innermost.lineno or 0, text)


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0]
