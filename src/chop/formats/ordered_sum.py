"""Sums in a defined order, which are equal on every processor and in every kernel."""

from __future__ import annotations

from torch import Tensor


def sum_in_halves(terms: Tensor) -> Tensor:
    """Returns the sum over the first axis, shape (1, ...), overwriting `terms`.

    The second half of the terms is added to the first, the longer one, until one term is left.
    PyTorch's `sum` depends on the instruction set. `cpu/searches.h` has the same order.

    >>> import torch
    >>> sum_in_halves(torch.tensor([1.0, 2.0, 4.0]))
    tensor([7.])
    """
    while len(terms) > 1:
        half = (len(terms) + 1) // 2
        terms[: len(terms) - half].add_(terms[half:])
        terms = terms[:half]
    return terms
