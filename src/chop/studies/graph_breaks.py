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
    """A line of somebody's code.

    Attributes:
        file: its path.
        line: from 1; 0 where it is not known.
        reason: what torch has to say about it, in a line.
    """

    file: str
    line: int
    reason: str


@dataclass(frozen=True)
class _Recompile:
    """One call that needed new code.

    Attributes:
        call: place of the call among those that were made, from 0.
        place: the function that was compiled again, and the guard that failed.
    """

    call: int
    place: Place


@dataclass(frozen=True)
class Compilations:
    """How torch.compile takes a model.

    Attributes:
        graphs: into which one call is cut.
        breaks: between them, with the line that caused each.
        recompiles: in the calls after the first.
    """

    graphs: int
    breaks: tuple[Place, ...]
    recompiles: tuple[_Recompile, ...]


def compilations(model: nn.Module, calls: Iterable[Inputs]) -> Compilations:
    """Traces a model as `torch.compile` does, without generating any code.

    Torch forgets on the way what it has compiled so far in this process, and compiles it again when
    it is called next.

    Args:
        model: on the device of its inputs.
        calls: keyword arguments of each call; what differs from the first may cost a recompile.
    """
    asked = list(calls)
    with _fresh_dynamo(), torch.inference_mode():
        explained = explain(model)(**asked[0])
    breaks = tuple(_place(reason) for reason in explained.break_reasons)
    return Compilations(explained.graph_count, breaks, tuple(recompiles(model, asked)))


def recompiles(model: nn.Module, calls: Iterable[Inputs]) -> Iterator[_Recompile]:
    """Those of calls that are made one after the other."""
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
    """Without what was compiled before, and without leaving anything to what comes after."""
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
