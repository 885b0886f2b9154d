"""Original model of a capture: its classes and plain attributes, to restore the model later.

A captured module has the model's tensors and leaves, and scopes in place of the traced modules. The
skeleton stores the classes and plain attributes of these modules. It takes a few hundred bytes per
module, for models of any size.
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

from chop.captured.huggingface.cache_names import saved_cache_name
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
"""Attribute of a captured module that holds its original."""
_OWN = frozenset({*MEMBERS, NOT_PERSISTENT, "training", COMPILED})


@dataclass(frozen=True)
class _Scope:
    """One module of a skeleton.

    Attributes:
        cls: its class.
        attributes: its plain attributes.
        children: names of its children.
        buffers: names of its buffers.
    """

    cls: type[nn.Module]
    attributes: dict[str, Any]
    children: tuple[str, ...]
    buffers: frozenset[str]


def list_sources(model: nn.Module) -> tuple[object, ...]:
    """Returns objects that identify a model: itself, or those that copies of its capture share.

    Args:
        model: any module. A capture is identified by its original model while that exists.
    """
    original: Original | None = vars(model).get(KEY)
    if original is None:
        return (model,)
    captured_from = original.model
    return (original,) if captured_from is None else (original, captured_from)


class Original:
    """Classes and plain attributes of the modules that a capture traced.

    Copies of a graph share it, since it is immutable. A pickle contains it if classes and
    attributes can be pickled, and otherwise the reason why not.

    Args:
        model: the captured model, or one of the same class and settings.
        captured: the capture, whose scopes are the traced modules.
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
        """The model that was captured; None if it was freed, or after unpickling."""
        reference = self._modules.get("")
        return None if reference is None else reference()

    def restore(self, captured: nn.Module) -> nn.Module:
        """Returns a model of the original class that shares the leaves and tensors of `captured`.

        Modules and attributes are copies.

        Raises:
            GraphError: an attribute cannot be copied, a pickle has lost the classes, or the modules
                differ from those of the model.
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
        # References to other modules in attributes become references to their copies.
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
        """Returns the class of a traced module; None for other paths."""
        return self._scopes[path].cls if path in self._scopes else None

    def __deepcopy__(self, memo: dict[int, Any]) -> Original:
        return self

    def __getstate__(self) -> dict[str, Any]:
        try:
            skeleton = pickle.dumps(self._scopes)
        except Exception as error:
            lost = f"the model's classes could not be pickled ({type(error).__name__}: {error})"
            return {"failure": self.failure or lost, "skeleton": pickle.dumps({})}
        return {"failure": self.failure, "skeleton": skeleton}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.failure = state["failure"]
        self._scopes = pickle.loads(state["skeleton"])
        self._modules = {}


def is_scope(captured: nn.Module, path: str) -> bool:
    """Returns whether a capture has traced the module at a path."""
    module: nn.Module | None = captured
    for step in path.split("."):
        module = own_children(module).get(step) if module is not None else None
        if not isinstance(module, Scope) and type(module) not in _CONTAINERS:
            return False
    return True


def recorded_modules(model: nn.Module, captured: nn.Module) -> dict[str, nn.Module]:
    """Returns the traced modules of a model by path, including the model itself."""
    modules = model.named_modules()
    return {path: x for path, x in modules if path == "" or is_scope(captured, path)}


_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def _fill(
    new: nn.Module, scope: _Scope, captured: nn.Module, memo: dict[int, Any], path: str
) -> None:
    vars(new).update(_copied(scope.attributes, memo, path))
    vars(new)["training"] = captured.training
    # A capture adds modules, such as an `nn.Dropout` for a functional dropout.
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
            f"to_module: {where} has attributes that cannot be copied ({type(error).__name__}: "
            f"{error})."
        ) from error


# --- what the graph was


def node_digests(graph: fx.Graph) -> dict[str, str]:
    """Returns a digest of target and arguments for each node name, 8 hexadecimal digits each.

    Dtypes, devices and floating-point numbers are excluded, since they change with the model.
    """
    return {node.name: node_digest(node) for node in graph.nodes}


def node_digest(node: fx.Node) -> str:
    """Returns the digest of one node."""
    return f"{_digest(_target(node))}{arguments_digest(node)}"


def arguments_digest(node: fx.Node) -> str:
    """Returns the last 8 digits of a node's digest, without masks added by quantization."""
    named = {name: value for name, value in node.kwargs.items() if name != MASKS_AHEAD}
    return _digest("".join(_texts((node.args, named))))


def _target(node: fx.Node) -> str:
    named = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return f"{node.op} {named}"


def _digest(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        # The name of the cache in an output differs between versions of transformers.
        for key in sorted(value, key=saved_cache_name):
            yield f"{saved_cache_name(key)}="
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
