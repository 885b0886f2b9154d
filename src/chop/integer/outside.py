"""Warning about inputs outside of the range of an integer graph's formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from chop.base.notices import warn_once
from chop.ir.graph import MaseGraph
from chop.nn.integer import Encode

FAR = 2
"""Numbers beyond this multiple of the range's ends count as outside; rounding reaches its ends."""
MOST_OUTSIDE = 0.9
"""Share of the numbers other than 0 outside of the range above which there is a warning."""


def warn_about_outside(mg: MaseGraph, batches: Iterable[Mapping[str, Any]], where: str) -> None:
    """Warns if nearly all numbers of an input saturate, as those of unscaled images do.

    Args:
        mg: an integer graph.
        batches: inputs by name.
        where: pass and setting, for the message.
    """
    given = list(batches)
    for node in mg.nodes:
        module = mg.get_module(node)
        if not isinstance(module, Encode) or module.rounding in ("sign", "threshold"):
            continue
        (source,) = node.all_input_nodes
        name, step = str(source.target), module.out.scalar_step
        low, high = module.out_low * step, module.out_high * step
        values = torch.cat([x[name].flatten() for x in given if name in x] or [torch.empty(0)])
        values = values[values != 0]
        share = float(((values > FAR * high) | (values < FAR * low)).double().mean())
        if share > MOST_OUTSIDE:
            warn_once(
                f"{where}: {share:.0%} of the numbers other than 0 of the input '{name}' are far "
                f"outside of the range of its format, {low:.6g} to {high:.6g}, and become its "
                "smallest or largest number. Scale them like the rows of the calibration.",
                UserWarning,
            )
