"""Memory that C's allocator has freed and kept."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


def release_freed() -> bool:
    """Gives freed pages back to the system; False where the allocator is none that can (glibc).

    Tensors below 32 MB lie on the heap, where small ones that live on keep the freed memory of
    others: it grows by a part of each weight that was read and let go.
    """
    trim = _trim()
    if trim is not None:
        trim(0)
    return trim is not None


@functools.cache
def _trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):
        return None
    return found
