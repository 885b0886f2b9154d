"""Leaf modules: modules that become one node, and the tensors of their results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from chop.base.nested import tree_tensors
from chop.captured.huggingface.cache import cache_tensors, is_cache
from chop.captured.layers.expert_linear import ExpertLinear
from chop.captured.overrides import why_not_its_class
from chop.captured.runtime import FastPathPadding
from chop.errors import CaptureError, ConfigError, describe, did_you_mean
from chop.private.modules import GRADIENT_HOOKS

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_TRANSFORMERS = (
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)
"""torch layers composed of other layers, whose Python can be recorded."""


class LeafRule:
    """Rule that selects the submodules that a capture keeps whole.

    Args:
        model: the model; used to check the names.
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
                f"expected the path of a submodule as a leaf, got {describe(path)}; "
                f"{did_you_mean(path, names)}"
            )

    def is_leaf(self, module: nn.Module, path: str) -> bool:
        """Returns whether the submodule becomes one `call_module` node."""
        if path in self._paths:
            return True
        # A replaced forward is Python code of the model, so it is traced.
        is_its_class = why_not_its_class(module) is None
        return is_its_class and (isinstance(module, self._classes) or is_torch_leaf(module))

    def is_chosen(self, module: nn.Module, path: str) -> bool:
        """Returns whether the submodule was requested as a leaf or became one."""
        return path in self._paths or isinstance(module, self._classes)

    def traced_modules(self, model: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
        """Yields a model and its submodules, without leaves and their contents."""
        yield path, model
        for name, child in model.named_children():
            inner = f"{path}.{name}" if path else name
            if not self.is_leaf(child, inner):
                yield from self.traced_modules(child, inner)

    def add(self, paths: Iterable[str]) -> None:
        """Makes more submodules leaves."""
        self._paths.update(paths)


def is_torch_leaf(module: nn.Module) -> bool:
    """Returns whether a module is one of torch's own layers, or is kept whole like them.

    torch's containers and transformers are excluded.
    """
    if isinstance(module, FastPathPadding | ExpertLinear):
        return True
    ours = type(module).__module__.startswith(("torch.nn", "torch.ao.nn"))
    return ours and not isinstance(module, (*_CONTAINERS, *_TRANSFORMERS))


def has_gradient_hooks(module: nn.Module) -> bool:
    """Returns whether a module has hooks on the gradients of its inputs and outputs."""
    return any(getattr(module, hooks) for hooks in GRADIENT_HOOKS)


def check_traceable(module: nn.Module) -> None:
    """Raises CaptureError for a submodule that can never be traced."""
    if isinstance(module, torch.jit.ScriptModule):
        raise CaptureError("it is compiled by TorchScript and has no Python source to record")
    if has_gradient_hooks(module):
        raise CaptureError(
            "its gradient hooks (register_full_backward_hook) apply to the module as a whole"
        )


def tensors_in(value: Any) -> list[Tensor]:
    """Returns all tensors of nested tuples, lists, mappings, dataclasses and caches, in order."""
    return [*tree_tensors(value, inside=lambda x: cache_tensors(x) if is_cache(x) else ())]
