"""Distance between two results."""

import torch
from torch import Tensor


def distance(actual: Tensor, expected: Tensor) -> float:
    """Returns the largest difference, relative to the largest expected value above one."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return float("inf")
    if actual.layout is not torch.strided:
        actual, expected = actual.to_dense(), expected.to_dense()
    if torch.equal(actual, expected) or actual.numel() == 0:
        return 0.0
    ours, theirs = actual.double(), expected.double()
    if not torch.equal(ours.isnan(), theirs.isnan()):
        return float("inf")
    # Equal infinities count as no difference; their subtraction gives NaN.
    gap = torch.where(ours == theirs, 0.0, ours - theirs).abs().nan_to_num(0.0)
    finite = theirs[theirs.isfinite()].abs()
    return float(gap.max()) / max(1.0, float(finite.max()) if finite.numel() else 1.0)
