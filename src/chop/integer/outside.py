"""Warning about inputs that an integer graph's formats cannot represent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from chop.base.notices import warn_once
from chop.ir.batches import observe_nodes
from chop.ir.graph import MaseGraph
from chop.nn.integer import Encode

FAR = 2
"""Numbers beyond this multiple of the range's ends count as outside; rounding reaches its ends."""
MOST_OUTSIDE = 0.9
"""Share of the numbers other than 0 outside of the range above which there is a warning."""


def warn_about_outside(mg: MaseGraph, batches: Iterable[Mapping[str, Any]], where: str) -> None:
    """Warns about NaN, and if nearly all numbers of an input saturate, as unscaled images do.

    Args:
        mg: an integer graph.
        batches: inputs by name.
        where: pass and setting, for the message.
    """
    given, sent = list(batches), _encoded(mg)
    computed: dict[fx.Node, list[Tensor]] = {node: [] for node in sent}

    def visit(node: fx.Node, values: Mapping[fx.Node, Any], result: Any) -> None:
        if node in computed:
            computed[node].append(values[sent[node]].clone())

    if any(source.op != "placeholder" for source in sent.values()):
        observe_nodes(mg, given, visit, follows_padding=False)
    for node, source in sent.items():
        module: Any = mg.get_module(node)
        name, step = str(source.target), module.out.scalar_step
        is_input = source.op == "placeholder"
        tensors = [x[name] for x in given if name in x] if is_input else computed[node]
        what = f"input '{name}'" if is_input else f"output of '{name}', which the host computes,"
        low, high = module.out_low * step, module.out_high * step
        values = torch.cat([x.flatten() for x in tensors] or [torch.empty(0)])
        if bool(values.isnan().any()):
            warn_once(
                f"{where}: the {what} has NaN, which no integer represents and which becomes 0 "
                "here: remove such rows, or fill them.",
                UserWarning,
            )
        values = values[values != 0]
        share = float(((values > FAR * high) | (values < FAR * low)).double().mean())
        if share > MOST_OUTSIDE:
            warn_once(
                f"{where}: {share:.0%} of the numbers other than 0 of the {what} are far outside "
                f"of the range of its format, {low:.6g} to {high:.6g}, and become its smallest or "
                "largest number. Scale them like the rows of the calibration.",
                UserWarning,
            )


def _encoded(mg: MaseGraph) -> dict[fx.Node, fx.Node]:
    """Returns the encoders of the graph -> their inputs, without those of one or two levels."""
    encoders = ((node, mg.get_module(node)) for node in mg.nodes)
    return {
        node: node.all_input_nodes[0]
        for node, module in encoders
        if isinstance(module, Encode) and module.rounding not in ("sign", "threshold")
    }
