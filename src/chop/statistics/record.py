"""Record of all tensors of a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.statistics.base import Statistic


@dataclass
class Record(Statistic):
    """Statistic that keeps every tensor; the only one whose memory grows with the stream.

    Attributes:
        add_new_dim_before_concat: stacks the tensors along a new first axis instead of
            concatenating them along the existing one.
    """

    name: ClassVar[str] = "record"

    add_new_dim_before_concat: bool = False

    def __post_init__(self) -> None:
        self._parts: list[Tensor] = []

    def update(self, x: Tensor, hidden: Tensor | None = None) -> None:
        """Keeps a copy of a tensor.

        Args:
            x: any shape and real dtype.
            hidden: masked elements. They are recorded too, because tensors are kept whole.

        Raises:
            ConfigError: if the sizes of the tensor do not fit the earlier ones.
        """
        x = x.detach().to(self.device or x.device, copy=True)
        x = x[None] if self.add_new_dim_before_concat or x.dim() == 0 else x
        if self._parts and self._parts[0].shape[1:] != x.shape[1:]:
            raise ConfigError(
                f"record: tensors of the shapes {tuple(self._parts[0].shape)} and {tuple(x.shape)} "
                "cannot be joined; pass batches of one size."
            )
        self._parts.append(x)

    def compute(self) -> dict[str, Any]:
        """Returns `data`, the number of tensors in `count`, and `size_in_bytes`."""
        if not self._parts:
            raise ConfigError("record: nothing was observed.")
        data = torch.cat(self._parts)
        return {"data": data, "count": len(self._parts), "size_in_bytes": data.nbytes}
