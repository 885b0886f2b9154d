"""The few helpers that a captured graph calls and torch itself does not have."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from chop.errors import GuardError


def set_item(tensor: Tensor, index: Any, value: Any) -> Tensor:
    """Does `tensor[index] = value` and returns `tensor`, so that later readers depend on it.

    >>> import torch
    >>> set_item(torch.zeros(3), 1, 2.0)
    tensor([0., 2., 0.])
    """
    tensor[index] = value
    return tensor


def expect(value: Any, reading: str, expected: Any, where: str) -> None:
    """Checks a decision that the model's Python made on the data of its example inputs.

    Args:
        value: the tensor or number that it looked at.
        reading: how it did: `"__bool__"`, `"__int__"`, `"tolist"`.
        expected: what it saw at capture.
        where: `file:line` of the model.

    Raises:
        GuardError: it would see something else now, so that the graph does not hold.

    >>> import torch
    >>> expect(torch.tensor(True), "__bool__", True, "model.py:3")
    """
    found = getattr(value, reading)()
    if found != expected:
        raise GuardError(
            f"captured for inputs on which the model sees {expected} at {where}, got {found}; "
            "capture the model again with such an example"
        )


class AutogradCall:
    """Calls an `autograd.Function`, so that its hand-written backward survives the capture.

    `Function.apply` is a fresh bound method at every look-up; this object compares, copies and
    names itself like the class that it stands for.
    """

    def __init__(self, function: type) -> None:
        self.function = function
        self.__name__ = f"{function.__name__}_apply"
        self.__qualname__ = self.__name__
        self.__module__ = function.__module__

    def __call__(self, *args: Any) -> Any:
        """`function.apply(*args)`."""
        return self.function.apply(*args)  # type: ignore[attr-defined]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AutogradCall) and other.function is self.function

    def __hash__(self) -> int:
        return hash(self.function)

    def __deepcopy__(self, memo: dict[int, Any]) -> AutogradCall:
        return self


class ByMode(nn.Module):
    """A constant with one value in `train()` and another in `eval()`.

    It sits below the module whose Python made the choice, so that freezing a part of the model
    with `part.eval()` switches the constants of that part and no others.

    >>> probability = ByMode(0.1, 0.0)
    >>> probability(), probability.eval()()
    (0.1, 0.0)
    """

    def __init__(self, when_training: Any, when_eval: Any) -> None:
        super().__init__()
        self.when_training = when_training
        self.when_eval = when_eval

    def forward(self) -> Any:
        """The value of the present mode."""
        return self.when_training if self.training else self.when_eval

    def extra_repr(self) -> str:
        """Both values."""
        return f"training={self.when_training}, eval={self.when_eval}"
