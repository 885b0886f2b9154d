"""Makes a PyTorch or Hugging Face model small, fast and deployable.

small = chop.quantize(model, "8.auto", data=(X, y))
found = chop.compress(model, data=(X, y), max_drop=0.01)
mg = chop.MaseGraph(model)
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

from chop.paths.on_import import REGISTERS, register_imported
from chop.paths.on_import import find_spec as register_when_imported

TYPE_CHECKING = False  # not that of `typing`, whose import would double the cost of this one
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any

    from chop import formats, passes
    from chop.actions.api import compress, quantize, save
    from chop.base.installed import __version__ as __version__
    from chop.ir.graph import MaseGraph
    from chop.ir.huggingface.native_decoding import decode_natively
    from chop.ir.huggingface.quantized_cache import QuantizedCache
    from chop.ir.huggingface.quantizer import ChopConfig

    tools: Any

__all__ = [
    "ChopConfig",
    "MaseGraph",
    "QuantizedCache",
    "compress",
    "decode_natively",
    "formats",
    "passes",
    "quantize",
    "save",
    "tools",
]
HOMES = {
    "ChopConfig": "chop.ir.huggingface.quantizer",
    "MaseGraph": "chop.ir.graph",
    "QuantizedCache": "chop.ir.huggingface.quantized_cache",
    "__version__": "chop.base.installed",
    "compress": "chop.actions.api",
    "decode_natively": "chop.ir.huggingface.native_decoding",
    "quantize": "chop.actions.api",
    "save": "chop.actions.api",
}
"""Name of the package -> the module that defines it, imported when the name is first used."""


def _find_spec(fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
    """Meta path finder of modules without a file, whose tables are read at the first use."""
    tables = {"chop.paths", "chop.paths.virtual", "chop.paths.aliases", "chop.paths.moved"}
    if fullname in REGISTERS:
        return register_when_imported(fullname)
    if not fullname.startswith("chop.") or fullname in tables:
        return None
    from chop.paths.virtual import find_spec

    return find_spec(fullname)


def _explain_missing(fullname: str, path: object = None, target: object = None) -> None:
    """Meta path finder behind all others, which names the nearest of names that `chop` has."""
    if fullname.startswith("chop."):
        from chop.base.elsewhere import explain_missing

        # With `name=fullname`, Python would say "cannot import name" in `from chop import NAME`.
        raise ModuleNotFoundError(explain_missing(fullname))


# Before the finder of files, because a folder that only holds `__pycache__` counts as a package.
sys.meta_path.insert(0, SimpleNamespace(find_spec=_find_spec))
sys.meta_path.append(SimpleNamespace(find_spec=_explain_missing))
register_imported()


def __getattr__(name: str) -> Any:
    """Imports subpackages when they are first used, so that `import chop` stays cheap."""
    from chop.paths.virtual import import_subpackage

    if name in HOMES:
        return getattr(import_subpackage(HOMES[name]), name)
    message = f"module 'chop' has no attribute '{name}'"
    if not name.startswith("_"):
        try:
            return import_subpackage(f"chop.{name}")
        except ModuleNotFoundError as error:
            if not str(error).startswith(message):
                raise
            message = str(error)
    raise AttributeError(message, name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
