"""Models that write in place: on inputs, views, aliases, by index; strides and layouts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.capture.adversarial.cases import WIDTH, Cases

CASES = case = Cases()


@case()
class WritesInputOnly(nn.Module):
    def forward(self, x: Tensor) -> None:
        x.mul_(2)


@case()
class WritesInputView(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x[:, 0] = 0
        return x + 1


@case("equal")
class WritesView(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 1
        y.view(-1)[::2] += 1
        y[:, 1:3].mul_(2)
        return y


@case()
class WritesUnbound(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        for i, column in enumerate(y.unbind(1)):
            column.add_(i)
        return y


@case()
class ReadsViewAfterWrite(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        view = y[:, :2]
        y += 1
        return view


@case()
class ReshapeMaybeView(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        flat = y.t().reshape(-1)
        flat += 1
        return y


@case()
class ContiguousMaybeCopy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y.contiguous().add_(1)
        y.t().contiguous().add_(1)
        return y


@case()
class ToMaybeCopy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 1
        y.to(torch.float32).add_(1)
        y.to(torch.float64).add_(1)
        return y


@case()
class ReadsStride(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.as_strided(x.contiguous(), (x.shape[0], 2), (x.stride(0), 2))


@case(inputs=lambda b: {"x": torch.randn(b, 2, 2, 2).to(memory_format=torch.channels_last)})
class ChannelsLast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.is_contiguous(memory_format=torch.channels_last):
            return x.permute(0, 2, 3, 1).reshape(-1, 2)
        return x.reshape(-1, 2)


@case(inputs=lambda b: (lambda t: {"x": t, "y": t})(torch.randn(b, WIDTH)))
class SameTensorTwice(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x * 2 if x is y else x + y


@case(inputs=lambda b: (lambda t: {"x": t, "y": t[:, :2]})(torch.randn(b, WIDTH)))
class InputsOverlap(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return y


@case("equal")
class OutArgument(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        torch.add(x.detach(), 1, out=y)
        return y


@case()
class MaskedAssign(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[y < 0] = 0
        y[y > 1] *= 2
        return y


@case("equal")
class Scatters(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        index = x.argsort(1)
        y = torch.zeros_like(x).scatter_(1, index, x)
        return y.scatter_add(1, index, x) + x.gather(1, index)


@case()
class SetData(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 1
        y.data = y.data + 5
        return y


@case()
class DataWrite(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 1
        y.data.add_(5)
        return y


@case()
class DetachWrite(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 1
        y.detach().mul_(3)
        return y


@case()
class SetUnderscore(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.zeros(1)
        y.set_(x.detach() * 2)
        return y


@case()
class ResizeUnderscore(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.detach().clone()
        y.resize_(1, WIDTH)
        return y


@case()
class ReturnsInput(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


@case()
class ReturnsParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(2, 2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.table, x


@case("equal", inputs=lambda b: {"x": torch.randn(b, 0, WIDTH)})
class ZeroSized(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x.new_ones(x.shape[0], 1, WIDTH)], 1).sum(1)


@case("equal", inputs=lambda b: {"x": torch.randn(b, 1), "y": torch.randn(1, WIDTH)})
class Broadcasts(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y
