"""Low-rank adapters (LoRA) on linear layers. Source: Hu et al. 2021, arXiv:2106.09685, section 4.1.

A frozen weight W (out, in) gets a trained update of low rank, W + (alpha / rank) B A, with A
(rank, in) and B (out, rank).
"""

from __future__ import annotations

import math
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.errors import ConfigError, GraphError
from chop.formats import QuantSpec
from chop.nn.quantized import QuantizedOperator, QuantLinear
from chop.nn.quantized.state import COPIES
from chop.private.modules import own_children, own_parameters, set_members

ADAPTER_MODULES = ("lora_A", "lora_B", "lora_dropout")
RECORD = "frozen_before_lora"


class LoraLinear(QuantLinear):
    """`QuantLinear` with a low-rank adapter: `QuantLinear(x) + scaling * B(A(dropout(x)))`.

    Input (..., in_features) to (..., out_features). Weight and bias keep their `state_dict` keys;
    the adapter adds `lora_A.weight` (rank, in_features) and `lora_B.weight` (out_features, rank).
    A starts Kaiming-uniform (a = sqrt 5) and B at zero, so a new adapter does not change the
    output. The adapter reads the unquantized input, and the format of `data_out` applies to the
    sum.

    On a pruned layer the update is masked like the weight, so the layer stays pruned.

    Args:
        in_features: size of the last input dimension.
        out_features: size of the last output dimension.
        bias: whether there is a bias.
        rank: rank of the update, at least 1.
        alpha: scales the update by `alpha / rank`.
        dropout: dropout probability of the adapter's inputs, in [0, 1).
        use_rslora: scale by `alpha / sqrt(rank)` instead (Kalajdzievski 2023, arXiv:2312.03732).
        options: `device`, `dtype` and `config` (the formats).
    Raises:
        ConfigError: if a number is out of range.
    """

    alpha: float
    use_rslora: bool
    lora_A: nn.Linear  # noqa: N815 (the names of the paper and of state_dict keys)
    lora_B: nn.Linear  # noqa: N815
    lora_dropout: nn.Dropout

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        rank: int = 8,
        alpha: float = 8.0,
        dropout: float = 0.0,
        use_rslora: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(in_features, out_features, bias, **options)
        self._add_adapter(rank, alpha, dropout, use_rslora)

    @classmethod
    def around(
        cls,
        linear: nn.Linear,
        *,
        rank: int = 8,
        alpha: float = 8.0,
        dropout: float = 0.0,
        use_rslora: bool = False,
    ) -> Self:
        """Adds a new adapter to `linear`, with its device, dtype, formats and mode.

        Parameters, buffers (a pruning mask) and attributes are shared with `linear`, not copied. An
        existing adapter is dropped.
        """
        spec = linear.spec if isinstance(linear, QuantizedOperator) else QuantSpec()
        twin = cls.from_float(linear, spec)
        set_members(twin, children=dict(own_children(twin)))
        twin._add_adapter(rank, alpha, dropout, use_rslora)
        return twin

    def _add_adapter(self, rank: int, alpha: float, dropout: float, use_rslora: bool) -> None:
        check_adapter(rank, alpha, dropout)
        place: dict[str, Any] = {"device": self.weight.device, "dtype": self.weight.dtype}
        self.alpha, self.use_rslora = float(alpha), use_rslora
        # nn.Linear's own initialization is the Kaiming-uniform one that A needs.
        self.lora_A = nn.Linear(self.in_features, rank, bias=False, **place)
        self.lora_B = nn.Linear(rank, self.out_features, bias=False, **place)
        self.lora_dropout = nn.Dropout(dropout)
        nn.init.zeros_(self.lora_B.weight)
        self.train(self.training)

    @property
    def rank(self) -> int:
        """The maximum rank of the update."""
        return self.lora_A.out_features

    @property
    def scaling(self) -> float:
        """The factor of the product B A."""
        return self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        Q = self.quantize
        y = F.linear(Q("data_in", input), Q("weight", self.weight), Q("bias", self.bias))
        x = self.lora_dropout(input)
        if self.is_pruned:
            update = F.linear(x, self.weight_update())
        else:
            update = self.scaling * self.lora_B(self.lora_A(x))
        return Q("data_out", y + update)

    def weight_update(self, dtype: torch.dtype | None = None) -> Tensor:
        """Returns the update of the weight, (out_features, in_features); masked if pruned."""
        update = self.scaling * (self.lora_B.weight.to(dtype) @ self.lora_A.weight.to(dtype))
        return torch.where(self.weight_mask, update, 0) if self.is_pruned else update

    @torch.no_grad()
    def fused(self) -> nn.Linear:
        """Merges the update into the weight and removes the adapter.

        Returns an `nn.Linear`, or a `QuantLinear` if the layer has formats or is pruned; the
        formats then round the updated weight. The sum is computed in float32 or wider. The weight
        is a new parameter, and layers that shared the old one keep it.
        """
        is_plain = self.spec.is_float and not self.is_pruned
        cls: type[nn.Linear] = nn.Linear if is_plain else QuantLinear
        excluded = {"alpha", "use_rslora", *(("spec", *COPIES) if is_plain else ())}
        layer = cls.__new__(cls)
        layer.__dict__.update({k: v for k, v in vars(self).items() if k not in excluded})
        children = {k: child for k, child in self._modules.items() if k not in ADAPTER_MODULES}
        set_members(layer, dict(self._parameters), children=children)
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        weight = self.weight.to(wide) + self.weight_update(wide)
        layer.weight = nn.Parameter(weight.to(self.weight.dtype), self.weight.requires_grad)
        return layer

    def extra_repr(self) -> str:
        """Returns the layer's text, then the adapter's."""
        return f"{super().extra_repr()}, rank={self.rank}, alpha={self.alpha:g}"


