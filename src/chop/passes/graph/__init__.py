"""The passes by MASE's longer path: every name here is one of `chop.passes`.

MASE spreads the passes over `graph`, `graph.analysis`, `graph.transforms` and `graph.interface`,
and users import a pass from any of them.
"""

from __future__ import annotations

from typing import Any

import chop.passes
from chop.errors import did_you_mean


def __getattr__(name: str) -> Any:
    if name == "QUANTIZEABLE_OP":
        from chop.ir.ops import OPS

        return tuple(name for name, row in OPS.items() if row.is_quantizable)
    if name in __dir__():
        return getattr(chop.passes, name)
    hint = "" if name.startswith("_") else f": {did_you_mean(name, __dir__())}"
    raise AttributeError(f"chop.passes has no '{name}'{hint}")


def __dir__() -> list[str]:
    passes = [name for name in vars(chop.passes) if name.endswith("_pass")]
    return [*passes, "get_synthesis_results", "QUANTIZEABLE_OP"]
