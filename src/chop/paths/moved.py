"""Earlier paths of moved modules, which files of earlier versions contain.

Pickles of whole models refer to classes by these paths. Search storages identify the functions
among their options by them.
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
"""Earlier path -> present path."""
EARLIER = {now: earlier for earlier, now in MOVED.items()}


def fill(module: ModuleType) -> None:
    """Replaces the new module at an earlier path by the module at its present path."""
    sys.modules[module.__name__] = importlib.import_module(MOVED[module.__name__])
