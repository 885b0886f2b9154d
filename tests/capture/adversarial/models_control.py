"""Models whose Python decides: branches, loops, recursion, exceptions, shape arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.capture.adversarial.cases import WIDTH, Cases

CASES = case = Cases()


@case()
class BranchOnSum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x - 1


@case()
class BranchOnAllclose(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if torch.allclose(x, torch.zeros_like(x)):
            return x + 100
        return x


@case()
class BranchOnEqual(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 3 if torch.equal(x, x.abs()) else x * 5


@case()
class ScaleByItem(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.mean().item()


@case()
class ScaleByFloat(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * float(x[0, 0])


@case()
class ToList(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor([sum(row) for row in x.tolist()])


@case()
class NumpyRoundTrip(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy() * 2) + x


@case()
class NewTensorOfItems(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tensor([x[0, 0], 1.0, 2.0, 3.0])


@case()
class RowLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.fc(row) for row in x])


@case("equal")
class ColumnLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 3)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t : t + 1], h)
        return h


@case("equal")
class TrainingBranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)
        self.b = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if self.training else self.b(x)


@case()
class TryExceptShape(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        try:
            return x + torch.ones(3, 1) * x.view(3, WIDTH)
        except RuntimeError:
            return x - 7


@case()
class TryExceptValue(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        try:
            if x.sum() > 0:
                return x * 2
        except Exception:
            return x * 4
        return x


@case("equal")
class AssertOnShape(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        assert x.dim() == 2 and x.size(-1) == WIDTH, f"bad shape {tuple(x.shape)}"
        return x + 1


class Tree(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.child = Tree(depth - 1) if depth else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        return x if self.child is None else x + self.child(x)


@case("equal")
class Recursive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tree = Tree(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.tree(x)


@case()
class RecursiveHalves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] <= 1:
            return x
        half = x.shape[0] // 2
        return torch.cat([self.forward(x[:half]), self.forward(x[half:]) + 1])


@case()
class ExpertsInDataOrder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        choice = x[:, :3].argmax(1)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            chosen = choice == k
            if chosen.any():
                out[chosen] = expert(x[chosen])
        return out


@case()
class SortedByNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(sorted(x.unbind(1), key=lambda c: c.sum()), 1)


@case()
class InOperator(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 5 if 0.0 in x.relu() else x


@case()
class SlicedByValue(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, : int((x[0] > 0).sum()) + 1]


@case()
class NonZero(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[x > 0].sum() + x.nonzero().shape[0]


@case()
class BooleanMaskLength(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[x[:, 0] > 0]


@case()
class UniqueCount(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.unique(x.sign()).numel()


@case()
class RepeatByBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[0]).repeat_interleave(2) + torch.linspace(0, 1, 2 * x.shape[0])


@case()
class ListTimesBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tensor([[1.0]] * x.shape[0])


@case()
class TensorOfSize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / torch.tensor(x.shape[0]) + torch.tensor(x.shape).sum()


@case()
class FullOfSize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.full((x.shape[0], 1), x.shape[0] * 0.5)


@case()
class EyeOfBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.eye(len(x)) @ x - torch.tril(torch.ones(len(x), len(x))) @ x
