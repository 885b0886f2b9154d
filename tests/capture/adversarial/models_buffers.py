"""Models that write into buffers and parameters: counters, statistics, rings."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.capture.adversarial.cases import WIDTH, Cases

CASES = case = Cases()


@case("equal")
class BufferCounter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return x * self.steps


@case()
class BufferInTraining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - self.mean


@case()
class BufferDataAssigned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.data = x.detach().mean(0)
        return x - self.mean


@case()
class BufferCopyAndRead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.last
        self.last.copy_(x.detach()[0])
        return y + self.last


@case()
class RingPointer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ring", torch.zeros(4, WIDTH))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.ring[self.at] = x.detach().mean(0)
        self.at = (self.at + 1) % 4
        return x + self.ring.mean(0)


@case()
class ClampsWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.fc.weight.clamp_(-0.1, 0.1)
        return self.fc(x)


@case("equal")
class RunningStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH, momentum=None)
        self.inst = nn.InstanceNorm1d(2, track_running_stats=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inst(self.norm(x).view(-1, 2, 2))


@case()
class FunctionalBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("m", torch.zeros(WIDTH))
        self.register_buffer("v", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.m, self.v, training=self.training)


@case()
class NormSetToEvalInForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        self.norm.eval()
        return self.norm(x)
