"""Reasons why a target cannot store modules, and the error that lists such modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from chop.errors import ConfigError
from chop.ir.ops import get_module_row
from chop.nn.hadamard import Rotated
from chop.nn.lora import LoraLinear
from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantizedOperator

MOST_LISTED = 8
"""Largest number of modules in an error."""
ROTATED = (
    "it rotates its input at run time, which engines do not support: use rotate_transform_pass "
    "with online=False"
)


def weight_refusals(
    model: nn.Module, floats: Mapping[str, str], rounds_inputs: bool
) -> dict[str, str]:
    """Returns why modules cannot be stored in a file of weights in any format, by path.

    Args:
        model: model with packed layers.
        floats: reasons why layers could not be packed, by path.
        rounds_inputs: accepts packed linear layers with rounded inputs.
    """
    reasons = {
        path: _reason(module, floats.get(path, "has no packed form"), rounds_inputs)
        for path, module in model.named_modules()
        if isinstance(module, QuantizedOperator)
    }
    reasons |= {path: ROTATED for path, m in model.named_modules() if isinstance(m, Rotated)}
    return {path: reason for path, reason in reasons.items() if reason is not None}


def _reason(module: QuantizedOperator, why_float: str, rounds_inputs: bool) -> str | None:
    if isinstance(module, LoraLinear):
        return "it has an adapter: fuse it with fuse_lora_weights_transform_pass first"
    packed_linear = isinstance(module, PackedOperator) and get_module_row(module).is_linear
    allowed = ["data_in"] if rounds_inputs and packed_linear else []
    for name, what in {"data_in": "inputs", "data_out": "results"}.items():
        quantizer = module.operand_format(name)
        if not quantizer.is_identity and name not in allowed:
            return f"it rounds its {what} to {quantizer.label}"
    if not isinstance(module, PackedOperator) and not module.spec.is_float:
        return f"it is quantized and cannot be packed: it {why_float}"
    return None


def refuse(target: str, reasons: Mapping[str, str], way_out: str) -> None:
    """Raises an error that lists modules which a target cannot store, if there are any.

    Args:
        target: name of the target.
        reasons: reasons by module path.
        way_out: sentence with a suggestion.

    Raises:
        ConfigError: if there are such modules.
    """
    if not reasons:
        return
    raise ConfigError(f"{refusal_text(target, [*reasons.items()])}\n{way_out}")


def refusal_text(target: str, reasons: Sequence[tuple[str, str]]) -> str:
    """Returns lines on the modules that a target cannot store; the first ones are named."""
    lines = [f"  {path}: {why}" for path, why in reasons[:MOST_LISTED]]
    lines += [f"  and {len(reasons) - MOST_LISTED} more"] if len(reasons) > MOST_LISTED else []
    modules = f"{len(reasons)} module{'s' if len(reasons) > 1 else ''}"
    return "\n".join([f"{target} cannot store {modules}:", *lines])
