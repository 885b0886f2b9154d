"""What shows that no answer of a token changes with a later one."""

import torch

LENGTH, SIZE = 40, 16
LOWEST = torch.finfo(torch.float32).min


def inputs():
    """Two batches that differ in the last token alone."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, LENGTH, SIZE, generator=generator)
    changed = x.clone()
    changed[:, -1] = 5 * torch.randn(2, SIZE, generator=generator)
    return x, changed


def is_causal(call, given, changed):
    """Asserts causality; returns whether the last token has another answer."""
    with torch.no_grad():
        found, again = call(given), call(changed)
    assert found.isfinite().all()
    assert torch.equal(found[:, :-1], again[:, :-1])
    return not torch.equal(found[:, -1], again[:, -1])
