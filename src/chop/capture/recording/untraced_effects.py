"""Refused side effects that no node records: changes of modes, buffers and entries of inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from chop.errors import CaptureError
from chop.private.modules import own_buffers


def check_initialized(model: nn.Module) -> None:
    """Checks that all parameters are initialized.

    Raises:
        CaptureError: lazy modules have not been called yet.
    """
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise CaptureError(
            f"expected initialized parameters, got {', '.join(lazy)} of lazy modules; call the "
            "model once on an example first"
        )


def check_buffers(
    path: str,
    module: nn.Module,
    before: Mapping[str, Any],
    get_source: Callable[[Any], Any],
    write: Callable[[Any, Any], bool] | None,
) -> None:
    """Checks that the forward pass of a module has not replaced its buffers.

    A graph has no node that assigns an attribute of a module; its state would never change.

    Args:
        path: path of the module.
        module: the module.
        before: its buffers before the forward pass.
        get_source: returns the tensor behind an alias; most tensors are their own source.
        write: records a copy of the new buffer into the old one and returns whether it can. None:
            no writes allowed.

    Raises:
        CaptureError: a buffer was replaced.
    """
    for name, buffer in own_buffers(module).items():
        old = before.get(name)
        if buffer is not old and get_source(buffer) is not old:
            if write is not None and write(old, buffer):
                continue
            full = f"{path}.{name}" if path else name
            raise CaptureError(
                f"the model replaces its buffer {full} while it runs; a graph can only write "
                f"into a buffer (self.{name}.copy_(...))"
            )


class UntracedEffects:
    """Modes set by `forward`, and entries that it adds to or removes from an input.

    Args:
        modules: modules whose Python is recorded, by path.
        arguments: inputs by name.
    """

    def __init__(
        self, modules: Iterable[tuple[str, nn.Module]], arguments: Mapping[str, Any]
    ) -> None:
        children = {
            id(m): (path, m) for path, module in modules for m, path in _with_children(path, module)
        }
        self._modes = [(path, module, module.training) for path, module in children.values()]
        self._contents = list(_contents(arguments))
        # The caller may have enabled it, which is not the model's doing.
        self._inference = torch.is_inference_mode_enabled()

    def check_mode(self) -> None:
        """Checks that the model has not entered inference mode.

        Raises:
            CaptureError: it has.
        """
        if torch.is_inference_mode_enabled() and not self._inference:
            raise CaptureError(
                "the model enters torch.inference_mode(), which a graph cannot; use "
                "torch.no_grad(), which gives the same results"
            )

    def check(self) -> None:
        """Checks that modes and inputs are as before `forward`.

        Raises:
            CaptureError: one has changed.
        """
        for path, module, training in self._modes:
            if module.training != training:
                raise CaptureError(
                    f"the model sets {path or 'itself'} to "
                    f"{'train()' if module.training else 'eval()'} while it runs; override its "
                    "train() method instead"
                )
        for name, container, before in self._contents:
            if not _is_same(before, _items(container)):
                raise CaptureError(
                    f"the model adds, replaces or removes entries of its input {name}, which a "
                    "graph cannot; change a copy instead"
                )


def _with_children(path: str, module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yields a module and its children.

    Leaves are children too; modules inside of them may change freely.
    """
    yield module, path
    for name, child in module.named_children():
        yield child, f"{path}.{name}" if path else name


def _items(container: Any) -> dict[Any, Any]:
    return dict(container if isinstance(container, Mapping) else enumerate(container))


def _is_same(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> bool:
    return before.keys() == after.keys() and all(after[key] is before[key] for key in before)


def _contents(named: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    for key, value in named.items():
        name = f"{prefix}[{key!r}]" if prefix else str(key)
        if isinstance(value, dict | list):
            yield name, value, _items(value)
        if isinstance(value, dict | list | tuple):
            yield from _contents(_items(value), name)
