"""Modules that have moved: their earlier paths, which files written by earlier versions name.

A pickle of a whole model finds its classes by these paths. The storage of a search identifies the
functions among its options by them.
"""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False  # `typing` is not imported with `chop`
if TYPE_CHECKING:
    from types import ModuleType

MOVED = {
    "chop.captured.attention": "chop.captured.layers.attention",
    "chop.captured.expert_linear": "chop.captured.layers.expert_linear",
    "chop.captured.experts": "chop.captured.layers.experts",
    "chop.captured.node_list": "chop.captured.nodes.node_list",
    "chop.captured.transformers_of_torch": "chop.captured.layers.transformers_of_torch",
    "chop.nas": "chop.problems.nas",
    "chop.nas.architecture": "chop.problems.nas.architecture",
    "chop.nas.compression": "chop.problems.nas.compression",
    "chop.nas.goals": "chop.problems.nas.goals",
    "chop.nas.proxies": "chop.problems.nas.proxies",
    "chop.nas.training": "chop.problems.nas.training",
    "chop.nested": "chop.base.nested",
}
"""Earlier path -> path now."""
EARLIER = {now: earlier for earlier, now in MOVED.items()}


def fill(module: ModuleType) -> None:
    """Puts the module as it is called now in the place of the new one at its earlier path."""
    sys.modules[module.__name__] = importlib.import_module(MOVED[module.__name__])
