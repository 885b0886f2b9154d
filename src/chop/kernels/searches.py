"""Kernels for searched scales."""

from __future__ import annotations

from ctypes import c_double, c_int64

import torch
from torch import Tensor

from chop.formats.searched_scale import SearchedScale
from chop.kernels.cpu.build import is_ready, library
from chop.kernels.cpu.fake_quantize import WORTH_COMPILING
from chop.kernels.cpu.measure import pointer


def searched_scales(rows: Tensor, lowest_code: int) -> Tensor:
    """Implements `chop::searched_scales` on CPUs."""
    scaling = SearchedScale(lowest_code)
    loops = library().library if is_ready() or rows.numel() >= WORTH_COMPILING else None
    if loops is None or not rows.numel():
        return scaling.search(rows)
    rows, best = rows.contiguous(), rows.new_empty(rows.size(0), 1)
    divisors = (c_double * len(scaling.divisors))(*scaling.divisors)
    sizes = *map(c_int64, (*rows.shape, lowest_code)), divisors, c_int64(len(divisors))
    loops.chop_search_scales(pointer(rows), pointer(best), *sizes, torch.get_num_threads())
    return best


torch.library.register_kernel("chop::searched_scales", "cpu", searched_scales)
