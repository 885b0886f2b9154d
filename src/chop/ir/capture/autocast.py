"""Sees autocast while a model is recorded: regions that it enters, questions that it asks."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from chop.ir.capture.source import current_line, is_model_code

_PARAMETERS = ("device_type", "dtype", "enabled", "cache_enabled")


class Watcher(Protocol):
    """Who wants to know."""

    def enter_autocast(
        self,
        region: object,
        kind: str,
        dtype: torch.dtype | None,
        enabled: bool,
        cache: bool | None,
    ) -> None:
        """The model enters `torch.autocast(kind, dtype, enabled, cache)`; None: not given."""

    def leave_autocast(self, region: object) -> None:
        """The model leaves a region."""

    def ask_autocast(self, kind: str, dtype: torch.dtype | None, where: str) -> None:
        """The model asks whether autocast is on; `dtype` is what it casts to, None if it is off."""


@contextlib.contextmanager
def watched_autocast(watcher: Watcher) -> Iterator[None]:
    """Tells `watcher` what the model does with `torch.autocast` inside the block."""
    region_class: Any = torch.autocast
    init, enter, leave = region_class.__init__, region_class.__enter__, region_class.__exit__
    is_enabled: Any = torch.is_autocast_enabled
    # What was not given follows the surrounding region, and is resolved in `__init__`.
    given: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()

    def watched_init(region: Any, *args: Any, **kwargs: Any) -> None:
        init(region, *args, **kwargs)
        given[region] = dict(zip(_PARAMETERS, args, strict=False)) | kwargs

    def watched_enter(region: Any) -> Any:
        resolved = {"dtype": region.fast_dtype, "cache_enabled": region._cache_enabled}
        options = given.get(region, resolved)
        dtype, cache = options.get("dtype"), options.get("cache_enabled")
        watcher.enter_autocast(region, region.device, dtype, region._enabled, cache)
        return enter(region)

    def watched_leave(region: Any, *error: Any) -> Any:
        watcher.leave_autocast(region)
        return leave(region, *error)

    def watched_question(kind: str = "cuda") -> bool:
        answer: bool = is_enabled(kind)
        if is_model_code(sys._getframe(1).f_code.co_filename):
            dtype = torch.get_autocast_dtype(kind) if answer else None
            watcher.ask_autocast(kind, dtype, current_line())
        return answer

    region_class.__init__, region_class.__enter__ = watched_init, watched_enter
    region_class.__exit__ = watched_leave
    torch.is_autocast_enabled = watched_question  # type: ignore[assignment]
    try:
        yield
    finally:
        region_class.__init__, region_class.__enter__ = init, enter
        region_class.__exit__, torch.is_autocast_enabled = leave, is_enabled
