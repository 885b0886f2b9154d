"""Replacement of other libraries' modules by equivalent modules of the operator table."""

from __future__ import annotations

from torch import nn

from chop.captured.module import CapturedModule
from chop.ir.ops import stand_in_for
from chop.nn.quantized.computed import why_computed
from chop.private.modules import own_children, own_parameters


def put_stand_ins(captured: CapturedModule) -> None:
    """Replaces leaf modules of other libraries that a row of the table has a stand-in for.

    Args:
        captured: changed in place. Leaves stay if a node reads their parameters directly, or if a
            hook of torch computes these.
    """
    read = {str(node.target) for node in captured.graph.nodes if node.op == "get_attr"}
    made: dict[int, nn.Module] = {}
    weights: dict[int, nn.Parameter | None] = {}
    for path, module in list(captured.named_modules()):
        make = stand_in_for(module)
        if make is None or any(f"{path}.{name}" in read for name in own_parameters(module)):
            continue
        if why_computed(module) is not None:
            continue
        twin = made[id(module)] = make(module)
        for name, parameter in own_parameters(module).items():  # tied weights stay tied
            own_parameters(twin)[name] = weights.setdefault(
                id(parameter), own_parameters(twin)[name]
            )
    for parent in list(captured.modules()):
        for name, child in own_children(parent).items():
            if child is not None and id(child) in made:
                own_children(parent)[name] = made[id(child)]
