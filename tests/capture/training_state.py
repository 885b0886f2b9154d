"""Models that keep averages, counters, codes or queues while they train."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 4


class StepCounter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        y: Tensor = self.last(self.first(x).relu())
        return y


class RunningCenter(nn.Module):
    """Subtracts a running mean, which training moves before it reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)
        y: Tensor = self.last((h - self.mean).relu())
        return y


class EmaTeacher(nn.Module):
    """A teacher whose weights are averages of the student's; only training calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.teacher = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.student(x))
        if not self.training:
            return y
        with torch.no_grad():
            self.teacher.weight.mul_(0.99).add_(self.student.weight * 0.01)
            target = self.teacher(x)
        return y + 0.1 * target


class Watched(nn.Module):
    """Regions without gradients in both modes, before and after one that only training has."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        for place in range(2):
            with torch.no_grad():
                known = self.first(x * (place + 1))
            if self.training and place == 0:
                with torch.no_grad():
                    self.mean += self.last(known).mean(0)
        with torch.no_grad():
            target = self.last(known * 2)
        return torch.as_tensor(self.first(x) * known + self.last(x) + target - self.mean)


class Norm(nn.Module):
    """A batch norm of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("var", torch.ones(WIDTH))
        self.mean: Tensor
        self.var: Tensor

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.mean, self.var
        if self.training:
            mean, var = x.mean(0), x.var(0, unbiased=False)
            with torch.no_grad():
                self.mean.lerp_(mean, 0.1)
                self.var.lerp_(var, 0.1)
        return (x - mean) / torch.sqrt(var + 1e-5) * self.weight + self.bias


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.out = Norm(), Norm()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.last(self.norm(self.first(x)).relu()))
        return y


class Codebook(nn.Module):
    """VQ-VAE with a codebook of moving averages, and a straight-through gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(WIDTH, 3), nn.Linear(3, WIDTH)
        self.register_buffer("codes", torch.randn(8, 3))
        self.register_buffer("counts", torch.ones(8))
        self.codes: Tensor
        self.counts: Tensor
        self.register_buffer("sums", self.codes.clone())
        self.sums: Tensor

    def forward(self, x: Tensor) -> Tensor:
        z = self.encoder(x)
        apart = z.pow(2).sum(1, keepdim=True) - 2 * z @ self.codes.t() + self.codes.pow(2).sum(1)
        index = apart.argmin(1)
        code = self.codes[index]
        if self.training:
            with torch.no_grad():
                chosen = F.one_hot(index, 8).to(z.dtype)
                self.counts.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
                self.sums.mul_(0.9).add_(chosen.t() @ z, alpha=0.1)
                self.codes.copy_(self.sums / self.counts[:, None])
        y: Tensor = self.decoder(z + (code - z).detach())
        return y


class Queue(nn.Module):
    """MoCo: a momentum encoder and a queue of its keys."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 3).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(3, 16), dim=0))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))
        self.queue: Tensor
        self.place: Tensor

    def forward(self, x: Tensor) -> Tensor:
        q = F.normalize(self.query(x), dim=1)
        if not self.training:
            return q @ self.queue
        with torch.no_grad():
            pairs = zip(self.query.parameters(), self.key.parameters(), strict=True)
            for fast, slow in pairs:
                slow.mul_(0.9).add_(fast, alpha=0.1)
            k = F.normalize(self.key(x), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().detach()], 1)
        with torch.no_grad():
            index = (self.place + torch.arange(x.shape[0])) % 16
            self.queue.index_copy_(1, index, k.t())
            self.place.add_(x.shape[0]).remainder_(16)
        return logits


class CenteredTeacher(nn.Module):
    """DINO: the teacher's output is centered by an average of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = (
            nn.Sequential(nn.Linear(WIDTH, 8), nn.GELU(), nn.Linear(8, 6)) for _ in range(2)
        )
        self.teacher.requires_grad_(False)
        self.register_buffer("center", torch.zeros(1, 6))
        self.center: Tensor

    def forward(self, x: Tensor) -> Tensor:
        y = self.student(x)
        if not self.training:
            return torch.as_tensor(y.softmax(-1))
        with torch.no_grad():
            target = self.teacher(x)
            wanted = ((target - self.center) / 0.1).softmax(-1)
            self.center.mul_(0.9).add_(target.mean(0, keepdim=True) * 0.1)
        return -(wanted * (y / 0.5).log_softmax(-1)).sum(-1)


class ReplacedAverage(RunningCenter):
    """Binds new tensors to the names of its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))
        self.calls: Tensor

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
            self.calls = self.calls + 1
        y: Tensor = self.last((h - self.mean).relu())
        return y


class TwiceReplaced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = ReplacedAverage(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.inner(self.inner(x)))
        return y


class DataTeacher(EmaTeacher):
    """Replaces the data of the teacher's parameters."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.student(x))
        if not self.training:
            return y
        pairs = zip(self.student.parameters(), self.teacher.parameters(), strict=True)
        for own, average in pairs:
            average.data = average.data * 0.9 + own.data * 0.1
        with torch.no_grad():
            target = self.teacher(x)
        return y + 0.1 * target


class Ring(nn.Module):
    """A queue whose place is a number of Python: one node, which only training calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.randn(16, 3))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))
        self.rows: Tensor
        self.place: Tensor

    @torch.no_grad()
    def forward(self, rows: Tensor) -> Tensor:
        place, count = int(self.place), rows.shape[0]
        self.rows[place : place + count] = rows
        self.place[0] = (place + count) % 16
        return rows


class RingQueue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.ring = Ring()

    def forward(self, x: Tensor) -> Tensor:
        q = F.normalize(self.second(self.first(x).relu()), dim=1)
        logits: Tensor = q @ self.ring.rows.t().clone()
        if self.training:
            self.ring(q.detach())
        return logits


class Auxiliary(nn.Module):
    """A second head for training, whose result comes along; and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.aux = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.3))

    def forward(self, x: Tensor) -> Any:
        h = F.dropout(self.trunk(x), 0.2, self.training)
        return (self.head(h), self.aux(h)) if self.training else self.head(h)


MODELS: list[type[nn.Module]] = [
    *(StepCounter, RunningCenter, EmaTeacher, Normed, Queue, Codebook, DataTeacher),
    *(ReplacedAverage, TwiceReplaced, RingQueue, Auxiliary, Watched),
]
