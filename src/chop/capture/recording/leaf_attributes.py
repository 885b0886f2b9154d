"""Changes of leaf attributes by a model's Python, which no node records."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from chop.capture.recording.graph_break import EffectError, Place
from chop.capture.recording.source import current_line
from chop.captured.leaves import LeafRule
from chop.captured.overrides import has_hooks, why_not_its_class
from chop.captured.state.code_search import code_names, list_functions, texts_in
from chop.captured.state.kinds import differing
from chop.captured.state.weak_cache import weak_cache
from chop.private.modules import HOOKS, MEMBERS

_PLAIN = (bool, int, float, str, type(None))
_CONTAINERS = (*MEMBERS, *HOOKS)
_Fields = tuple[dict[str, Any], dict[str, dict[Any, Any]]]
"""Attributes of a module, and the contents of its dicts of members and hooks."""


@contextlib.contextmanager
def watch_attributes(
    on_write: Callable[[nn.Module, str], None],
) -> Iterator[None]:
    """Calls `on_write(module, name)` before each module attribute is set inside the block."""
    usual = nn.Module.__setattr__

    def set_attribute(module: nn.Module, name: str, value: Any) -> None:
        on_write(module, name)
        usual(module, name, value)

    nn.Module.__setattr__ = set_attribute  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.__setattr__ = usual  # type: ignore[method-assign]


class LeafAttributes:
    """Detector of leaves that are called, or remain, with other attributes than before the run.

    A graph calls a leaf with its attributes at that time. No node records a mode, probability,
    momentum, parameter or hook that a forward sets before the call and possibly restores after it.
    A leaf may write its own attributes.

    Args:
        model: the model that is recorded.
        leaves: rule that selects modules to keep whole.
        running: paths of the modules whose Python is running, outermost first.
    """

    def __init__(
        self, model: nn.Module, leaves: LeafRule, running: Callable[[], tuple[str, ...]]
    ) -> None:
        self._running = running
        self._parts = {id(leaf): _parts(leaf, path) for path, leaf in _leaves(model, leaves)}
        self._before = {id(x): _fields(x) for parts in self._parts.values() for _, x in parts}
        self._called: dict[int, nn.Module] = {}
        self._writers: dict[tuple[int, str], Place] = {}

    def watch(self) -> contextlib.AbstractContextManager[None]:
        """Records the line of each assignment to an attribute of a leaf inside the block."""
        return watch_attributes(self._note)

    def _note(self, module: nn.Module, name: str) -> None:
        if id(module) in self._before:
            self._writers[id(module), name] = Place(self._running(), current_line())

    def check(self, leaf: nn.Module) -> None:
        """Checks a leaf that is about to be called.

        Raises:
            EffectError: its attributes would differ in a graph.
        """
        self._called[id(leaf)] = leaf
        self._check(leaf)

    def _check(self, leaf: nn.Module, at_end: bool = False) -> None:
        for path, part in self._parts.get(id(leaf), ()):
            change = _changed_attribute(part, self._before[id(part)])
            if change is not None:
                raise self._error(path, part, at_end, *change)

    def accept(self, leaf: nn.Module) -> None:
        """Accepts the changes that a call of a leaf made to its own attributes."""
        for _, part in self._parts.get(id(leaf), ()):
            self._before[id(part)] = _fields(part)

    def check_called(self) -> None:
        """Checks the called leaves at the end of the run.

        Raises:
            EffectError: the next call would start with other attributes.
        """
        for leaf in self._called.values():
            self._check(leaf, at_end=True)

    def _error(
        self, path: str, module: nn.Module, at_end: bool, name: str, before: Any, after: Any
    ) -> EffectError:
        here = Place(self._running(), current_line())
        place = self._writers.get((id(module), name), here)
        if name == "training":
            what = f"sets {path} to {'train()' if after else 'eval()'}"
        else:
            values = f" from {before!r} to {after!r}"
            known = isinstance(before, _PLAIN) and isinstance(after, _PLAIN)
            what = f"changes {path}.{name}{values if known else ''}"
        return EffectError(
            f"the model {what} while it runs, which a graph cannot",
            place,
            place.running if at_end else here.running,
        )


def _leaves(model: nn.Module, leaves: LeafRule) -> Iterator[tuple[str, nn.Module]]:
    """Returns the modules that are called as one node each."""
    for path, module in leaves.traced_modules(model):
        for name, child in module.named_children():
            inner = f"{path}.{name}" if path else name
            if leaves.is_leaf(child, inner):
                yield inner, child


def _parts(leaf: nn.Module, path: str) -> list[tuple[str, nn.Module]]:
    if isinstance(leaf, torch.jit.ScriptModule):
        return []
    return [(f"{path}.{name}" if name else path, part) for name, part in leaf.named_modules()]


def _fields(module: nn.Module) -> _Fields:
    fields = dict(vars(module))
    return fields, {name: dict(fields[name]) for name in _CONTAINERS if fields.get(name)}


def _changed_attribute(module: nn.Module, before: _Fields) -> tuple[str, Any, Any] | None:
    """Returns the name of a changed attribute or member that a module's code reads, and both
    values.
    """
    fields, contents = before
    now = vars(module)
    for name in _CONTAINERS:
        old, new = contents.get(name, {}), now.get(name) or {}
        for key in differing(old, new) if old or new else ():
            return (key if name in MEMBERS else name.lstrip("_")), ..., ...
    for name in differing(fields, now):
        # An attribute that the leaf's own code never mentions cannot change its result.
        if name not in _CONTAINERS and _reads(module, name):
            return name, fields.get(name, ...), now.get(name, ...)
    return None


def _reads(module: nn.Module, name: str) -> bool:
    """Returns whether a module's code reads an attribute, according to its classes."""
    if has_hooks(module) or why_not_its_class(module) is not None:
        return True
    return name in _names_in(type(module))


@weak_cache
def _names_in(cls: type) -> frozenset[str]:
    """Returns the names in the methods of a class and of its bases, up to `nn.Module`."""
    homes = [base for base in inspect.getmro(cls) if base not in (nn.Module, object)]
    members = [member for base in homes for member in vars(base).values()]
    codes = [inspect.unwrap(x).__code__ for member in members for x in list_functions(member)]
    return frozenset().union(*(code_names(code) | texts_in(code) for code in codes))
