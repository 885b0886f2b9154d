"""What a torch call returned, as the recorder looks at it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from chop.capture.targets import changes_its_input


def holds_tensor(value: Any) -> bool:
    """Whether a result is a tensor, or tuples or lists that hold one."""
    if isinstance(value, tuple | list):
        return any(map(holds_tensor, value))
    return isinstance(value, Tensor)


def distinct(func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> Any:
    """A new identity for a result that is an argument unchanged.

    `x.float()` returns `x` itself while `x` is float32. Were the two one in the graph, then after
    `model.half()` every later reader of `x` would read the float32 copy.
    """
    unchanged = isinstance(result, Tensor) and any(result is value for value in args)
    if unchanged and not changes_its_input(func) and "out" not in kwargs:
        return torch.ops.aten.alias(result)
    return result
