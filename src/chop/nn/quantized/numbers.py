"""Values of small tensors that decide how an operator computes: scales and ranges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from chop.private.torch_api import never_compiled, version_of

FEW = 64
"""Numbers that a list is made of sooner than an operator is called."""
_READ: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""By tensor on a GPU: its version, its address, and its numbers."""


@never_compiled
def numbers_of(x: Tensor) -> list[float]:
    """The numbers of a small tensor.

    Reading a tensor on a GPU waits for all that the GPU has to do, so that it is done once for
    each version of the tensor.
    """
    with torch.no_grad():
        if x.is_cpu or x.is_inference() or type(x) not in (Tensor, nn.Parameter, nn.Buffer):
            return _local(x).tolist()
        known: Any = _READ.get(x)
        state = version_of(x), x.data_ptr()
        if known is None or known[0] != state:
            known = _READ[x] = state, x.tolist()
        numbers: list[float] = known[1]
        return numbers


@never_compiled
def has_started(scales: Tensor | None) -> bool:
    """Whether learned scales have a start: not all of them are zero.

    Args:
        scales: (n,); those without numbers (meta) count as started.
    """
    if scales is None or scales.is_meta:
        return True
    if scales.is_cpu and scales.numel() > FEW and type(scales) is nn.Parameter:
        return bool(scales.any())
    return any(numbers_of(scales))


@never_compiled
def _local(x: Tensor) -> Tensor:
    """The part of a distributed tensor that this process has."""
    if type(x) in (Tensor, nn.Parameter, nn.Buffer):
        return x
    from torch.distributed.tensor import DTensor

    return x.to_local() if isinstance(x, DTensor) else x
