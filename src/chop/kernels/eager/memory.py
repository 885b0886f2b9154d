"""Fresh memory in large pages, as the C++ loops have it."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

from torch import Tensor

HUGE_PAGE = 2**21  # bytes
WORTH_ASKING = 8 * HUGE_PAGE
MADV_HUGEPAGE = 14  # of Linux's mman.h


def prefer_huge_pages(x: Tensor) -> None:
    """Asks for pages of 2 MiB, of which first touching costs a fraction of that of 4 KiB ones.

    Where the system has no such call, or refuses, nothing changes.

    Args:
        x: a tensor that is about to be written.
    """
    if x.device.type != "cpu" or x.nbytes < WORTH_ASKING or not x.is_contiguous():
        return
    advise = _madvise()
    if advise is not None:
        first = -(-x.data_ptr() // HUGE_PAGE) * HUGE_PAGE
        last = (x.data_ptr() + x.nbytes) // HUGE_PAGE * HUGE_PAGE
        advise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_HUGEPAGE)


@cache
def _madvise() -> Any:
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), "madvise", None)
