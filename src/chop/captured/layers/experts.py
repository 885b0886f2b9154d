"""Fused experts of `transformers` as two layers.

A module of fused experts stores the matrices of all experts in two parameters and passes them to an
opaque function. Here each parameter is an `ExpertLinear`, and the rest are torch calls.
E experts, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import NamedTuple, Self

from torch import Tensor, nn

from chop.captured.joined import join_in_state_dicts
from chop.captured.layers.expert_linear import ExpertLinear, stack_in_state_dicts
from chop.captured.module_tree import STANDS_FOR, get_class
from chop.private.modules import PARAMETERS, own_children, own_parameters, set_members
from chop.private.transformers_api import ExpertTraits, apply_gate, expert_traits

LAYERS = ("gate_up", "up", "down")
"""Layers of a `FusedExperts`: the first or the second, and the last."""

Matrices = MutableMapping[int, nn.Parameter]
"""Layer weights by the `id` of the original parameter, which preserve sharing."""


class _Names(NamedTuple):
    """Parameter names of a layer of fused experts."""

    layer: str
    weight: str
    bias: str


def _names(traits: ExpertTraits) -> tuple[_Names, _Names]:
    first = "gate_up" if traits.has_gate else "up"
    return tuple(_Names(x, f"{x}_proj", f"{x}_proj_bias") for x in (first, "down"))  # type: ignore[return-value]


def matrices_by_parameter(module: nn.Module) -> dict[str, str]:
    """Returns the layer for each weight parameter of fused experts.

    Empty for other modules, and for experts with other parameters than two matrices per expert.
    """
    traits = expert_traits(module)
    if traits is None:
        return {}
    names, own = _names(traits), own_parameters(module)
    weights = [own.get(each.weight) for each in names]
    known = {each.weight for each in names}
    known |= {each.bias for each in names} if traits.has_bias else set()
    is_known = set(own) == known and all(x is not None for x in own.values())
    is_known &= all(x is not None and x.dim() == 3 and x.is_floating_point() for x in weights)
    if not is_known or any(True for child in module.children() for _ in child.parameters()):
        return {}
    return {each.weight: each.layer for each in names}


def expert_layer(module: nn.Module, name: str, weight: Tensor, shared: Matrices) -> ExpertLinear:
    """Returns the layer for one weight parameter of fused experts.

    Args:
        module: see `matrices_by_parameter`.
        name: name of the parameter.
        weight: its values, (E, O, I), or (E, I, O) if the module stores it so. The first layout is
            shared with the layer; the second is copied, since its rows are not contiguous.
        shared: weights of other layers; read and extended.
    """
    traits = expert_traits(module)
    assert traits is not None
    key = id(weight)
    if key not in shared:
        rows = weight.detach().mT if traits.is_transposed else weight.detach()
        shared[key] = nn.Parameter(rows.reshape(-1, rows.shape[-1]), weight.requires_grad)
    bias = own_parameters(module).get(f"{name}_bias")
    layer = ExpertLinear.of(shared[key], bias, len(weight))
    layer.training = module.training
    stack_in_state_dicts(layer, traits.is_transposed)
    return layer


class FusedExperts(nn.Module):
    """Fused experts of `transformers` whose two matrices are layers, see `LAYERS`.

    It computes the result of the module for any configured implementation. State dicts have the
    original parameters, such as `gate_up_proj`.
    """

    @classmethod
    def around(
        cls,
        module: nn.Module,
        shared: Matrices,
        made: Mapping[str, nn.Module] | None = None,
    ) -> Self:
        """Takes over the hooks, attributes, activation and mode of a module of `transformers`.

        Args:
            module: a module that `matrices_by_parameter` supports.
            shared: weights of layers; read and extended.
            made: existing layers by name; the others share the module's memory.
        """
        traits = expert_traits(module)
        assert traits is not None
        layers: dict[str, nn.Module | None] = dict(own_children(module))
        for name, layer in matrices_by_parameter(module).items():
            existing = (made or {}).get(layer)
            weight = own_parameters(module)[name]
            assert weight is not None
            layers[layer] = existing or expert_layer(module, name, weight, shared)
        twin = cls.__new__(cls)
        nn.Module.__init__(twin)
        twin.__dict__.update({n: x for n, x in vars(module).items() if n != PARAMETERS})
        vars(twin)[STANDS_FOR] = type(module)
        set_members(twin, {}, children=layers)
        joined = {}
        for each in _names(traits):
            joined[each.weight] = (f"{each.layer}.weight",)
            if traits.has_bias:
                joined[each.bias] = (f"{each.layer}.bias",)
        join_in_state_dicts(twin, joined)
        return twin

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Has the arguments and the result of the experts of `transformers`.

        Args:
            hidden_states: (tokens, I).
            top_k_index: (tokens, k), int64: the experts of each token.
            top_k_weights: (tokens, k): weights of their results.
        Returns: (tokens, I).
        """
        layers, count = self._modules, top_k_index.shape[-1]
        expert = top_k_index.reshape(-1)
        rows = hidden_states.repeat_interleave(count, 0)
        if "gate_up" in layers:
            inner = apply_gate(get_class(self), self, layers["gate_up"](rows, expert))  # type: ignore[misc]
        else:
            inner = self.act_fn(layers["up"](rows, expert))  # type: ignore[misc, operator]
        results = layers["down"](inner, expert) * top_k_weights.reshape(-1, 1)  # type: ignore[misc]
        total = results.view(-1, count, results.shape[-1]).sum(1)
        return total.to(hidden_states.dtype)  # type: ignore[no-any-return]
