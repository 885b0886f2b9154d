"""Original: what a capture keeps of its model besides tensors and leaves, to give the model back.

A captured module has the model's tensors and leaves, and scopes in the place of the modules that
the capture looked into. A skeleton has these modules' classes and plain attributes, and nothing
else: it weighs a few hundred bytes per module, however large the model is.
"""

from __future__ import annotations

import copy
import pickle
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor, fx, nn

from chop.captured.huggingface.cache_names import settled_name
from chop.captured.module_tree import Scope, computed_tensors
from chop.captured.overrides import why_not_copyable
from chop.captured.padding.masks import MASKS_AHEAD
from chop.errors import GraphError
from chop.private.modules import (
    COMPILED,
    MEMBERS,
    NOT_PERSISTENT,
    not_persistent,
    own_buffers,
    own_children,
    own_parameters,
    set_members,
)

KEY = "_original"
"""Where a captured module keeps its original."""
_OWN = frozenset({*MEMBERS, NOT_PERSISTENT, "training", COMPILED})


@dataclass(frozen=True)
class _Scope:
    """One module of a skeleton.

    Attributes:
        cls: its class.
        attributes: its plain attributes.
        children: the names of its children.
        buffers: the names of its buffers.
    """

    cls: type[nn.Module]
    attributes: dict[str, Any]
    children: tuple[str, ...]
    buffers: frozenset[str]


def list_sources(model: nn.Module) -> tuple[object, ...]:
    """What tells a model from others of its class: itself, or what copies of its capture share.

    Args:
        model: any module; of a capture, the model that was captured counts while it lives.
    """
    original: Original | None = vars(model).get(KEY)
    if original is None:
        return (model,)
    captured_from = original.model
    return (original,) if captured_from is None else (original, captured_from)


class Original:
    """The classes and plain attributes of the modules that a capture looked into.

    Copies of a graph share it, since nothing changes it. A pickle has it where classes and
    attributes can be pickled, and otherwise the reason why not.

    Args:
        model: the captured model, or one of the same class and settings.
        captured: the capture, whose scopes say which modules were looked into.
    """

    def __init__(self, model: nn.Module, captured: nn.Module) -> None:
        self.failure: str | None = None
        self._scopes: dict[str, _Scope] = {}
        self._modules: dict[str, ref[nn.Module]] = {}
        looked_into = recorded_modules(model, captured)
        for path, module in model.named_modules():
            self._modules[path] = ref(module)
            if path in looked_into:
                plain = {name: x for name, x in vars(module).items() if name not in _OWN}
                reason = why_not_copyable(module)
                if reason is not None:
                    where = f"module '{path}'" if path else "the model"
                    self.failure = self.failure or f"{where} cannot be copied: {reason}"
                self._scopes[path] = _Scope(
                    type(module), plain, tuple(own_children(module)), frozenset(own_buffers(module))
                )

    @property
    def model(self) -> nn.Module | None:
        """The model that was captured; None where it is gone, or this was in a pickle."""
        reference = self._modules.get("")
        return None if reference is None else reference()

    def restore(self, captured: nn.Module) -> nn.Module:
        """A model of the original class with the leaves of `captured` and its tensors, shared.

        Modules and attributes are copies.

        Raises:
            GraphError: an attribute cannot be copied, the classes were lost in a pickle, or the
                modules are not those of the model.
        """
        if self.failure is not None:
            raise GraphError(f"to_module: {self.failure}.")
        self._check_tree(captured)
        scopes = dict(captured.named_modules())
        memo: dict[int, Any] = {id(x): x for x in (*captured.parameters(), *captured.buffers())}
        new: dict[str, nn.Module] = {}
        for path, scope in self._scopes.items():
            new[path] = scope.cls.__new__(scope.cls)
            memo[id(scopes[path])] = new[path]
        # What an attribute of one module says of another one means its copy.
        for path, reference in self._modules.items():
            module = reference()
            if module is not None and path in scopes:
                memo[id(module)] = new[path] if path in new else _copied(scopes[path], memo, path)
        for path, scope in self._scopes.items():
            _fill(new[path], scope, scopes[path], memo, path)
        return new[""]

    def _check_tree(self, captured: nn.Module) -> None:
        scopes = {p: m for p, m in captured.named_modules() if p == "" or is_scope(captured, p)}
        differing = {*scopes} ^ {*self._scopes}
        differing |= {
            f"{path}.{child}".lstrip(".")
            for path, scope in self._scopes.items()
            for child in scope.children
            if path in scopes and child not in own_children(scopes[path])
        }
        if differing:
            raise GraphError(
                f"to_module: the graph and the original model differ in '{min(differing)}'; "
                "`like` needs the class and the settings of the model that was captured."
            )

    def get_class(self, path: str) -> type[nn.Module] | None:
        """The class of a module that the capture looked into; None for other paths."""
        return self._scopes[path].cls if path in self._scopes else None

    def __deepcopy__(self, memo: dict[int, Any]) -> Original:
        return self

    def __getstate__(self) -> dict[str, Any]:
        try:
            skeleton = pickle.dumps(self._scopes)
        except Exception as error:
            lost = f"the model's classes were lost in a pickle ({type(error).__name__}: {error})"
            return {"failure": self.failure or lost, "skeleton": pickle.dumps({})}
        return {"failure": self.failure, "skeleton": skeleton}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.failure = state["failure"]
        self._scopes = pickle.loads(state["skeleton"])
        self._modules = {}


