"""Registration with other libraries at their first import, so that `import chop` stays fast."""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False  # `typing` is not imported with `chop`
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

REGISTERS = {
    "transformers.quantizers": "chop.ir.huggingface.quantizer",
    "transformers.modeling_utils": "chop.ir.huggingface.resizing",
    "peft.tuners.lora.layer": "chop.lora.peft_layers",
}
"""Module of another library -> chop module that registers with it on import."""
_waiting: set[str] = set()


def register_imported() -> None:
    """Registers with imported libraries now, and with others when they are imported."""
    for name, ours in REGISTERS.items():
        if name in sys.modules:
            importlib.import_module(ours)
        else:
            _waiting.add(name)


def find_spec(fullname: str) -> ModuleSpec | None:
    """Returns the spec of a module in `REGISTERS`, which registers after the module has run."""
    if fullname not in _waiting:
        return None
    from importlib.util import find_spec as find

    _waiting.discard(fullname)
    spec = find(fullname)
    if spec is None or spec.loader is None:
        return None
    run = spec.loader.exec_module

    def run_and_register(module: object) -> None:
        run(module)  # type: ignore[arg-type]
        importlib.import_module(REGISTERS[fullname])

    spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
    return spec
