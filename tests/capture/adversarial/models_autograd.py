"""Models that touch autograd, hooks, parametrizations, torch.func, scripts and custom operators."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

from tests.capture.adversarial.cases import WIDTH, Cases

CASES = case = Cases()


class WithLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


@case("equal")
class StopGradient(WithLinear):
    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        return y - y.detach() + x.round().detach() + self.fc(x).detach()


@case()
class InferenceMode(WithLinear):
    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            y = self.fc(x)
        return y.clone() + self.fc(x)


@case()
class SetGradEnabledFunction(WithLinear):
    def forward(self, x: Tensor) -> Tensor:
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        y = self.fc(x)
        torch.set_grad_enabled(before)
        return y + self.fc(x)


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, levels: int) -> Tensor:
        ctx.save_for_backward(x)
        return (x * levels).round() / levels

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < 1), None


@case()
class StraightThrough(WithLinear):
    def forward(self, x: Tensor) -> Tensor:
        return Straight.apply(self.fc(x), 4)


@case()
class RetainsGrad(WithLinear):
    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        if y.requires_grad:
            y.retain_grad()
        return y * 2


@case()
class ForwardHook(WithLinear):
    def __init__(self) -> None:
        super().__init__()
        self.fc.register_forward_hook(lambda module, args, out: out * 2)


@case()
class HookOnRoot(WithLinear):
    def __init__(self) -> None:
        super().__init__()
        self.register_forward_hook(lambda module, args, out: out + 100)


@case()
class HookOnContainer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.body.register_forward_pre_hook(lambda module, args: (args[0] * 3,))
        self.body.register_full_backward_hook(lambda module, gin, gout: (gin[0] * 2,))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


# torch's own deep copies of parameters lose their hooks.
@case("equal", copies=False)
class ParameterHook(WithLinear):
    def __init__(self) -> None:
        super().__init__()
        self.fc.weight.register_hook(lambda grad: grad * 0.5)


@case(copies=False)
class HookStoresFeatures(WithLinear):
    def __init__(self) -> None:
        super().__init__()
        self.features: list[Tensor] = []
        self.fc.register_forward_hook(lambda module, args, out: self.features.append(out))

    def forward(self, x: Tensor) -> Tensor:
        self.features.clear()
        self.fc(x)
        return self.features[0] * 2


@case()
class BackwardInForward(WithLinear):
    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            self.fc(z).sum().backward()
        return x + z.grad


@case("equal")
class Checkpointed(WithLinear):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda t: self.drop(self.fc(t)).relu(), x, use_reentrant=False)


@case()
class CheckpointedReentrant(WithLinear):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.fc, x, use_reentrant=True)


@case()
class SpectralNorm(WithLinear):
    def __init__(self) -> None:
        super().__init__()
        parametrizations.spectral_norm(self.fc)


@case()
class OldSpectralNorm(WithLinear):
    def __init__(self) -> None:
        super().__init__()
        torch.nn.utils.spectral_norm(self.fc)


class Symmetric(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.triu() + w.triu(1).t()


@case()
class OwnParametrization(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
        parametrize.register_parametrization(self, "weight", Symmetric())

    def forward(self, x: Tensor) -> Tensor:
        with parametrize.cached():
            return x @ self.weight + self.weight.sum()


@case(copies=False)
class Pruned(WithLinear):
    def __init__(self) -> None:
        super().__init__()
        prune.l1_unstructured(self.fc, "weight", 0.5)