def is_scope(captured: nn.Module, path: str) -> bool:
    """Whether a capture has looked into the module at a path."""
    found: nn.Module | None = captured
    for step in path.split("."):
        found = own_children(found).get(step) if found is not None else None
        if not isinstance(found, Scope) and type(found) not in _CONTAINERS:
            return False
    return True


def recorded_modules(model: nn.Module, captured: nn.Module) -> dict[str, nn.Module]:
    """The modules of a model, by path, that a capture has looked into; itself is one."""
    modules = model.named_modules()
    return {path: x for path, x in modules if path == "" or is_scope(captured, path)}


_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def _fill(
    new: nn.Module, scope: _Scope, captured: nn.Module, memo: dict[int, Any], path: str
) -> None:
    vars(new).update(_copied(scope.attributes, memo, path))
    vars(new)["training"] = captured.training
    # A capture adds modules of its own, such as the dropout that a function was.
    inner = own_children(captured)
    set_members(
        new,
        dict(own_parameters(captured)),
        {n: x for n, x in own_buffers(captured).items() if n in scope.buffers},
        {n: _copied(inner[n], memo, f"{path}.{n}") for n in scope.children},
        set(not_persistent(captured)) & scope.buffers,
    )


def _copied(value: Any, memo: dict[int, Any], path: str) -> Any:
    try:
        if isinstance(value, nn.Module):
            memo |= computed_tensors(value)
        return copy.deepcopy(value, memo)
    except Exception as error:
        where = f"module '{path.lstrip('.')}'" if path else "the model"
        raise GraphError(
            f"to_module: {where} has what cannot be copied ({type(error).__name__}: {error})."
        ) from error


# --- what the graph was


def node_digests(graph: fx.Graph) -> dict[str, str]:
    """By node name, what it calls and what with: 8 hexadecimal digits each.

    Dtypes, devices and floating numbers are left out, since they follow a model that is moved.
    """
    return {node.name: node_digest(node) for node in graph.nodes}


def node_digest(node: fx.Node) -> str:
    """The digest of one node."""
    return f"{_digest(_target(node))}{arguments_digest(node)}"


def arguments_digest(node: fx.Node) -> str:
    """The last 8 digits of a node's digest; masks that quantization gives a call are left out."""
    named = {name: value for name, value in node.kwargs.items() if name != MASKS_AHEAD}
    return _digest("".join(_texts((node.args, named))))


def _target(node: fx.Node) -> str:
    named = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return f"{node.op} {named}"


def _digest(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        # A checkpoint of another version of transformers calls the cache of an output otherwise.
        for key in sorted(value, key=settled_name):
            yield f"{settled_name(key)}="
            yield from _texts(value[key])
    elif isinstance(value, tuple | list):
        yield "("
        for item in value:
            yield from _texts(item)
        yield ")"
    elif isinstance(value, slice):
        yield from _texts((value.start, value.stop, value.step))
    elif isinstance(value, torch.dtype | torch.device | float | Tensor):
        yield f"{type(value).__name__},"
    else:
        yield f"{value},"
