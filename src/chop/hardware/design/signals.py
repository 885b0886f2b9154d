"""Signal names of the top module, from node names."""

from __future__ import annotations

import re
from collections.abc import Sequence

TAKEN = re.compile(
    r"(clk|violated|FOLDER|load|runs|weights|(.*_)?(in|out|branch|fork|constant|order|again|part|buffer|upsize|downsize|data|valid|ready"
    r"|i|o)(_\d+)*)"
)
"""Names that other signals may have, which consist of a node's name and one of these suffixes."""


def signal_names(nodes: Sequence[str]) -> dict[str, str]:
    """Returns a unique SystemVerilog name for each node that collides with no derived signal name.

    Double underscores are replaced, since Verilator mangles them.

    >>> signal_names(["fc", "fc_in_0", "a__b", "a_b"])
    {'fc': 'fc', 'fc_in_0': 'fc_in_0_node', 'a__b': 'a_b', 'a_b': 'a_b_2'}
    """
    names: dict[str, str] = {}
    for node in nodes:
        plain = re.sub("_+", "_", re.sub(r"[^A-Za-z0-9]", "_", node)).strip("_") or "node"
        plain = f"n{plain}" if plain[0].isdigit() else plain
        plain = f"{plain}_node" if TAKEN.fullmatch(plain) else plain
        name, number = plain, 2
        while name in names.values():
            name, number = f"{plain}_{number}", number + 1
        names[node] = name
    return names
