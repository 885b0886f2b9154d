"""Code generation for graphs whose members and inputs may have any names.

torch.fx writes the path of a module as `self.layer` and an input as a parameter of `forward`. A
layer called `class` would be a syntax error, one called `self` would hide the module, and an input
called `getattr` would hide a built-in function that the code calls.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import keyword
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import fx, nn

from chop.captured.module_tree import member
from chop.errors import CaptureError
from chop.private.torch_api import PathCodeGen, set_target, writes_plain_code

_MEMBERS = ("call_module", "get_attr")


def set_code_generator(graph: fx.Graph) -> None:
    """Sets a code generator that supports any names of members and inputs."""
    if writes_plain_code(graph):
        graph.set_codegen(AnyNames())


class AnyNames(PathCodeGen):
    """Code generator of a graph whose members and inputs may have any names."""

    @contextlib.contextmanager
    def retargeted(self, nodes: Iterable[fx.Node]) -> Iterator[None]:
        """Replaces the paths and inputs of nodes by valid Python names inside the block."""
        targets = {node: text for node in nodes if (text := _written(node)) != node.target}
        before = {node: node.target for node in targets}
        try:
            for node, text in targets.items():
                set_target(node, text)
            yield
        finally:
            for node, target in before.items():
                set_target(node, target)


def _written(node: fx.Node) -> Any:
    """Returns the target of a node in generated code."""
    if node.op in _MEMBERS:
        return ".".join(map(_escaped, str(node.target).split(".")))
    if node.op != "placeholder":
        return node.target
    # The text of a node has to be a unique name in the generated code. The builtin `input` is
    # allowed, because most of torch's layers use this name and no generated code calls it.
    name = input_name(node)
    return node.target if name == "input" else str(node.target)[: -len(name)] + repr(node)


def input_name(node: fx.Node) -> str:
    """Returns the name of an input, without the stars of variadic parameters."""
    return str(node.target).lstrip("*")


def check_input_names(names: Iterable[str]) -> None:
    """Refuses input names that no function parameter can have.

    Raises:
        CaptureError: a name is invalid.
    """
    for name in names:
        if not _is_python_name(name):
            raise CaptureError(
                f"expected a Python identifier as the name of an input, got {name!r}; rename it, "
                f"or pass it in a dict, dummy_in={{'inputs': {{{name!r}: ...}}}}"
            )


def _is_python_name(name: str) -> bool:
    """Returns whether Python's parser reads the text as one unchanged name.

    >>> [_is_python_name(name) for name in ("fc", "class", "0", "a b")]
    [True, False, False, False]
    """
    same = unicodedata.normalize("NFKC", name) == name
    return same and name.isidentifier() and not keyword.iskeyword(name)


def _escaped(name: str) -> str:
    """Escapes one step of a path, which torch.fx writes as `.step` or `getattr(..., "step")`."""
    if _is_python_name(name):
        return name
    if keyword.iskeyword(name):
        return _escape(name[0]) + name[1:]
    # Quotes, backslashes and line breaks would end the string.
    return "".join(x if x.isascii() and (x.isalnum() or x in "_- ") else _escape(x) for x in name)


def _escape(letter: str) -> str:
    return f"\\U{ord(letter):08x}"


def wrap_forward(
    generated: Callable[..., Any], inputs: Iterable[str], is_shadowed: bool = False
) -> Callable[..., Any]:
    """Wraps the generated `forward` to take inputs by their own names and read the model's members.

    Args:
        generated: function compiled by torch.fx.
        inputs: public input names, in the order of its parameters.
        is_shadowed: whether a member of the model has the name of an attribute of its class.
    """
    own, *parameters = inspect.signature(generated).parameters.values()
    given = dict(zip(inputs, parameters, strict=True))
    renamed = {name: parameter.name for name, parameter in given.items() if name != parameter.name}
    if not (renamed or is_shadowed):
        return generated

    @functools.wraps(generated)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # The generated code reads `self.graph`, which has to be the model's and not torch.fx's.
        members = _MemberView(self) if is_shadowed else self
        named = {renamed.get(name, name): value for name, value in kwargs.items()}
        return generated(members, *args, **named)

    public = [parameter.replace(name=name) for name, parameter in given.items()]
    vars(forward)["__signature__"] = inspect.Signature([own, *public])
    return forward


class _MemberView:
    """View of a module with its parameters, buffers and children as the only attributes."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return member(self._module, name)
