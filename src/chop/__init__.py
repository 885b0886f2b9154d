"""Makes a PyTorch or Hugging Face model small, fast and deployable.

from chop import MaseGraph, passes

mg = MaseGraph(model)
mg, _ = passes.init_metadata_analysis_pass(mg)
mg, _ = passes.add_common_metadata_analysis_pass(mg)
mg, _ = passes.quantize_transform_pass(mg, {...})
"""

from __future__ import annotations

import gc
import importlib

from chop.aliases import install_aliases
from chop.moved import install_moved_modules

TYPE_CHECKING = False  # not that of `typing`, whose import would double the cost of this one
if TYPE_CHECKING:
    from typing import Any

    from chop import formats, passes
    from chop.ir.graph import MaseGraph

    tools: Any

__version__ = "0.1.0"
__all__ = ["MaseGraph", "formats", "passes", "tools"]

install_aliases()
install_moved_modules()


def __getattr__(name: str) -> Any:
    """Imports rooms when they are first used, so that `import chop` stays cheap."""
    if name == "MaseGraph":
        return _import_room("chop.ir.graph").MaseGraph
    if not name.startswith("_"):
        try:
            return _import_room(f"chop.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"chop.{name}":
                raise
    raise AttributeError(f"module 'chop' has no attribute '{name}'")


def _import_room(path: str) -> Any:
    """The module, imported without garbage collection.

    Modules are no garbage; a collection visits the million objects of torch each time, which took
    a fifth of the import.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(path)
    finally:
        if was_enabled:
            gc.enable()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
