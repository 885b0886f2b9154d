"""Names of signals of the top module, made of the names of nodes."""

from __future__ import annotations

import re
from collections.abc import Sequence

TAKEN = re.compile(
    r"(clk|violated|FOLDER|(.*_)?(in|out|branch|fork|constant|part|buffer|upsize|downsize|data|valid|ready"
    r"|i|o)(_\d+)*)"
)
"""Names that the signals of others could have: all are made of a node's name and such an end."""


def signal_names(nodes: Sequence[str]) -> dict[str, str]:
    """A name of its own in SystemVerilog for each node: no name made of another one meets it.

    Verilator writes double underscores in its own way.

    >>> signal_names(["fc", "fc_in_0", "a__b", "a_b"])
    {'fc': 'fc', 'fc_in_0': 'fc_in_0_node', 'a__b': 'a_b', 'a_b': 'a_b_2'}
    """
    found: dict[str, str] = {}
    for node in nodes:
        plain = re.sub("_+", "_", re.sub(r"[^A-Za-z0-9]", "_", node)).strip("_") or "node"
        plain = f"n{plain}" if plain[0].isdigit() else plain
        plain = f"{plain}_node" if TAKEN.fullmatch(plain) else plain
        name, number = plain, 2
        while name in found.values():
            name, number = f"{plain}_{number}", number + 1
        found[node] = name
    return found
