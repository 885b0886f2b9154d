"""Models that draw: dropout of all kinds, torch, Python and NumPy generators."""

from __future__ import annotations

import random
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.capture.adversarial.cases import WIDTH, Cases

CASES = case = Cases()


@case("equal")
class Dropouts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Dropout(0.5)
        self.b = nn.AlphaDropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x)) + self.a(x)


@case()
class AlwaysDropout(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5)


@case()
class InplaceDropout(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 1
        F.dropout(y, 0.5, self.training, inplace=True)
        return y


@case()
class DropPath(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        keep = x.new_empty(x.shape[0], 1).bernoulli_(0.5)
        return x * keep / 0.5


@case()
class LayerDrop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if not self.training or random.random() > 0.5:
                x = layer(x)
        return x


@case()
class LayerDropTorch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.training and torch.rand([]) < 0.5:
                continue
            x = layer(x)
        return x


@case()
class TorchGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rng = torch.Generator().manual_seed(0)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(WIDTH, generator=self.rng)


@case("equal")
class TorchNoise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x) * torch.rand(x.shape[0], 1)


@case()
class TorchNoiseItem(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand(1).item()


@case()
class RandomPermutation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[torch.randperm(x.shape[0])]


@case()
class ForksRng(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            noise = torch.rand(WIDTH)
        return x + noise + torch.rand(WIDTH)


@case()
class Distribution(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.distributions.Normal(x, 1.0).rsample()


@case()
class Gumbel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.gumbel_softmax(x, hard=True)


@case()
class Multinomial(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.multinomial(x.softmax(-1), 2)


@case("equal")
class RRelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.rrelu(x, training=self.training)


@case()
class InplaceDraws(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.empty_like(x).uniform_() + torch.zeros(WIDTH).normal_()


@case()
class Clock(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        started = time.perf_counter()
        y = x * 2
        self.elapsed = time.perf_counter() - started
        return y
