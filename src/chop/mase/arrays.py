"""Conversion between tensors and NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.config import with_checked_arguments
from chop.errors import ConfigError, first_line
from chop.train.device import usable_device


@with_checked_arguments
def copy_weights(src_weight: Tensor, tgt_weight: Tensor) -> None:
    """Copies values into a tensor of a broadcastable shape, without a gradient.

    Raises:
        ConfigError: if an argument is no tensor, or the shapes differ.

    >>> layer = torch.nn.Linear(2, 1)
    >>> copy_weights(torch.ones(1, 2), layer.weight)
    >>> layer.weight.tolist()
    [[1.0, 1.0]]
    """
    try:
        with torch.no_grad():
            tgt_weight.copy_(src_weight)
    except RuntimeError as error:
        shapes = f"{list(src_weight.shape)} into {list(tgt_weight.shape)}"
        raise ConfigError(f"copy_weights: cannot copy a tensor of shape {shapes}.") from error


@with_checked_arguments
def to_numpy(x: Tensor) -> np.ndarray:
    """Converts a tensor to an array; bfloat16, which NumPy lacks, becomes float32.

    Raises:
        ConfigError: if it is no tensor.
    """
    x = x.detach().cpu()
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy()


def to_numpy_if_tensor(x: Any) -> Any:
    """Converts a tensor with `to_numpy`; returns other values unchanged."""
    return to_numpy(x) if is_tensor(x) else x


def to_tensor(x: np.ndarray, device: str | torch.device | None = None) -> Tensor:
    """Converts an array to a tensor that shares memory, or to a copy on a CUDA GPU if present.

    Raises:
        ConfigError: if it is no array of numbers, or the device does not exist.
    """
    try:
        return torch.from_numpy(x).to(usable_device(device))
    except TypeError as error:
        raise ConfigError(f"to_tensor: {first_line(error).rstrip('.')}.") from error


def to_tensor_if_numpy(x: Any) -> Any:
    """Converts an array with `to_tensor`; returns other values unchanged."""
    return to_tensor(x) if isinstance(x, np.ndarray) else x


def is_tensor(x: Any) -> bool:
    """Returns whether a value is a tensor."""
    return isinstance(x, Tensor)
