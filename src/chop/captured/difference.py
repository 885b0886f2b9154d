"""Difference of two results."""

import torch
from torch import Tensor


def distance(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest expected value above one."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    if found.layout is not torch.strided:
        found, expected = found.to_dense(), expected.to_dense()
    if torch.equal(found, expected) or found.numel() == 0:
        return 0.0
    ours, theirs = found.double(), expected.double()
    if not torch.equal(ours.isnan(), theirs.isnan()):
        return float("inf")
    gap = torch.where(ours == theirs, 0.0, ours - theirs).abs().nan_to_num(0.0)
    finite = theirs[theirs.isfinite()].abs()
    return float(gap.max()) / max(1.0, float(finite.max()) if finite.numel() else 1.0)
