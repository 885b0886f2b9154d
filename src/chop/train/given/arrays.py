"""Conversion of sparse, masked and structured arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.errors import ConfigError

SCIPY_SPARSE = "scipy.sparse"


def dense(value: Any) -> Any:
    """Converts a sparse matrix of scipy or torch to a dense one. Returns other values unchanged.

    Raises:
        ConfigError: if the array is structured or has masked numbers.
    """
    if isinstance(value, Tensor) and value.is_nested:
        return list(value.unbind())
    if isinstance(value, Tensor):
        return value if value.layout == torch.strided else value.to_dense()
    if type(value).__module__.startswith(SCIPY_SPARSE) and hasattr(value, "toarray"):
        return value.toarray()
    if isinstance(value, np.ma.MaskedArray):
        return _unmasked(value)
    if isinstance(value, np.ndarray) and value.dtype.names:
        raise ConfigError(
            "expected rows of numbers, got a structured array with the fields "
            f"{', '.join(value.dtype.names)}: pass pandas.DataFrame(array)."
        )
    return value


def _unmasked(array: np.ma.MaskedArray[Any, Any]) -> np.ndarray:
    missing = int(np.ma.getmaskarray(array).sum())
    if missing:
        raise ConfigError(
            f"got an array with {missing} masked numbers, which are missing: fill them "
            "(array.filled(value)) or leave their rows out."
        )
    return np.asarray(array)
