"""Unreached parameters: matrices that no layer of the operator table holds, and their share.

A format, an adapter or codes go to layers of the table. A matrix in a module that the graph does
not look into, or one that a function multiplies by, has no such layer: `nn.LSTM`,
`F.linear(x, self.weight)`. It stays as it is whatever a config says, which is worth a sentence
where it is more than a tenth of what could have been changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from chop.base.notices import warn_once, warn_once_about
from chop.captured.layers.experts import matrices_by_parameter
from chop.captured.module import CapturedModule
from chop.captured.original import list_sources
from chop.errors import enumerate_names
from chop.ir.ops import of_module, stand_in_for
from chop.nn.quantized import QuantizedOperator
from chop.private.modules import class_label

LARGE_SHARE = 0.1
"""Share of the matrices from which on they are spoken of."""
NAMED = 2
"""Classes in a sentence."""


class UnreachedWarning(UserWarning):
    """More than a tenth of the weights are in no layer that a pass can change."""


@dataclass(frozen=True)
class Unreached:
    """The unreached matrices of one module, or one of the model itself.

    Attributes:
        path: of the module, or of the parameter.
        kind: its class.
        elements: of the matrices.
    """

    path: str
    kind: str
    elements: int


def list_unreached_matrices(model: nn.Module, is_left: Callable[[str], bool]) -> list[Unreached]:
    """The matrices of a model, which is no graph, that are in no module of the table.

    A tensor with one row, a position or a class token, is none.

    Args:
        model: any module.
        is_left: says by path which modules were to be left as they are.
    """
    found: dict[int, tuple[str, Tensor]] = {}
    for path, module in model.named_modules():
        if not is_of_table(module) and not is_left(path):
            for name, x in module.named_parameters(prefix=path, recurse=False):
                if len(x) > 1:
                    found.setdefault(id(x), (name, x))
    return by_owner(model, found.values())


def unreached_sentence(
    unreached: Iterable[Unreached], reached: int, where: str, outcome: str = "stay float"
) -> str | None:
    """One sentence where the share of the unreached matrices exceeds a tenth; None elsewhere.

    Args:
        unreached: they.
        reached: elements of the matrices that were changed.
        where: the pass, or what else did it.
        outcome: what the unreached ones do.
    """
    groups: dict[str, list[Unreached]] = {}
    for one in unreached:
        groups.setdefault(one.kind, []).append(one)
    counts = {kind: sum(one.elements for one in group) for kind, group in groups.items()}
    total = sum(counts.values())
    if not reached or total <= LARGE_SHARE * (reached + total):
        return None
    largest = sorted(groups, key=lambda kind: -counts[kind])
    names = [_named(kind, groups[kind]) for kind in largest[:NAMED]]
    others = len(largest) - NAMED
    names += [f"{others} more class{'es' * (others > 1)}"] if others > 0 else []
    way_out = (
        "a MaseGraph reaches torch's attention where it is no leaf; write others as nn.Linear"
        if nn.MultiheadAttention.__name__ in groups
        else "write them as nn.Linear layers to reach them, or count them at their float size"
    )
    return (
        f"{where}: {total:,} of {reached + total:,} weights ({total / (reached + total):.0%}) "
        f"{outcome}, because no layer that has formats holds them: {' and '.join(names)}; "
        f"{way_out}."
    )


def warn_about_share(model: nn.Module, text: str, where: str) -> None:
    """Warns once for each model and pass; copies of a graph, as trials make, are one model.

    Args:
        model: any module, or the one of a graph. Graphs of files do not know their model: of them
            the same text is said once.
        text: of `unreached_sentence`.
        where: the pass.
    """
    sources = list_sources(model)
    if isinstance(model, CapturedModule) and model in sources:
        warn_once(text, UnreachedWarning)
    else:
        warn_once_about(sources, text, UnreachedWarning, where)


def _named(kind: str, group: list[Unreached]) -> str:
    paths = enumerate_names([f"'{one.path}'" for one in group], 1)
    return f"{kind} ({paths})"


def is_of_table(module: nn.Module) -> bool:
    """Whether a module is a layer that a format can be given to, or can be made of such layers."""
    if isinstance(module, QuantizedOperator) or stand_in_for(module) is not None:
        return True
    if matrices_by_parameter(module):
        return True
    return of_module(type(module)).quantized is not None


def by_owner(root: nn.Module, found: Iterable[tuple[str, Tensor]]) -> list[Unreached]:
    """Sums the elements of matrices by the module that owns them.

    Args:
        root: the model.
        found: paths and parameters; those with fewer than two dimensions do not count.
    """
    elements: dict[str, int] = {}
    for name, x in found:
        if x.dim() > 1:
            path = name.rpartition(".")[0] or name
            elements[path] = elements.get(path, 0) + x.numel()
    modules = dict(root.named_modules())
    return [
        Unreached(path, class_label(modules[path]) if path in modules else "Parameter", count)
        for path, count in elements.items()
    ]
