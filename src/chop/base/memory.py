"""Memory of this process: its limit, and return of freed heap memory (`malloc_trim`)."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with the memory limit of a container."""


def memory_bytes() -> int:
    """Returns the memory of this machine, or the limit of the container or process if lower."""
    limits = [2**63]
    with suppress(OSError, ValueError, AttributeError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for file in LIMITS:
        with suppress(OSError, ValueError):  # "max" is not a number
            limits.append(int(Path(file).read_text()))
    with suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        limits += [limit] if limit != resource.RLIM_INFINITY else []
    return min(limits)


def release_freed() -> bool:
    """Returns freed heap memory to the operating system (`malloc_trim`); False without glibc.

    Tensors below 32 MB are on the heap, where small live tensors hold freed pages. Without this,
    the heap grows with each weight that is read and released.
    """
    trim = _trim()
    if trim is not None:
        trim(0)
    return trim is not None


@functools.cache
def _trim() -> Callable[[int], int] | None:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):
        return None
    return trim
