"""Identity layer that accepts the arguments of the layer that it replaces."""

from __future__ import annotations

from typing import Any

from torch import nn


class Identity(nn.Identity):
    """`nn.Identity` that also ignores further arguments of the call it replaces."""

    def forward(self, input: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns `input`, of any type and shape."""
        return input