def check_adapter(rank: int, alpha: float, dropout: float, where: str = "LoraLinear") -> None:
    """Raises ConfigError if a setting of an adapter is out of range."""
    if rank < 1:
        raise ConfigError(f"{where}: rank is {rank}, expected 1 or more.")
    if not 0 < alpha < math.inf:
        raise ConfigError(f"{where}: alpha is {alpha}, expected a number above 0.")
    if not 0 <= dropout < 1:
        raise ConfigError(f"{where}: dropout is {dropout}, expected 0 or more and below 1.")


def list_adapters(root: nn.Module) -> dict[str, LoraLinear]:
    """Returns the layers with an adapter, by dotted path."""
    return {path: m for path, m in root.named_modules() if isinstance(m, LoraLinear)}


def refuse_adapters(root: nn.Module, where: str) -> None:
    """Raises GraphError if a model has adapters, for passes that cannot preserve them."""
    present = list(list_adapters(root))
    if present:
        raise GraphError(
            f"{where}: the graph has LoRA adapters ({len(present)}, one on '{present[0]}'); run "
            "fuse_lora_weights_transform_pass(mg) first."
        )


def freeze(root: nn.Module) -> None:
    """Freezes every parameter; each module records which of its own were frozen before."""
    owners = [(module, own_parameters(module)) for module in root.modules()]
    for module, parameters in owners:
        frozen = [n for n, p in parameters.items() if p is not None and not p.requires_grad]
        if parameters:
            setattr(module, RECORD, tuple(frozen))
    for parameter in root.parameters():
        parameter.requires_grad_(False)


def unfreeze(root: nn.Module) -> None:
    """Makes parameters trainable again, except those that were frozen before `freeze`."""
    for module in root.modules():
        if RECORD in vars(module):
            frozen = vars(module).pop(RECORD)
            for name, parameter in own_parameters(module).items():
                if parameter is not None:
                    parameter.requires_grad_(name not in frozen)
