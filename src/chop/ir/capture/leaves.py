"""Which modules become one node, and what the nodes that cannot run on fake tensors return."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from chop.errors import ConfigError, did_you_mean
from chop.nn.quantized.base import QuantizedOperator

if TYPE_CHECKING:
    from chop.ir.capture.symbols import Sizes

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class LeafRule:
    """Says which submodules a capture does not look into.

    Args:
        model: the model; needed to check the names.
        leaves: module classes, or dotted paths of single submodules.

    Raises:
        ConfigError: a path names no submodule.
    """

    def __init__(self, model: nn.Module, leaves: Iterable[type[nn.Module] | str]) -> None:
        chosen = list(leaves)
        self._classes = tuple(leaf for leaf in chosen if isinstance(leaf, type))
        self._paths = {leaf for leaf in chosen if isinstance(leaf, str)}
        names = dict(model.named_modules(remove_duplicate=False))
        for path in self._paths - names.keys():
            raise ConfigError(
                f"expected the path of a submodule as a leaf, got {path!r}; "
                f"{did_you_mean(path, names)}"
            )

    def is_leaf(self, module: nn.Module, path: str) -> bool:
        """Whether the submodule becomes one `call_module` node."""
        if path in self._paths or isinstance(module, self._classes):
            return True
        return is_torch_leaf(module) or isinstance(module, QuantizedOperator)

    def add(self, paths: Iterable[str]) -> None:
        """Makes more submodules leaves."""
        self._paths.update(paths)


def is_torch_leaf(module: nn.Module) -> bool:
    """Whether a module is one of torch's own layers (its containers are not)."""
    ours = type(module).__module__.startswith(("torch.nn", "torch.ao.nn"))
    return ours and not isinstance(module, _CONTAINERS)


def recurrent_outputs(module: nn.RNNBase, x: Tensor, hx: Any = None) -> Any:
    """The outputs of LSTM, GRU and RNN by rule.

    Their fake kernels unroll the loop over time and would fix the sequence length.

    Args:
        module: the layer.
        x: `[time, batch, features]`, `[batch, time, features]` or `[time, features]`.
        hx: the initial state; it does not change the shapes.
    """
    directions = 2 if module.bidirectional else 1
    width = module.proj_size or module.hidden_size
    batch = () if x.dim() == 2 else (x.shape[0] if module.batch_first else x.shape[1],)

    def empty(*shape: Any) -> Tensor:
        return x.new_empty(shape).requires_grad_(torch.is_grad_enabled())

    def state(features: int) -> Tensor:
        return empty(module.num_layers * directions, *batch, features)

    output = empty(*x.shape[:-1], directions * width)
    if isinstance(module, nn.LSTM):
        return output, (state(width), state(module.hidden_size))
    return output, state(width)


@dataclasses.dataclass(frozen=True)
class Seen:
    """One call of a leaf in a real run.

    Args:
        example: its result at the example sizes.
        grown: its result at larger ones; None where that failed.
        operators: how many torch calls it made.
    """

    example: Any
    grown: Any
    operators: int = 0

    def as_fake(self, sizes: Sizes, module: nn.Module, arguments: Any) -> Any:
        """The result with fake tensors, whose sizes follow the inputs as they did in the runs."""
        known = [size for tensor in tensors_in(arguments) for size in tensor.shape]
        trained = torch.is_grad_enabled() and (
            any(parameter.requires_grad for parameter in module.parameters())
            or any(tensor.requires_grad for tensor in tensors_in(arguments))
        )

        def fake(example: Tensor, grown: Tensor | None) -> Tensor:
            grown_shape = grown.shape if grown is not None else [None] * example.dim()
            shape = [
                sizes.size_seen(a, b, known)
                for a, b in zip(example.shape, grown_shape, strict=True)
            ]
            result = torch.empty(shape, dtype=example.dtype, device=example.device)
            return result.requires_grad_(trained and example.is_floating_point())

        return _map_together(fake, self.example, self.grown)


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors of nested tuples, lists, mappings and dataclasses, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in tensors_in(item)]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensors_in(item)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tensors_in([getattr(value, field.name) for field in dataclasses.fields(value)])
    return []


def _map_together(function: Any, value: Any, other: Any) -> Any:
    """Rebuilds `value` with each tensor replaced by `function(tensor, its twin in other)`."""
    if isinstance(value, Tensor):
        return function(value, other)
    if isinstance(value, Mapping):
        items = {
            key: _map_together(function, item, None if other is None else other[key])
            for key, item in value.items()
        }
        return type(value)(**items) if dataclasses.is_dataclass(value) else items
    if isinstance(value, tuple | list):
        others = [None] * len(value) if other is None else other
        parts = [_map_together(function, a, b) for a, b in zip(value, others, strict=True)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: _map_together(
                function, getattr(value, field.name), getattr(other, field.name, None)
            )
            for field in dataclasses.fields(value)
        }
        return type(value)(**fields)
    return value
