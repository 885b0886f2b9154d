"""Warnings of passes whose formats reach only a part of the weights."""

from __future__ import annotations

from collections.abc import Callable

from chop.ir.graph import MaseGraph
from chop.ir.parameters import stored_parameters
from chop.ir.unreached import unreached_matrices, unreached_sentence, warn_of_share


def warn_of_unreached(
    mg: MaseGraph, where: str, means: Callable[[str], bool] = lambda path: True, packs: bool = False
) -> None:
    """Warns once for each model, where over a tenth of the weights that were meant lack a format.

    Args:
        mg: the graph after the pass.
        where: the pass.
        means: whether its settings mean what is at a path.
        packs: the pass stores weights as codes, which formats alone do not.
    """
    text = describe_unreached(mg, where, means, packs)
    if text is not None:
        warn_of_share(mg.model, text, where)


def describe_unreached(
    mg: MaseGraph, where: str, means: Callable[[str], bool] = lambda path: True, packs: bool = False
) -> str | None:
    """The sentence of `warn_of_unreached`; None where there is nothing to say."""
    matrices = [x for x in stored_parameters(mg) if x.value.dim() > 1]
    reached = sum(
        x.value.numel()
        for x in matrices
        if (x.packed is not None if packs else not x.format.is_identity)
    )
    unreached = [x for x in unreached_matrices(mg, not packs) if means(x.path)]
    return unreached_sentence(unreached, reached, where)
