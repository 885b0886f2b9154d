"""Models whose arguments, results and children are lists, dicts, dataclasses and the like."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.capture.adversarial.cases import WIDTH, Cases

CASES = case = Cases()
THREE = torch.tensor(3.0)


class Pair(NamedTuple):
    first: Tensor
    second: Tensor | None = None


@case("equal")
class DictOut(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"z": x + 1, "a": [x, (x * 2,)], "n": None, "k": 3}


@case()
class SizeOut(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, int, Any]:
        return x, x.shape[0] * 2, x.shape


@case("equal")
class NamedOut(nn.Module):
    def forward(self, x: Tensor) -> Pair:
        return Pair(x, second=x * 2)


@case()
class OrderedOut(nn.Module):
    def forward(self, x: Tensor) -> collections.OrderedDict[str, Tensor]:
        return collections.OrderedDict(b=x, a=x + 1)


@case()
class StringOut(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, str]:
        return x, f"{x.shape[0]} rows"


@case()
class FloatOut(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, float]:
        return x * 2, x.sum().item()


@case()
class ShapeDictOut(nn.Module):
    def forward(self, x: Tensor) -> dict[int, Tensor]:
        return {x.shape[0]: x}


@case()
class RowsOut(nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        return list(x)


@case()
class GeneratorOut(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return (c for c in x.unbind(1))


@case()
class CallableOut(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return lambda y: x + y


@case("equal", inputs=lambda b: {"xs": [torch.randn(b, WIDTH), torch.randn(b, WIDTH)]})
class ListIn(nn.Module):
    def forward(self, xs: list[Tensor]) -> Tensor:
        return torch.cat(xs, 1) * len(xs)


@case(inputs=lambda b: {"d": {"a": torch.randn(b, 2)}})
class DictInWritten(nn.Module):
    def forward(self, d: dict[str, Tensor]) -> Tensor:
        d["c"] = d["a"] * 2
        return d["c"]


@case(inputs=lambda b: {"d": {"a": torch.randn(b, 2)}})
class DictPopped(nn.Module):
    def forward(self, d: dict[str, Tensor]) -> Tensor:
        return d.pop("a") + 1


@case("equal", inputs=lambda b: {"p": Pair(torch.randn(b, 2), torch.randn(b, 2))})
class NamedIn(nn.Module):
    def forward(self, p: Pair) -> Tensor:
        return p.first - p.second


@case()
class StarArguments(nn.Module):
    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        return sum(args, start=kwargs["x"])


@case("equal")
class DefaultTensor(nn.Module):
    def forward(self, x: Tensor, scale: Tensor = THREE, on: bool = True) -> Tensor:
        return x * scale if on else x


@case(inputs=lambda b: {"x": torch.randn(b, WIDTH), "kind": "sum" if b == 3 else "mean"})
class StringIn(nn.Module):
    def forward(self, x: Tensor, kind: str) -> Tensor:
        return getattr(x, kind)(1)


@case(inputs=lambda b: {"x": torch.randn(b, WIDTH), "n": torch.tensor(b)})
class IntTensorAsSize(nn.Module):
    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        return x + torch.ones(int(n), 1)


@case(inputs=lambda b: {"x": torch.randn(b, WIDTH), "lengths": torch.arange(b) % WIDTH + 1})
class LengthMask(nn.Module):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        mask = torch.arange(x.shape[1])[None] < lengths[:, None]
        return (x * mask).sum(1) / lengths


CASES[-1].expect = "equal"


@case("equal")
class SharedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.BatchNorm1d(WIDTH))
        self.first = block
        self.again = nn.ModuleDict({"block": block})

    def forward(self, x: Tensor) -> Tensor:
        return self.first(self.again["block"](x) + 1)


@case("equal")
class TiedTransposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.a(x), self.a.weight.t())


@case("equal")
class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.randn(WIDTH)) for _ in range(2))
        self.named = nn.ParameterDict({"b": nn.Parameter(torch.randn(WIDTH))})
        self.layers = nn.ModuleDict({"fc": nn.Linear(WIDTH, WIDTH), "act": nn.Tanh()})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return sum((x * s for s in self.scales), start=self.named["b"])


@case()
class HiddenInList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(WIDTH, WIDTH)]

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[0](x)


@case("equal")
class Forwards(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, 2)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.out_features + self.weight.sum()


@case("equal")
class CallsOtherMethod(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Linear(WIDTH, WIDTH)

    def encode(self, x: Tensor) -> Tensor:
        return self.child.forward(x)

    def forward(self, x: Tensor) -> Tensor:
        return nn.Linear.forward(self.child, self.encode(x))


@case("equal")
class ApplyFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return sum(p.pow(2).sum() for p in self.parameters()) + self.fc(x)


@case()
class StateDictInForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.state_dict()["fc.weight"]
