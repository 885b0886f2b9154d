"""Fake outputs of leaf modules, with shapes that follow those of eager runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from chop.base.nested import tree_map_with
from chop.capture.sizes.symbols import Sizes
from chop.errors import CaptureError


def check_has_fake_kernel(module: nn.Module) -> None:
    """Raises CaptureError for a leaf whose output shapes require an eager run."""
    if isinstance(module, torch.jit.ScriptModule):
        raise CaptureError("TorchScript modules run on real tensors only")


@dataclasses.dataclass(frozen=True)
class EagerOutput:
    """Result of one call of a leaf in an eager run.

    Args:
        example: result at the example sizes.
        grown: result at larger sizes; None if that run failed.
        operators: number of torch calls.
    """

    example: Any
    grown: Any
    operators: int = 0

    def as_fake(self, sizes: Sizes, sources: Sequence[Tensor]) -> Any:
        """Returns the result with fake tensors, whose sizes follow the inputs as in the eager runs.

        Args:
            sizes: sizes of the recording.
            sources: tensors it was computed from: arguments and parameters.
        """
        # Sizes of the leaf's own inputs come first: an equal size elsewhere is a coincidence.
        known = [size for tensor in sources for size in tensor.shape]
        trained = any(tensor.requires_grad for tensor in sources)

        def fake(example: Any, grown: Tensor | None) -> Any:
            if not isinstance(example, Tensor):
                return example
            grown_shape = grown.shape if grown is not None else [None] * example.dim()
            shape = [
                sizes.infer_size(a, b, known)
                for a, b in zip(example.shape, grown_shape, strict=True)
            ]
            result = torch.empty(shape, dtype=example.dtype, device=example.device)
            return with_grad_history(result, trained)

        return tree_map_with(fake, self.example, self.grown)


def with_grad_history(fake: Tensor, trained: bool) -> Tensor:
    """Returns a fake tensor as the result of an operation, which in-place operations may change.

    Args:
        fake: a tensor without history.
        trained: whether it was computed from tensors with gradients.
    """
    if trained and torch.is_grad_enabled() and fake.is_floating_point():
        return fake.requires_grad_().clone()
    return fake
