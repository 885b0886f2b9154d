"""Runtime functions: helpers that a captured graph calls and torch does not have."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.node import has_side_effect

from chop.errors import GraphError, GuardError
from chop.private.torch_api import (
    SET_GRAD_ENABLED,
    enter_autocast_region,
    exit_autocast_region,
)


def set_item(tensor: Tensor, index: Any, value: Any) -> Tensor:
    """Executes `tensor[index] = value` and returns `tensor`, so that later readers depend on it.

    >>> import torch
    >>> set_item(torch.zeros(3), 1, 2.0)
    tensor([0., 2., 0.])
    """
    tensor[index] = value
    return tensor


def retain_grad(tensor: Tensor) -> None:
    """Makes a result retain its gradient, if it requires one."""
    if tensor.requires_grad:
        tensor.retain_grad()


def guard_value(value: Any, reading: str, expected: Any, where: str, name: str = "") -> None:
    """Checks a decision that the model's Python made on the data of its example inputs.

    Args:
        value: the tensor or number that was read.
        reading: the method of the read: `"__bool__"`, `"__int__"`, `"tolist"`.
        expected: its result at capture.
        where: `file:line` of the model.
        name: the buffer or parameter that was read; "" for a tensor computed from inputs.

    Raises:
        GuardError: the result differs now, so that the graph is not valid.

    >>> import torch
    >>> guard_value(torch.tensor(True), "__bool__", True, "model.py:3")
    """
    actual = getattr(value, reading)()
    # NaN differs from itself; reading NaN again is the same decision.
    if actual == expected or (actual != actual and expected != expected):
        return
    if name:
        raise GuardError(
            f"the graph was captured with {name} = {expected}, which the model's Python reads at "
            f"{where}, got "
            f"{actual}; capture the model again, or keep the module that reads it as one node with "
            "leaves=[...] (custom_ops in MaseGraph)"
        )
    raise GuardError(
        f"the graph was captured for inputs on which the model reads {expected} at {where}, got "
        f"{actual}; "
        "capture the model again with such an example, or write the branch as torch.where for all "
        "inputs"
    )


class _OpenRegions(threading.local):
    """Open autocast regions of the graphs running in this thread."""

    def __init__(self) -> None:
        self.entered: list[torch.autocast] = []


_OPEN_REGIONS = _OpenRegions()


def enter_autocast(
    device: torch.device | str, dtype: torch.dtype | None, enabled: bool, cache_enabled: bool | None
) -> torch.autocast:
    """Enters `torch.autocast(device type, dtype, enabled, cache_enabled)`; see `leave_autocast`."""
    kind = device if isinstance(device, str) else device.type
    # `torch.compile` accepts an enter without a `with` block only through this function.
    region: torch.autocast = enter_autocast_region(kind, dtype, enabled, cache_enabled)
    if not torch.compiler.is_compiling():
        _OPEN_REGIONS.entered.append(region)
    return region


def leave_autocast(region: torch.autocast) -> None:
    """Leaves a region and restores the state before `enter_autocast`."""
    if not torch.compiler.is_compiling():
        _OPEN_REGIONS.entered.remove(region)
    exit_autocast_region(region)


@contextlib.contextmanager
def exit_open_regions() -> Iterator[None]:
    """Leaves the regions entered in the block, even after an error."""
    depth = len(_OPEN_REGIONS.entered)
    try:
        yield
    finally:
        while len(_OPEN_REGIONS.entered) > depth:
            leave_autocast(_OPEN_REGIONS.entered[-1])


def guard_autocast(device: torch.device | str, dtype: torch.dtype | None, where: str) -> None:
    """Checks that autocast is in the state that the model read at capture.

    Args:
        device: device of the query.
        dtype: dtype of autocast at capture; None: it was off.
        where: `file:line` of the model.

    Raises:
        GuardError: autocast is in another state now.
    """
    kind = device if isinstance(device, str) else device.type
    current = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    if current is not dtype:
        raise GuardError(
            f"captured under autocast {_format_dtype(dtype)}, tested by the model at {where}, got "
            f"autocast {_format_dtype(current)}; capture the model again inside that region"
        )


def _format_dtype(dtype: torch.dtype | None) -> str:
    return "off" if dtype is None else f"to {dtype}"


def swap_grad_mode(enabled: bool) -> bool:
    """Switches gradients on or off; returns the previous state, for the end of the region."""
    before = torch.is_grad_enabled()
    SET_GRAD_ENABLED(enabled)
    return before


REGIONS = (enter_autocast, leave_autocast, swap_grad_mode)
"""Region functions. Graphs that run side by side, node by node, enter a region once."""

for _effect in (retain_grad, guard_value, guard_autocast, *REGIONS):
    has_side_effect(_effect)


class AutogradCall:
    """Call of an `autograd.Function`, which preserves its hand-written backward in the capture.

    `Function.apply` is a new bound method at every access; this object compares, copies and names
    itself like the class that it represents.
    """

    def __init__(self, function: type) -> None:
        self.function = function
        self.__name__ = f"{function.__name__}_apply"
        self.__qualname__ = self.__name__
        self.__module__ = function.__module__

    def __call__(self, *args: Any) -> Any:
        """Returns `function.apply(*args)`."""
        return self.function.apply(*args)  # type: ignore[attr-defined]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AutogradCall) and other.function is self.function

    def __hash__(self) -> int:
        return hash(self.function)

    def __deepcopy__(self, memo: dict[int, Any]) -> AutogradCall:
        return self


class ByMode(nn.Module):
    """A constant with one value in `train()` and another in `eval()`.

    It is a child of the module whose Python made the choice, so that `part.eval()` affects the
    constants of that part only.

    >>> probability = ByMode(0.1, 0.0)
    >>> probability(), probability.eval()()
    (0.1, 0.0)
    """

    def __init__(self, when_training: Any, when_eval: Any) -> None:
        super().__init__()
        self.when_training = when_training
        self.when_eval = when_eval

    def forward(self) -> Any:
        """Returns the value of the current mode."""
        return self.when_training if self.training else self.when_eval

    def extra_repr(self) -> str:
        """Returns both values."""
        return f"training={self.when_training}, eval={self.when_eval}"


def by_mode(in_training: Any, in_eval: Any, path: str) -> Any:
    """Marks a node's choice between values of two modes, see `nodes.modes`.

    Args:
        in_training: the value while the module is in training.
        in_eval: the value in evaluation.
        path: path of the module whose mode decides.

    Raises:
        GraphError: the graph ran without a choice.
    """
    raise GraphError("the graph has nodes of a single mode; run it through the captured module")


class FastPathPadding(nn.Module):
    """Zeros at padded positions where `nn.TransformerEncoder` would write them.

    Its nested tensors omit padding. They are used in evaluation without gradients, for masks that
    hide the end of each row. Otherwise the padded positions hold the results of the layers.

    Args:
        checks_mask: skip other masks, like torch's `mask_check`.
    """

    def __init__(self, checks_mask: bool = True) -> None:
        super().__init__()
        self.checks_mask = checks_mask

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """Returns the encoder's result, with zeros at padding if torch has them.

        Args:
            x: (batch, time, features).
            padding: (batch, time): nonzero for padding.
        """
        if self.training or x.requires_grad or torch.is_autocast_enabled():
            return x
        hidden = padding.bool()
        if self.checks_mask:
            hidden = hidden & ~(hidden[:, :-1] & ~hidden[:, 1:]).any()
        return x.masked_fill(hidden[..., None], 0)
