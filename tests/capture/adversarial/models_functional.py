"""Models with torch.func, scripts, custom operators and checks of types."""

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


@torch.library.custom_op("adversary::double", mutates_args=())
def double(x: Tensor) -> Tensor:
    return x * 2


@double.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


double.register_autograd(lambda ctx, grad: grad * 2)


@torch.library.custom_op("adversary::no_fake", mutates_args=())
def no_fake(x: Tensor) -> Tensor:
    return x * 3


@torch.library.custom_op("adversary::add_one_", mutates_args=("x",))
def add_one_(x: Tensor) -> None:
    x.add_(1)


@case("equal")
class CustomOperator(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return double(x) + torch.ops.adversary.double(x)


@case()
class CustomOperatorWithoutFake(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return no_fake(x.detach())


@case()
class CustomOperatorInplace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.detach().clone()
        add_one_(y)
        return y


@case()
class CompilingBranch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return x * 0
        return F.relu(x)


@case()
class SubclassCheck(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if type(x) is Tensor else x * 3


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
