"""Seeding of all random generators in use."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import numpy as np
import torch

from chop.config import Range, with_checked_arguments


@with_checked_arguments
def seed_everything(seed: Annotated[int, Range(0, 2**32 - 1)]) -> None:
    """Seeds Python, NumPy and PyTorch on every device.

    >>> seed_everything(1)
    >>> first = torch.rand(1)
    >>> seed_everything(1)
    >>> torch.equal(first, torch.rand(1))
    True
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Seeds all random generators in a context, and restores their states afterwards."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            seed_everything(seed)
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
