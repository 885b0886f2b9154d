"""Source lines of the model's own Python."""

from __future__ import annotations

import functools
import inspect
import sys
from pathlib import Path
from types import FrameType, TracebackType

import torch

from chop.captured.guards.shape_guards import UNKNOWN_LINE

_TORCH = Path(torch.__file__).parent
_CHOP = Path(__file__).parents[2]
_GRAPH = str(_CHOP / "ir")
_OURS = (str(_CHOP / name) for name in ("capture", "captured", "ir", "base", "private"))
_MACHINERY = (str(_TORCH), str(_TORCH.parent / "sympy"), *_OURS, "<")


@functools.lru_cache(maxsize=4096)
def is_model_code(filename: str) -> bool:
    """Returns whether a file belongs to a model, not to torch, sympy or `chop`."""
    library = filename.endswith(("/contextlib.py", "/functools.py"))
    return not library and not filename.startswith(_MACHINERY)


def current_line() -> str:
    """Returns `file:line` of the innermost running frame of the model."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_model_code(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if frame.f_code.co_filename.startswith(_GRAPH):
            break  # the caller of the model, so torch's own layers ask
        frame = frame.f_back
    return UNKNOWN_LINE


def definition_line(module: type) -> str:
    """Returns `file:line` of a module class's `forward`; the class name if it is compiled."""
    forward = inspect.getattr_static(module, "forward")
    code = getattr(inspect.unwrap(forward), "__code__", None)
    if code is None:
        return f"{module.__module__}.{module.__qualname__}"
    return f"{code.co_filename}:{code.co_firstlineno}"


def failing_line(error: BaseException) -> str | None:
    """Returns `file:line` of the model's innermost frame in a traceback; None if there is none."""
    where = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if is_model_code(filename):
            where = f"{filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return where
