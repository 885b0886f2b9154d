"""Models whose Python computes with sizes: branches, tables, text, arithmetic."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.capture.adversarial.cases import WIDTH, Cases

CASES = case = Cases()


@case()
class LenAsScale(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(0) / len(x)


@case("equal")
class SizeAsScale(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(0) / x.shape[0] + math.sqrt(x.shape[1])


@case()
class SqrtOfBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / math.sqrt(x.shape[0])


@case()
class FloatOfBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * float(x.shape[0]) + int(x.shape[0])


@case()
class LogOfNumel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + math.log(x.numel())


@case()
class BranchOnBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] > 4 else x


@case()
class BranchOnBatchOne(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.squeeze(0) if x.shape[0] == 1 else x


@case()
class SqueezeAll(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.squeeze()


@case()
class BatchInTable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * {3: 1.0, 5: 2.0}.get(x.shape[0], 3.0)


@case()
class BatchInKey(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * {"3 rows": 1.0, "5 rows": 2.0}.get(f"{x.shape[0]} rows", 3.0)


@case()
class BatchInString(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * len(f"{'x' * x.shape[0]}-{x.shape[0]}")


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
class CeilOfBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[: math.ceil(x.shape[0] / 2)] * round(x.shape[0] * 0.3)


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
