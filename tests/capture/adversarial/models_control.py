"""Models whose Python decides: branches, loops, recursion, exceptions, shape arithmetic."""

from __future__ import annotations

import logging

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.capture.adversarial.cases import WIDTH, Cases

CASES = case = Cases()


@case()
class BranchOnSum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x - 1


@case()
class BranchOnItem(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        top = x.max().item()
        return x / top if top > 1 else x


@case()
class BranchOnAny(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if torch.isnan(x).any():
            x = torch.nan_to_num(x)
        return x + 1


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
class DataTensorLoop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        while x.norm() > 1:
            x = x / 2
        return x


@case()
class EarlyExit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
            if x.abs().max() < 0.3:
                break
        return x


@case()
class RowLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.fc(row) for row in x])


@case()
class RangeOverBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(x.shape[1])
        for i in range(x.size(0)):
            total = total + x[i] / (i + 1)
        return total


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


@case("equal")
class TrainingOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        y = self.fc(x)
        return (y, y * 2) if self.training else y


@case()
class GradEnabledBranch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if torch.is_grad_enabled() else x * 3


@case()
class RequiresGradBranch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.requires_grad else x * 3


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


@case()
class AssertOnValue(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        assert torch.isfinite(x).all(), "not finite"
        return x + 1


@case("equal")
class AssertOnShape(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        assert x.dim() == 2 and x.size(-1) == WIDTH, f"bad shape {tuple(x.shape)}"
        return x + 1


@case("equal")
class Logs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        logging.getLogger(__name__).debug("shape %s", x.shape)
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


@case("equal")
class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def states(self, x: Tensor):
        for layer in self.layers:
            x = layer(x)
            yield x

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(list(self.states(x)), 1)


@case("equal")
class Dispatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kind = "tanh"

    def forward(self, x: Tensor) -> Tensor:
        return getattr(torch, self.kind)(x) + {"tanh": F.relu, "relu": F.gelu}[self.kind](x)


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
class ExpertByIndex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.experts[int(x[:, :3].sum(0).argmax())](x)


@case()
class SortedByNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(sorted(x.unbind(1), key=lambda c: c.sum()), 1)


@case()
class MaxBuiltin(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * max(x.mean(), torch.tensor(0.1))


@case()
class InOperator(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 5 if 0.0 in x.relu() else x


@case()
class TruthOfMask(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if (x > 0).all() or (x < 0).all() else x


@case()
class ChunkLoop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([chunk.softmax(0) for chunk in x.split(2)])


@case()
class ZipOfRows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return sum(a * b for a, b in zip(x, x.flip(0), strict=True))


@case()
class StarUnpackBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        first, *rest = x
        return first + sum(rest)


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
