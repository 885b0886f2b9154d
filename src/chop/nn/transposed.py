"""Linear layers of libraries that store transposed weights, (in, out)."""

from __future__ import annotations

from typing import Any, Self

from torch import nn

from chop.private.modules import (
    PARAMETERS,
    before_load_state_dict,
    copy_state_dict_hooks,
    own_parameters,
    set_members,
)

FLAG = "stores_transposed"


class TransposedLinear(nn.Linear):
    """`nn.Linear` that replaces a layer with a weight (in_features, out_features).

    Its weight (out_features, in_features) is a view of the other layer's memory, and results are
    bit-identical. State dicts keep the layout of the other layer, also after the layer is
    quantized, packed or gets an adapter.
    """

    stores_transposed: bool

    @classmethod
    def around(cls, module: nn.Module) -> Self:
        """Takes over such a layer: its memory, hooks, attributes, device, dtype and mode.

        Args:
            module: with a parameter `weight` (in, out), and a `bias` (out) or None.
        """
        twin = cls.__new__(cls)
        nn.Module.__init__(twin)
        own = {name: x for name, x in vars(module).items() if name != PARAMETERS}
        weight: Any = module.weight
        parameters = dict(own_parameters(module))
        parameters["weight"] = nn.Parameter(weight.detach().t(), weight.requires_grad)
        twin.__dict__.update(own)
        set_members(twin, parameters)
        twin.in_features, twin.out_features = weight.shape
        transpose_in_state_dicts(twin)
        return twin


def stores_transposed(module: nn.Module) -> bool:
    """Returns whether state dicts store a layer's weight (out, in) as (in, out)."""
    return bool(vars(module).get(FLAG, False))


def transpose_in_state_dicts(module: nn.Module) -> None:
    """Makes state dicts of a layer store its weight transposed."""
    vars(module)[FLAG] = True
    # A layer that takes over another's `__dict__` has its hooks: they may not know the layer.
    copy_state_dict_hooks(module)
    module.register_state_dict_post_hook(_saved)
    before_load_state_dict(module, _loaded)


def _saved(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    _transpose(state, prefix)


def _loaded(state: dict[str, Any], prefix: str, *args: Any) -> None:
    _transpose(state, prefix)


def _transpose(state: dict[str, Any], prefix: str) -> None:
    name = f"{prefix}weight"
    if name in state:
        state[name] = state[name].t()
