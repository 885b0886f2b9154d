"""Seeding of all random generators in use."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_everything(seed: int) -> None:
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
