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
    """Checks that all parameters have their shapes.

    Raises:
        CaptureError: some wait for a first call.
    """
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise CaptureError(
            f"expected parameters with shapes, got {', '.join(lazy)} of lazy modules, which the "
            "first call makes; call the model once on an example before"
        )


def check_buffers(
    path: str,
    module: nn.Module,
    before: Mapping[str, Any],
    get_source: Callable[[Any], Any],
    write: Callable[[Any, Any], bool] | None,
) -> None:
    """Checks that the buffers of a module are those of before its forward.

    A graph has no node that binds a name of a module; its state would never move.

    Args:
        path: path of the module.
        module: the module.
        before: its buffers before.
        get_source: the tensor that another one is an alias of, itself for most.
        write: records that the new buffer is written into the old one, where it can; None where
            nothing may be written.

    Raises:
        CaptureError: one was replaced.
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
    """Modes that `forward` sets, and entries that it adds to an input or takes from it.

    Args:
        modules: the modules whose Python is recorded, by path.
        arguments: the inputs by name.
    """

    def __init__(
        self, modules: Iterable[tuple[str, nn.Module]], arguments: Mapping[str, Any]
    ) -> None:
        children = {id(m): (path, m) for path, module in modules for m, path in _near(path, module)}
        self._modes = [(path, module, module.training) for path, module in children.values()]
        self._contents = list(_contents(arguments))
        self._inference = torch.is_inference_mode_enabled()

    def check_mode(self) -> None:
        """Checks that no inference mode was entered.

        Raises:
            CaptureError: it was.
        """
        if torch.is_inference_mode_enabled() and not self._inference:
            raise CaptureError(
                "the model enters torch.inference_mode(), which a graph cannot; torch.no_grad() "
                "gives the same numbers"
            )

    def check(self) -> None:
        """Checks that everything is as it was before `forward`.

        Raises:
            CaptureError: it is not.
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
                    "graph does not; copy it first"
                )


def _near(path: str, module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """A module and its children: leaves are children whose inside is their own affair."""
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
