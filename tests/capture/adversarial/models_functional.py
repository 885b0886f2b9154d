"""Models with torch.func, scripts and checks of types."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.capture.adversarial.cases import WIDTH, Cases
from tests.capture.adversarial.models_autograd import WithLinear

CASES = case = Cases()


@case()
class Vmap(WithLinear):
    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(lambda row: self.fc(row).softmax(0))(x)


@case()
class FunctionalCall(WithLinear):
    def forward(self, x: Tensor) -> Tensor:
        doubled = {k: v * 2 for k, v in self.fc.named_parameters()}
        return torch.func.functional_call(self.fc, doubled, (x,))


@case()
class FuncGrad(WithLinear):
    def forward(self, x: Tensor) -> Tensor:
        return x - torch.func.grad(lambda t: self.fc(t).pow(2).sum())(x)


@case()
class Jacobian(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.func.vmap(torch.func.jacrev(lambda row: row.sin() * row.sum()))(x)


def scripted_body(x: Tensor) -> Tensor:
    return x * 2 if bool(x.sum() > 0) else x - 1


def script(function):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(function)


@case(copies=False)
class ScriptFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = script(scripted_body)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + 1


@case(copies=False)
class ScriptModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + 1


@case()
class CompilingBranch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return x * 0
        return F.relu(x)


@case()
class IsInstance(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2 if isinstance(x, Tensor) and hasattr(x, "unsqueeze") else x
        return y + (1 if torch.is_tensor(y) and not isinstance(y, nn.Parameter) else 0)


@case()
class ParameterInForward(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * nn.Parameter(torch.ones(WIDTH))


class Marked(Tensor):
    pass


@case(inputs=lambda b: {"x": torch.randn(b, WIDTH).as_subclass(Marked)})
class SubclassInput(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if isinstance(x, Marked) else x * 3


@case()
class AttributeOnTensor(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        y.scale = 3
        return y * y.scale
