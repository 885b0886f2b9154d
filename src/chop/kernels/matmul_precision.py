"""Matmul precision of float32 products: torch's own switch, set for a while.

`torch.set_float32_matmul_precision("medium")` allows products in bfloat16, and so does
`torch.backends.mkldnn.matmul.fp32_precision = "bf16"` for CPUs alone. The other settings do not:
"high" asks for sums of two or three bfloat16 products, for which packed weights have no kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch

from chop.errors import check_known

MatmulPrecision = Literal["highest", "high", "medium"]
"""What torch calls them."""
PRECISE = ("none", "ieee")
"""What torch says of a backend that multiplies float32 in float32."""


def allows_bfloat16() -> bool:
    """Whether products of float32 on CPUs may be made in bfloat16."""
    _, cpu = _backends()
    return bool(cpu.fp32_precision == "bf16")


@contextmanager
def matmul_precision(precision: MatmulPrecision | None) -> Iterator[None]:
    """Context in which torch multiplies float32 so precisely; the switch is put back after it.

    The switch is that of the process: other threads see it too.

    Args:
        precision: as `torch.set_float32_matmul_precision` takes it; None changes nothing.

    Raises:
        ConfigError: it is none of these.

    Example:
        >>> with matmul_precision("medium"):
        ...     allows_bfloat16()
        True
        >>> allows_bfloat16()
        False
    """
    if precision is not None:
        check_known(precision, get_args(MatmulPrecision), "unknown precision of float32 products")
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
        if whole is not None:
            torch.set_float32_matmul_precision(whole)
        for backend, each in zip(_backends(), before, strict=True):
            if backend.fp32_precision != each:
                backend.fp32_precision = each


def _backends() -> tuple[Any, ...]:
    """Of GPUs and of CPUs."""
    cpu: Any = torch.backends.mkldnn  # whose switch the stubs lack
    return torch.backends.cuda.matmul, cpu.matmul


def _whole() -> str | None:
    """The setting of all backends; None where they were set one by one."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None
