"""Models whose Python computes with sizes: branches, tables, text, arithmetic."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.capture.adversarial.cases import WIDTH, Cases

CASES = case = Cases()


@case()
class LenAsScale(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(0) / len(x)


@case()
class FloatOfBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * float(x.shape[0]) + int(x.shape[0])


@case()
class BranchOnBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] > 4 else x


@case()
class BatchInTable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * {3: 1.0, 5: 2.0}.get(x.shape[0], 3.0)


@case()
class BatchInKey(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * {"3 rows": 1.0, "5 rows": 2.0}.get(f"{x.shape[0]} rows", 3.0)


@case()
class BatchParity(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[0] // 2
        return torch.cat([x[half:], x[:half] * (x.shape[0] % 2 + 1)])


@case()
class MaxOfSizes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, max(x.shape) - x.shape[1])) + min(x.shape)


@case()
class PowerOfTwoPad(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        size = 1 << (x.shape[0] - 1).bit_length()
        return F.pad(x, (0, 0, 0, size - x.shape[0]))


@case()
class SameShapeAs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", torch.ones(3, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.memory if x.shape == self.memory.shape else x - 1


@case(inputs=lambda b: {"x": torch.randn(b, WIDTH), "y": torch.randn(b, WIDTH)})
class ShapesEqual(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y if x.shape == y.shape else x
