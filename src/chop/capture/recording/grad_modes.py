"""Gradient modes of a model (`torch.no_grad` and similar), traced as nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from chop.captured.runtime import swap_grad_mode
from chop.private.torch_api import SET_GRAD_ENABLED

_CLASSES = (torch.no_grad, torch.enable_grad, torch.set_grad_enabled)
# `set_grad_enabled` switches and saves the previous mode when it is created. It may be entered, or
# used as a decorator, later.
_BEGINS = ("__init__", "__enter__")
_ENDS = ("__exit__", "__call__")


class GradModes:
    """Traces the switches of the gradient mode into a graph.

    The end of a region restores the mode at its beginning, which is the caller's: a model called
    without gradients continues without them.

    Args:
        graph: receives the nodes.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        # By the id of the region; the reference prevents another object from getting the same id.
        self._begun: dict[int, tuple[object, fx.Node]] = {}
        self._region: object | None = None
        self._ends = False

    def switch(self, args: tuple[Any, ...]) -> None:
        """Records a call of `torch._C._set_grad_enabled`."""
        begun = self._begun.get(id(self._region))
        if self._ends and begun is not None:
            self._graph.call_function(SET_GRAD_ENABLED, (begun[1],))
            return
        node = self._graph.call_function(swap_grad_mode, args)
        if self._region is not None and not self._ends and begun is None:
            self._begun[id(self._region)] = (self._region, node)

    @contextlib.contextmanager
    def inside(self, region: object, ends: bool) -> Iterator[None]:
        """Assigns the switches inside the block to a region that begins or ends there."""
        if self._region is not None:  # `no_grad` uses `set_grad_enabled`
            yield
            return
        self._region, self._ends = region, ends
        if not ends and not isinstance(region, torch.set_grad_enabled):
            self._begun.pop(id(region), None)  # a region that is entered again reads the mode again
        try:
            yield
        finally:
            self._region = None


@contextlib.contextmanager
def trace_grad_modes(modes: GradModes) -> Iterator[None]:
    """Reports to `modes` the region of each switch inside the block."""

    def watch(original: Callable[..., Any], ends: bool) -> Callable[..., Any]:
        def checked(region: object, *args: Any, **kwargs: Any) -> Any:
            with modes.inside(region, ends):
                return original(region, *args, **kwargs)

        return checked

    replaced = [
        (cls, name, vars(cls)[name])
        for cls in _CLASSES
        for name in (*_BEGINS, *_ENDS)
        if name in vars(cls)
    ]
    for cls, name, original in replaced:
        setattr(cls, name, watch(original, name in _ENDS))
    try:
        yield
    finally:
        for cls, name, original in replaced:
            setattr(cls, name, original)
