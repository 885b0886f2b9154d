"""Expert linear layer: a linear layer per expert, selected for each row.

E experts, S rows (a token for each of its experts), I inputs, O outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.private.modules import before_load_state_dict, copy_state_dict_hooks, own_parameters
from chop.private.torch_api import detect_fake_mode, is_transformed

IS_TRANSPOSED = "stacks_transposed"
"""Attribute that is true if state dicts store the matrices of an `ExpertLinear` as (I, O)."""


class ExpertLinear(nn.Module):
    """Linear layers of several experts, each applied to the rows assigned to it.

    Args:
        num_experts: E.
        in_features: I.
        out_features: O, of each expert.
        bias: whether each expert has one.

    Attributes:
        weight: (E * O, I), the stacked matrices of the experts.
        bias: (E, O) or None.

    Example:
        >>> layer = ExpertLinear(3, 8, 4)
        >>> layer(torch.ones(2, 8), torch.tensor([2, 0])).shape
        torch.Size([2, 4])
    """

    def __init__(
        self, num_experts: int, in_features: int, out_features: int, bias: bool = True
    ) -> None:
        super().__init__()
        self.num_experts, self.in_features, self.out_features = (
            num_experts,
            in_features,
            out_features,
        )
        self.weight = nn.Parameter(torch.empty(num_experts * out_features, in_features))
        self.bias = nn.Parameter(torch.empty(num_experts, out_features)) if bias else None
        bound = max(in_features, 1) ** -0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    @classmethod
    def of(cls, weight: nn.Parameter, bias: nn.Parameter | None, num_experts: int) -> Self:
        """Returns a layer with these parameters.

        Args:
            weight: (E * O, I).
            bias: (E, O) or None.
            num_experts: E.
        """
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer.num_experts, layer.in_features = num_experts, weight.shape[1]
        layer.out_features = weight.shape[0] // num_experts
        own_parameters(layer).update(weight=weight, bias=bias)
        return layer

    def forward(self, input: Tensor, expert: Tensor) -> Tensor:
        """Computes `F.linear` of each row with the matrix and the bias of its expert.

        Args:
            input: (S, I).
            expert: (S,), int64, 0 to E - 1.
        Returns: (S, O).
        """
        return expert_linear(input, expert, self.weight, self.bias, self.num_experts)

    def extra_repr(self) -> str:
        """Returns the sizes."""
        sizes = f"num_experts={self.num_experts}, in_features={self.in_features}"
        return f"{sizes}, out_features={self.out_features}, bias={self.bias is not None}"


def expert_linear(
    input: Tensor, expert: Tensor, weight: Tensor, bias: Tensor | None, num_experts: int
) -> Tensor:
    """Computes the result of an `ExpertLinear`.

    In a recording, a compiler or on distributed tensors each row gets a copy of its expert's
    matrix, since values are unknown. Otherwise the rows of an expert are multiplied at once, and
    experts without rows are skipped.

    Args:
        input: (S, I).
        expert: (S,), int64.
        weight: (E * O, I).
        bias: (E, O) or None.
        num_experts: E.
    Returns: (S, O).
    """
    weight_EOI = weight.view(num_experts, -1, weight.shape[1])
    if is_traced(input):
        y = torch.bmm(weight_EOI[expert], input.unsqueeze(-1)).squeeze(-1)
        return y if bias is None else y + bias[expert]

    def multiply(rows: Tensor, number: int) -> Tensor:
        return F.linear(rows, weight_EOI[number], None if bias is None else bias[number])

    return apply_by_expert(input, expert, weight_EOI.shape[:2], multiply)


def is_traced(x: Tensor) -> bool:
    """Returns whether a tensor has no local values to branch on: it is traced or a DTensor."""
    is_plain = type(x) is Tensor and not x.is_meta and not is_transformed()
    return torch.compiler.is_compiling() or not is_plain or detect_fake_mode(x) is not None


def apply_by_expert(
    input: Tensor,
    expert: Tensor,
    sizes: tuple[int, ...],
    multiply: Callable[[Tensor, int], Tensor],
) -> Tensor:
    """Applies a function to the rows of each expert and returns the results in input order.

    Args:
        input: (S, I).
        expert: (S,), int64.
        sizes: E and O.
        multiply: maps the rows of an expert, (n, I), and its number to (n, O). It is called for
            experts with rows only.
    Returns: (S, O).

    Raises:
        IndexError: an expert number is out of range.
    """
    num_experts, outputs = sizes
    # Sorted by expert, the rows of one expert are adjacent, so that one product serves them all.
    order = expert.argsort(stable=True)
    counts = torch.bincount(expert, minlength=num_experts).tolist()
    if len(counts) > num_experts:
        raise IndexError(f"expected experts 0 to {num_experts - 1}, got {len(counts) - 1}")
    parts = input[order].split(counts)
    results = [multiply(rows, number) for number, rows in enumerate(parts) if len(rows)]
    if not results:
        return input.new_empty(0, outputs)
    # The inverse permutation brings the rows back into the order of the input.
    return torch.cat(results)[order.argsort()]


def stacks_transposed(module: nn.Module) -> bool | None:
    """Returns whether state dicts store the matrices of an `ExpertLinear` as (inputs, outputs).

    None if they store one matrix for all experts, and for other modules.
    """
    is_transposed: bool | None = vars(module).get(IS_TRANSPOSED)
    return is_transposed


def stacked_shape(module: nn.Module) -> tuple[int, ...] | None:
    """Returns the shape of an `ExpertLinear` weight in state dicts."""
    is_transposed = stacks_transposed(module)
    if is_transposed is None or not isinstance(module, ExpertLinear):
        return None
    sizes = (module.out_features, module.in_features)
    return (module.num_experts, *(sizes[::-1] if is_transposed else sizes))


def stack_in_state_dicts(module: nn.Module, transposed: bool) -> None:
    """Makes state dicts store the weight of an `ExpertLinear` as one matrix per expert.

    Args:
        module: it is changed.
        transposed: (E, I, O) instead of (E, O, I).
    """
    vars(module)[IS_TRANSPOSED] = transposed
    # A layer that takes over another's `__dict__` shares its hooks, which may not support it.
    copy_state_dict_hooks(module)
    module.register_state_dict_post_hook(_saved)
    before_load_state_dict(module, functools.partial(_loaded, transposed))


def _saved(module: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    name = f"{prefix}weight"
    if name in state:
        stacked = state[name].unflatten(0, (module.num_experts, -1))
        state[name] = stacked.mT if stacks_transposed(module) else stacked


def _loaded(transposed: bool, state: dict[str, Any], prefix: str, *args: Any) -> None:
    name = f"{prefix}weight"
    if name in state and state[name].dim() == 3:
        stacked = state[name].mT if transposed else state[name]
        state[name] = stacked.flatten(0, 1)
