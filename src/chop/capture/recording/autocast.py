"""Autocast regions and autocast queries of a model, traced as nodes."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from chop.capture.recording.source import current_line, is_model_code
from chop.captured.runtime import enter_autocast, guard_autocast, leave_autocast
from chop.private.torch_api import autocast_options

_PARAMETERS = ("device_type", "dtype", "enabled", "cache_enabled")


class AutocastRegions:
    """Traces a model's use of autocast into a graph.

    Args:
        emit: creates a node.
        is_recording: returns whether the model's own Python is running.
    """

    def __init__(self, emit: Callable[..., fx.Node], is_recording: Callable[[], bool]) -> None:
        self._emit = emit
        self._is_recording = is_recording
        self._entered: list[tuple[object, fx.Node]] = []

    def enter(self, region: object, kind: str, dtype: Any, enabled: bool, cache: Any) -> None:
        """Adds a node that begins a region, so that its precision holds under any autocast.

        Args:
            region: the `torch.autocast` context; the other arguments are those of its constructor.
            kind: device type.
            dtype: target dtype of the casts. Default: the device's.
            enabled: False disables casts inside.
            cache: whether casts of weights are cached. Default: torch's setting.
        """
        if self._is_recording():
            options = (torch.device(kind), dtype, enabled, cache)
            node = self._emit("call_function", enter_autocast, options, {}, None)
            self._entered.append((region, node))

    def leave(self, region: object) -> None:
        """Adds a node that ends a region."""
        if self._is_recording() and self._entered and self._entered[-1][0] is region:
            _, node = self._entered.pop()
            leave = self._emit("call_function", leave_autocast, (), {}, None)
            leave.args = (node,)

    def ask(self, kind: str, dtype: torch.dtype | None) -> None:
        """Records a query of the autocast state as a decision that the graph checks at run time."""
        if self._is_recording():
            options = (torch.device(kind), dtype, current_line())
            self._emit("call_function", guard_autocast, options, {}, None)


@contextlib.contextmanager
def trace_autocast(regions: AutocastRegions) -> Iterator[None]:
    """Traces the uses of `torch.autocast` inside the block."""
    region_class: Any = torch.autocast
    init, enter, leave = region_class.__init__, region_class.__enter__, region_class.__exit__
    is_enabled: Any = torch.is_autocast_enabled
    # Arguments that were not given follow the outer region, and are resolved in `__init__`.
    given: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()

    def traced_init(region: Any, *args: Any, **kwargs: Any) -> None:
        init(region, *args, **kwargs)
        given[region] = dict(zip(_PARAMETERS, args, strict=False)) | kwargs

    def traced_enter(region: Any) -> Any:
        fast_dtype, cache_enabled, enabled = autocast_options(region)
        resolved = {"dtype": fast_dtype, "cache_enabled": cache_enabled}
        options = given.get(region, resolved)
        dtype, cache = options.get("dtype"), options.get("cache_enabled")
        regions.enter(region, region.device, dtype, enabled, cache)
        return enter(region)

    def traced_leave(region: Any, *error: Any) -> Any:
        regions.leave(region)
        return leave(region, *error)

    def traced_query(kind: str = "cuda") -> bool:
        answer: bool = is_enabled(kind)
        if is_model_code(sys._getframe(1).f_code.co_filename):
            dtype = torch.get_autocast_dtype(kind) if answer else None
            regions.ask(kind, dtype)
        return answer

    region_class.__init__, region_class.__enter__ = traced_init, traced_enter
    region_class.__exit__ = traced_leave
    torch.is_autocast_enabled = traced_query  # type: ignore[assignment]
    try:
        yield
    finally:
        region_class.__init__, region_class.__enter__ = init, enter
        region_class.__exit__, torch.is_autocast_enabled = leave, is_enabled
