"""Values of small tensors (scales and ranges) as Python numbers."""

from __future__ import annotations

from math import isfinite
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from chop.private.torch_api import (
    detect_fake_mode,
    is_dispatch_observed,
    is_fake,
    never_compiled,
    write_count,
)

WHOLE = (Tensor, nn.Parameter, nn.Buffer)
"""Classes of tensors that are neither fake nor distributed."""
FEW = 64
"""Maximum number of elements for which a list is faster than a call of an operator."""
_READ: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""Version, address and numbers by GPU tensor."""


@never_compiled
def get_numbers(x: Tensor) -> list[float]:
    """Returns the numbers of a small tensor.

    Reading a GPU tensor waits for all pending work, so that each version of the tensor is read
    once.
    """
    numbers: list[float]
    if type(x) not in WHOLE:
        numbers = _local(x).tolist()
        return numbers
    if x.is_cpu or x.is_inference():
        numbers = x.tolist()
        return numbers
    return _read_once(x)


def _read_once(x: Tensor) -> list[float]:
    """Returns the numbers of a tensor, read once per version.

    Writes through `x.data` do not change the version. They are detected before the first read only,
    as during initialization.
    """
    known: Any = _READ.get(x)
    state = write_count(x), x.data_ptr()
    if known is None or known[0] != state or not any(y and isfinite(y) for y in known[1]):
        known = _READ[x] = state, x.tolist()
    numbers: list[float] = known[1]
    return numbers


@never_compiled
def has_started(scales: Tensor | None) -> bool:
    """Returns whether learned scales are initialized: not all of them are zero.

    Args:
        scales: (n,); those without values (meta, fake) count as initialized.
    """
    if scales is None or scales.is_meta or (type(scales) not in WHOLE and is_fake(scales)):
        return True
    if scales.is_cpu and scales.numel() > FEW and type(scales) is nn.Parameter:
        return is_in_fake_mode(scales) or bool(scales.any())
    numbers = get_numbers(scales)
    return any(numbers) or not numbers  # an empty shard has no say


def is_in_fake_mode(x: Tensor) -> bool:
    """Returns whether operators on a tensor return fake tensors."""
    if type(x) in WHOLE and not is_dispatch_observed():
        return False
    return detect_fake_mode(x) is not None


@never_compiled
def _local(x: Tensor) -> Tensor:
    """Returns the local part of a distributed tensor."""
    from torch.distributed.tensor import DTensor

    return x.to_local() if isinstance(x, DTensor) else x
