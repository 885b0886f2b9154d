"""Plain names: members of a graph called so that torch's exporter can write them in Python.

torch's exporter generates code of its own, and reads members as attributes: a layer called `class`
is no Python there, and one called `graph` is a method of `torch.fx.GraphModule`.
"""

from __future__ import annotations

import functools
import keyword
import unicodedata
from collections.abc import Collection, Iterable, Iterator

from torch import fx, nn

from chop.ir.graph import MaseGraph
from chop.private.modules import MEMBERS, own_children


def give_plain_names(mg: MaseGraph) -> None:
    """Gives members that code cannot name others: `class` becomes `class_`.

    Members of the modules that nodes call keep theirs: their own code reads them.

    Args:
        mg: the graph, which is changed.
    """
    model = mg.model
    called = {str(node.target) for node in mg.nodes if node.op == "call_module"}
    scopes = [*_not_called(model, called)]
    renamed = {id(scope): _new_names(scope) for scope in scopes}
    if not any(renamed.values()):
        return
    for node in mg.nodes:
        if node.op in ("call_module", "get_attr"):
            node.target = ".".join(_new_steps(model, str(node.target).split("."), renamed))
    for scope in scopes:
        _rename(scope, renamed[id(scope)])


def _not_called(module: nn.Module, called: Collection[str], path: str = "") -> Iterator[nn.Module]:
    """A module and those below it that no node calls, nor a module that a node calls."""
    yield module
    for name, child in own_children(module).items():
        inner = f"{path}.{name}" if path else name
        if child is not None and inner not in called:
            yield from _not_called(child, called, inner)


def _new_names(scope: nn.Module) -> dict[str, str]:
    """The new names of members, by the old ones that have to go."""
    taken = {name for place in MEMBERS for name in getattr(scope, place)}
    found = {}
    for name in [*taken]:
        plain = _in_plain_letters(name)
        while plain != name and plain in taken:
            plain += "_"
        if plain != name:
            found[name] = plain
            taken.add(plain)
    return found


def _in_plain_letters(name: str) -> str:
    text = unicodedata.normalize("NFKC", name)
    text = "".join(x if x.isalnum() or x in "_- " else "_" for x in text)
    taken = keyword.iskeyword(text) or hasattr(_empty(), text)
    return f"{text}_" if taken else text


@functools.cache
def _empty() -> fx.GraphModule:
    return fx.GraphModule(nn.Module(), fx.Graph())


def _new_steps(
    model: nn.Module, steps: Iterable[str], renamed: dict[int, dict[str, str]]
) -> list[str]:
    found, module = [], model
    for step in steps:
        found.append(renamed.get(id(module), {}).get(step, step))
        module = own_children(module).get(step) or module
    return found


def _rename(scope: nn.Module, names: dict[str, str]) -> None:
    for place in MEMBERS:
        members = getattr(scope, place)
        moved = {names.get(name, name): member for name, member in members.items()}
        members.clear()
        members.update(moved)
