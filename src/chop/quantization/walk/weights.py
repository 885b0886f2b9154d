"""Lazy weights, read when a part of a graph needs them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from chop.base.memory import release_freed
from chop.private.modules import not_persistent, own_buffers, own_parameters

SMALL = 2**16
"""Maximum size of tensors that are read at once and stay in memory: norms and biases."""


class LazyWeights:
    """Tensors of a model on the meta device that can be loaded and freed separately.

    A tensor that is not loaded is a single zero expanded to its shape. Tied tensors stay tied.

    Args:
        model: model whose tensors on the meta device are replaced in place.
        read: returns a new tensor by its name.
    """

    def __init__(self, model: nn.Module, read: Callable[[str], Tensor]) -> None:
        self._model, self._read = model, read
        self._lazy: dict[str, Tensor] = {}
        self._there: set[int] = set()
        self._placed: dict[int, Tensor] = {}
        self._changes: dict[int, list[Callable[[Tensor], None]]] = {}
        made: dict[int, Any] = {}
        for path, module in model.named_modules():
            for tensors in (own_parameters(module), own_buffers(module)):
                for name, x in list(tensors.items()):
                    if x is None or not x.is_meta:
                        continue
                    full = f"{path}.{name}" if path else name
                    tensors[name] = made.setdefault(id(x), _placeholder(x))
                    self._lazy[full] = made[id(x)]
        self.load(name for name, x in self._lazy.items() if x.numel() <= SMALL)

    def names_under(self, paths: Iterable[str]) -> list[str]:
        """Returns the names of the tensors at these paths, or of the modules at them."""
        wanted = tuple(paths)
        return [
            name
            for name in self._lazy
            if any(name == path or name.startswith(f"{path}.") for path in wanted)
        ]

    def load(self, names: Iterable[str]) -> None:
        """Loads tensors that are not in memory."""
        for name in names:
            x = self._lazy[name]
            if id(x) not in self._there:
                x.data = self._read(name)
                for change in self._changes.get(id(x), ()):
                    change(x.data)
                self._there.add(id(x))

    def change(self, x: Tensor, change: Callable[[Tensor], None]) -> None:
        """Changes a loaded tensor, and again after each reload."""
        change(x.data)
        self._changes.setdefault(id(x), []).append(change)

    def free(self, names: Iterable[str]) -> None:
        """Frees large tensors."""
        for name in names:
            x = self._lazy[name]
            if x.numel() > SMALL and id(x) not in self._placed:
                x.data = _zero(x)
                self._there.discard(id(x))
        release_freed()

    def free_unused(self, names: Iterable[str]) -> None:
        """Frees large tensors that the model no longer has, because they were packed."""
        used = {id(x) for x in self._model.parameters()} | {id(x) for x in self._model.buffers()}
        self.free(name for name in names if id(self._lazy[name]) not in used)

    def load_rest(self) -> None:
        """Loads the tensors that no part has called and the model still has."""
        present = {name for name, _ in self._model.named_parameters(remove_duplicate=False)}
        present |= {name for name, _ in self._model.named_buffers(remove_duplicate=False)}
        self.load(name for name in self._lazy if name in present)

    def state_under(self, paths: Iterable[str]) -> dict[str, Tensor]:
        """Returns the tensors that model files contain, for modules or tensors at these paths.

        Tensors already replaced by `put` under another name are omitted.
        """
        state: dict[str, Tensor] = {}
        seen: set[int] = set(self._placed)
        modules = dict(self._model.named_modules())
        for path in paths:
            owned = {path: self._lazy[path]} if path in self._lazy else {}
            owned |= list_tensors(modules[path], path) if path in modules else {}
            for name, x in owned.items():
                if id(x) not in seen:
                    seen.add(id(x))
                    state[name] = x.detach()
        return state

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Replaces tensors of the model, including tied ones."""
        for name, new in tensors.items():
            path, _, last = name.rpartition(".")
            owner = self._model.get_submodule(path)
            parameter = own_parameters(owner).get(last)
            if parameter is not None:
                parameter.data = new
                self._there.add(id(parameter))
                self._placed[id(parameter)] = parameter
                continue
            old = own_buffers(owner)[last]
            for module in self._model.modules():
                for key, buffer in list(own_buffers(module).items()):
                    if buffer is old:
                        own_buffers(module)[key] = new
            self._placed[id(new)] = new

    @contextlib.contextmanager
    def on_demand(self, read_directly: Iterable[str] = ()) -> Iterator[None]:
        """Loads the tensors of modules when they are called, and frees them, within the context.

        Args:
            read_directly: names of tensors that are read without a module call; they stay loaded
                within the context.
        """
        direct = [name for name in read_directly if name in self._lazy]
        self.load(direct)
        handles = []
        for path, module in self._model.named_modules():
            own = [*own_parameters(module), *own_buffers(module)]
            names = [f"{path}.{name}" if path else name for name in own]
            names = [name for name in names if name in self._lazy and name not in direct]
            if any(self._lazy[name].numel() > SMALL for name in names):
                handles += [
                    module.register_forward_pre_hook(lambda *_, names=names: self.load(names)),
                    module.register_forward_hook(lambda *_, names=names: self.free(names)),
                ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self.free(direct)


def _placeholder(x: Tensor) -> Tensor:
    if isinstance(x, nn.Parameter):
        return nn.Parameter(_zero(x), x.requires_grad)
    return _zero(x)


def _zero(x: Tensor) -> Tensor:
    return torch.zeros((), dtype=x.dtype).expand(x.shape)


def list_tensors(module: nn.Module, path: str) -> dict[str, Tensor]:
    """Returns the parameters and persistent buffers below a path by name, in their own shapes.

    State dicts may store other shapes, for example for experts and layers of GPT-2.
    """
    tensors: dict[str, Tensor] = {}
    for below, owner in module.named_modules(prefix=path):
        own = own_parameters(owner) | own_buffers(owner)
        names = own.keys() - not_persistent(owner)
        tensors |= {f"{below}.{n}": x for n, x in own.items() if n in names and x is not None}
    return tensors
