"""Padding propagation in calls of modules without a graph, and of compiled models.

A captured model propagates padding in its own call. Other models get two hooks, which enter and
leave the same context around `forward`.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from chop.base.notices import AdjustedWarning, warn_once_about
from chop.captured.padding.hidden import following, is_followed_call
from chop.captured.padding.masks import MASK_ENDINGS
from chop.private.modules import forward_pre_hooks
from chop.private.torch_api import constant_when_compiled


class _Call(NamedTuple):
    """A running call with padding propagation.

    Attributes:
        frames: the frame in which torch runs hooks, and its caller's.
        context: closed after the call.
    """

    frames: tuple[FrameType, FrameType | None]
    context: contextlib.ExitStack


_running: ContextVar[tuple[_Call, ...]] = ContextVar("running", default=())


def follow_calls(model: nn.Module) -> None:
    """Adds hooks to a model that exclude padding from calibration and statistics of its operators.

    Models without a mask among the inputs of `forward`, without operators that learn from inputs,
    or with these hooks are not changed.
    """
    has_hooks = _enter in forward_pre_hooks(model).values()
    may_learn = any(getattr(part, "may_learn_from_inputs", False) for part in model.modules())
    if not has_hooks and may_learn and any(x.endswith(MASK_ENDINGS) for x in _names(model)):
        model.register_forward_pre_hook(_enter, with_kwargs=True)
        model.register_forward_hook(_leave, with_kwargs=True, always_call=True)


def _names(model: nn.Module) -> tuple[str, ...]:
    """Returns the argument names of a model's `forward`, in order."""
    return tuple(inspect.signature(model.forward).parameters)


def _enter(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    if torch.compiler.is_compiling():
        warn_about_compiled(model)
        return None
    _leave_interrupted()
    # Reading a signature takes as long as running a small layer.
    named: Mapping[str, Any] = dict(zip(_names(model), args, strict=False)) if args else {}
    if len(named) < len(args) or not is_followed_call(model, (*named, *kwargs)):
        return None
    # Frames identify the call: nested calls of the same model are distinct ones.
    frame = sys._getframe(1)
    context = contextlib.ExitStack()
    given = context.enter_context(following(model, {**named, **kwargs}, copies=False))
    _running.set((*_running.get(), _Call((frame, frame.f_back), context)))
    return tuple(given[name] for name in named), {name: given[name] for name in kwargs}


def _leave(model: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
    if torch.compiler.is_compiling():
        return
    running = _running.get()
    if running and sys._getframe(1) in running[-1].frames:
        _running.set(running[:-1])
        running[-1].context.close()


def _leave_interrupted() -> None:
    """Closes the contexts of calls that Ctrl-C interrupted, after which torch runs no hooks."""
    running = _running.get()
    active = {*_callers()} if running else set()
    while running and running[-1].frames[1] not in active:
        *rest, last = running
        running = tuple(rest)
        _running.set(running)
        last.context.close()


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


@constant_when_compiled
def warn_about_compiled(model: nn.Module) -> bool:
    """Warns if compiled training would fit formats to padding; runs once per compilation.

    Returns: True, a constant for the compiler.
    """
    record = vars(model).get("_record")
    names = _names(model) if record is None else record.example_inputs
    if model.training and any(name.endswith(MASK_ENDINGS) for name in names):
        waits = (path for path, x in model.named_modules() if getattr(x, "fits_each_tensor", False))
        if (path := next(waits, None)) is not None:
            warn_once_about(
                [model],
                f"torch.compile: '{path}' has a format without a calibrated range, which is fitted "
                "to each whole tensor, including padding; calibrate the model, or train one step "
                "before you compile it.",
                AdjustedWarning,
                "compiled padding",
            )
    return True
