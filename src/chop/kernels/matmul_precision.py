"""Context manager for torch's float32 matmul precision.

`torch.set_float32_matmul_precision("medium")` allows products in bfloat16, and so does
`torch.backends.mkldnn.matmul.fp32_precision = "bf16"` for CPUs only. The other settings do not:
"high" requests sums of two or three bfloat16 products, for which packed weights have no kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch

from chop.errors import check_known

MatmulPrecision = Literal["highest", "high", "medium"]
"""Precisions that `torch.set_float32_matmul_precision` accepts."""
PRECISE = ("none", "ieee")
"""Settings of a backend that multiplies float32 in float32."""


def allows_bfloat16() -> bool:
    """Returns True if float32 products on CPUs may be computed in bfloat16."""
    _, cpu = _backends()
    return bool(cpu.fp32_precision == "bf16")


def allows_tf32() -> bool:
    """Returns True if float32 products on CPUs may be computed in tf32 (11 bits)."""
    _, cpu = _backends()
    return bool(cpu.fp32_precision == "tf32")


@contextmanager
def matmul_precision(precision: MatmulPrecision | None) -> Iterator[None]:
    """Sets torch's float32 matmul precision for the duration of a `with` block.

    The setting belongs to the process: other threads see it too.

    Args:
        precision: value for `torch.set_float32_matmul_precision`; None changes nothing.

    Raises:
        ConfigError: if the precision is unknown.

    Example:
        >>> with matmul_precision("medium"):
        ...     allows_bfloat16()
        True
        >>> allows_bfloat16()
        False
    """
    if precision is not None:
        check_known(precision, get_args(MatmulPrecision), "unknown float32 matmul precision")
    before = [backend.fp32_precision for backend in _backends()]
    is_precise = precision == "highest" and all(each in PRECISE for each in before)
    if precision is None or is_precise:
        yield
        return
    whole = _whole()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        # The common setting comes first, because it overwrites those of the backends.
        if whole is not None:
            torch.set_float32_matmul_precision(whole)
        for backend, each in zip(_backends(), before, strict=True):
            if backend.fp32_precision != each:
                backend.fp32_precision = each


def _backends() -> tuple[Any, ...]:
    """Returns the matmul settings of GPUs and CPUs."""
    cpu: Any = torch.backends.mkldnn  # the type stubs lack this attribute
    return torch.backends.cuda.matmul, cpu.matmul


def _whole() -> str | None:
    """Returns the common setting of all backends, or None if they were set individually."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None
