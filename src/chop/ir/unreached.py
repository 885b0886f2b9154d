"""Unreached parameters: weight matrices outside all layers of the operator table.

Formats, adapters and codes apply to layers of the table. A matrix in an opaque module, such as
`nn.LSTM`, or one passed to a function, such as `F.linear(x, self.weight)`, has no such layer and
stays as it is. Passes warn if these exceed a tenth of the matrices that they could change.
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
from chop.ir.ops import get_class_row, stand_in_for
from chop.nn.quantized import QuantizedOperator
from chop.private.modules import class_label

LARGE_SHARE = 0.1
"""Minimum share of unreached matrices that is reported."""
NAMED = 2
"""Number of classes that a message names."""


class UnreachedWarning(UserWarning):
    """More than a tenth of the weights are in no layer that a pass can change."""


@dataclass(frozen=True)
class Unreached:
    """Unreached matrices of one module, or one unreached parameter of the model itself.

    Attributes:
        path: path of the module or the parameter.
        kind: its class.
        elements: number of elements of the matrices.
    """

    path: str
    kind: str
    elements: int


def list_unreached_matrices(model: nn.Module, is_skipped: Callable[[str], bool]) -> list[Unreached]:
    """Returns the matrices of a plain model that are in no module of the table.

    Tensors with a single row, such as position or class tokens, do not count.

    Args:
        model: any module.
        is_skipped: returns by path whether a module was excluded on purpose.
    """
    matrices: dict[int, tuple[str, Tensor]] = {}
    for path, module in model.named_modules():
        if not is_of_table(module) and not is_skipped(path):
            for name, x in module.named_parameters(prefix=path, recurse=False):
                if len(x) > 1:
                    matrices.setdefault(id(x), (name, x))
    return by_owner(model, matrices.values())


def unreached_sentence(
    unreached: Iterable[Unreached], reached: int, where: str, outcome: str = "stay float"
) -> str | None:
    """Returns a warning if more than a tenth of the matrices are unreached; otherwise None.

    Args:
        unreached: the unreached matrices.
        reached: number of elements of the changed matrices.
        where: name of the pass.
        outcome: result for the unreached ones.
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
        "a MaseGraph reaches torch's attention unless it is a leaf; write others as nn.Linear"
        if nn.MultiheadAttention.__name__ in groups
        else "write them as nn.Linear layers to reach them, or count them at their float size"
    )
    return (
        f"{where}: {total:,} of {reached + total:,} weights ({total / (reached + total):.0%}) "
        f"{outcome}, because no layer that has formats holds them: {' and '.join(names)}; "
        f"{way_out}."
    )


def warn_about_share(model: nn.Module, text: str, where: str) -> None:
    """Warns once per model and pass; copies of a graph, as in trials, count as one model.

    Args:
        model: any module, or that of a graph. Graphs from files do not know their model, so that
            equal texts are shown once.
        text: from `unreached_sentence`.
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
    """Returns whether a module is a layer with formats, or can be split into such layers."""
    if isinstance(module, QuantizedOperator) or stand_in_for(module) is not None:
        return True
    if matrices_by_parameter(module):
        return True
    return get_class_row(type(module)).quantized is not None


def by_owner(root: nn.Module, parameters: Iterable[tuple[str, Tensor]]) -> list[Unreached]:
    """Sums the elements of matrices by owning module.

    Args:
        root: the model.
        parameters: paths and parameters; those with fewer than two dimensions do not count.
    """
    elements: dict[str, int] = {}
    for name, x in parameters:
        if x.dim() > 1:
            path = name.rpartition(".")[0] or name
            elements[path] = elements.get(path, 0) + x.numel()
    modules = dict(root.named_modules())
    return [
        Unreached(path, class_label(modules[path]) if path in modules else "Parameter", count)
        for path, count in elements.items()
    ]
