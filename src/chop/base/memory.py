"""Memory of this process: its limit, and return of freed heap memory (`malloc_trim`)."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with the limit of a container."""


def memory_bytes() -> int:
    """The memory of this machine, or less where the container or the process has a limit."""
    limits = [2**63]
    with suppress(OSError, ValueError, AttributeError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for file in LIMITS:
        with suppress(OSError, ValueError):  # "max" is no number
            limits.append(int(Path(file).read_text()))
    with suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        limits += [limit] if limit != resource.RLIM_INFINITY else []
    return min(limits)


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
