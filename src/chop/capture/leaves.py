"""Leaf modules: which modules become one node, and fake outputs of those that need eager runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from chop.capture.hf_cache import cache_tensors, is_cache
from chop.capture.overrides import why_not_its_class
from chop.capture.runtime import FastPathPadding
from chop.errors import CaptureError, ConfigError, did_you_mean

if TYPE_CHECKING:
    from chop.capture.symbols import Sizes

GRADIENT_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
"""Where a module keeps the hooks on its gradients."""

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_TRANSFORMERS = (
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)
"""torch's layers that are made of others, in Python that can be recorded."""


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
        if path in self._paths:
            return True
        # What was put in the place of a layer's forward is the model's own Python.
        is_its_class = why_not_its_class(module) is None
        return is_its_class and (isinstance(module, self._classes) or is_torch_leaf(module))

    def is_chosen(self, module: nn.Module, path: str) -> bool:
        """Whether it is one of those that were asked for, or that turned out to need it."""
        return path in self._paths or isinstance(module, self._classes)

    def traced_modules(self, model: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
        """A model and its submodules, without leaves and what is in these."""
        yield path, model
        for name, child in model.named_children():
            inner = f"{path}.{name}" if path else name
            if not self.is_leaf(child, inner):
                yield from self.traced_modules(child, inner)

    def add(self, paths: Iterable[str]) -> None:
        """Makes more submodules leaves."""
        self._paths.update(paths)


def is_torch_leaf(module: nn.Module) -> bool:
    """Whether a module is one of torch's own layers, or stays whole as those do.

    torch's containers are no such layers, nor are its transformers.
    """
    if isinstance(module, FastPathPadding):
        return True
    ours = type(module).__module__.startswith(("torch.nn", "torch.ao.nn"))
    return ours and not isinstance(module, (*_CONTAINERS, *_TRANSFORMERS))


def has_gradient_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks on the gradients of its inputs and outputs."""
    return any(getattr(module, hooks) for hooks in GRADIENT_HOOKS)


def check_traceable(module: nn.Module) -> None:
    """Raises CaptureError for a submodule whose inside can't be written down in any case."""
    if isinstance(module, torch.jit.ScriptModule):
        raise CaptureError("TorchScript has compiled it, so that there is no Python to record")
    if has_gradient_hooks(module):
        raise CaptureError(
            "its hooks on gradients (register_full_backward_hook) work on the module as a whole"
        )


def check_has_fake_kernel(module: nn.Module) -> None:
    """Raises CaptureError for a leaf whose shapes only a real run can show."""
    if isinstance(module, torch.jit.ScriptModule):
        raise CaptureError("compiled code runs on real tensors only")


@dataclasses.dataclass(frozen=True)
class EagerOutput:
    """One call of a leaf in a real run.

    Args:
        example: its result at the example sizes.
        grown: its result at larger ones; None where that failed.
        operators: how many torch calls it made.
    """

    example: Any
    grown: Any
    operators: int = 0

    def as_fake(self, sizes: Sizes, sources: Sequence[Tensor]) -> Any:
        """The result with fake tensors, whose sizes follow the inputs as they did in the runs.

        Args:
            sizes: the sizes of the recording.
            sources: what it was computed from: arguments and parameters.
        """
        known = [size for tensor in sources for size in tensor.shape]
        trained = any(tensor.requires_grad for tensor in sources)

        def fake(example: Tensor, grown: Tensor | None) -> Tensor:
            grown_shape = grown.shape if grown is not None else [None] * example.dim()
            shape = [
                sizes.infer_size(a, b, known)
                for a, b in zip(example.shape, grown_shape, strict=True)
            ]
            result = torch.empty(shape, dtype=example.dtype, device=example.device)
            return with_grad_history(result, trained)

        return _map_together(fake, self.example, self.grown)


def with_grad_history(fake: Tensor, trained: bool) -> Tensor:
    """A fake tensor as the result of an operation, which may be changed in place.

    Args:
        fake: a tensor without history.
        trained: whether it was computed from tensors with gradients.
    """
    if trained and torch.is_grad_enabled() and fake.is_floating_point():
        return fake.requires_grad_().clone()
    return fake


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors of nested tuples, lists, mappings, dataclasses and caches, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in tensors_in(item)]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensors_in(item)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tensors_in([getattr(value, field.name) for field in dataclasses.fields(value)])
    return cache_tensors(value) if is_cache(value) else []


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
