"""Weights that are read when a part of a graph needs them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from chop.base.memory import release_freed
from chop.private.modules import not_persistent, own_buffers, own_parameters

SMALL = 2**16
"""Numbers of a tensor that is read at once and stays: norms and biases."""


class LazyWeights:
    """The tensors of a model on the meta device, each of which can be read and let go.

    A tensor that is not there is one zero that is expanded to its shape. What is tied stays so.

    Args:
        model: its tensors on the meta device are replaced, in place.
        read: gives a tensor by its name, in memory of its own.
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
        """The names of the tensors at these paths, or of the modules at them."""
        wanted = tuple(paths)
        return [
            name
            for name in self._lazy
            if any(name == path or name.startswith(f"{path}.") for path in wanted)
        ]

    def load(self, names: Iterable[str]) -> None:
        """Reads tensors that are not there."""
        for name in names:
            x = self._lazy[name]
            if id(x) not in self._there:
                x.data = self._read(name)
                for change in self._changes.get(id(x), ()):
                    change(x.data)
                self._there.add(id(x))

    def change(self, x: Tensor, change: Callable[[Tensor], None]) -> None:
        """Changes a tensor that is there, and again whenever it is read."""
        change(x.data)
        self._changes.setdefault(id(x), []).append(change)

    def free(self, names: Iterable[str]) -> None:
        """Lets large tensors go, and their memory."""
        for name in names:
            x = self._lazy[name]
            if x.numel() > SMALL and id(x) not in self._placed:
                x.data = _zero(x)
                self._there.discard(id(x))
        release_freed()

    def free_unused(self, names: Iterable[str]) -> None:
        """Lets go of the large tensors among these that the model has no more: they are codes."""
        used = {id(x) for x in self._model.parameters()} | {id(x) for x in self._model.buffers()}
        self.free(name for name in names if id(self._lazy[name]) not in used)

    def load_rest(self) -> None:
        """Reads what no part has called and the model still has."""
        present = {name for name, _ in self._model.named_parameters(remove_duplicate=False)}
        present |= {name for name, _ in self._model.named_buffers(remove_duplicate=False)}
        self.load(name for name in self._lazy if name in present)

    def state_under(self, paths: Iterable[str]) -> dict[str, Tensor]:
        """The tensors that files of the model have, of modules or tensors at these paths.

        Without those that `put` has given their place already, under another name.
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
        """Gives tensors of the model the memory of others; what is tied to them has it too."""
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
        """Inside, modules read their tensors when they are called, and let them go.

        Args:
            read_directly: names of tensors that no module's call announces; they stay inside.
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
    """The parameters and persistent buffers below a path, by name, of the shapes that they have.

    State dicts may have them in others, as those of experts and of GPT-2's layers do.
    """
    found: dict[str, Tensor] = {}
    for below, owner in module.named_modules(prefix=path):
        own = own_parameters(owner) | own_buffers(owner)
        kept = own.keys() - not_persistent(owner)
        found |= {f"{below}.{n}": x for n, x in own.items() if n in kept and x is not None}
    return found
