"""Refusals of targets: why a file cannot hold a module, and the error that lists such modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from chop.errors import ConfigError
from chop.nn.hadamard import Rotated
from chop.nn.lora import LoraLinear
from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantizedOperator

SHOWN = 8
"""Modules that an error lists."""
ROTATED = (
    "it rotates its input while the model runs, which no engine does for a weight alone: "
    "rotate_transform_pass with online=False leaves that out"
)


def weight_refusals(
    model: nn.Module, floats: Mapping[str, str], rounds_inputs: bool
) -> dict[str, str]:
    """Returns, by path of a module, why a file of weights cannot hold it, whatever its format.

    Args:
        model: with packed layers.
        floats: by path, why a layer could not be packed.
        rounds_inputs: whether packed linear layers may round their inputs.
    """
    found = {
        path: _reason(module, floats.get(path, "has no packed form"), rounds_inputs)
        for path, module in model.named_modules()
        if isinstance(module, QuantizedOperator)
    }
    found |= {path: ROTATED for path, m in model.named_modules() if isinstance(m, Rotated)}
    return {path: reason for path, reason in found.items() if reason is not None}


def _reason(module: QuantizedOperator, why_float: str, rounds_inputs: bool) -> str | None:
    if isinstance(module, LoraLinear):
        return "it has an adapter: fuse it with fuse_lora_weights_transform_pass first"
    packed_linear = isinstance(module, PackedOperator) and isinstance(module, nn.Linear)
    allowed = ["data_in"] if rounds_inputs and packed_linear else []
    for name, what in {"data_in": "inputs", "data_out": "results"}.items():
        quantizer = module.operand_format(name)
        if not quantizer.is_identity and name not in allowed:
            return f"it rounds its {what} to {quantizer.label}"
    if not isinstance(module, PackedOperator) and not module.spec.is_float:
        return f"it is quantized and cannot be packed: it {why_float}"
    return None


def refuse(target: str, reasons: Mapping[str, str], way_out: str) -> None:
    """Raises an error that lists modules which a target cannot hold; none: nothing.

    Args:
        target: its name.
        reasons: by path of a module.
        way_out: a sentence.

    Raises:
        ConfigError: there are some.
    """
    if not reasons:
        return
    raise ConfigError(f"{refusal_text(target, [*reasons.items()])}\n{way_out}")


def refusal_text(target: str, reasons: Sequence[tuple[str, str]]) -> str:
    """Lines on the modules that a target cannot hold, the first ones by name."""
    lines = [f"  {path}: {why}" for path, why in reasons[:SHOWN]]
    lines += [f"  and {len(reasons) - SHOWN} more"] if len(reasons) > SHOWN else []
    modules = f"{len(reasons)} module{'s' if len(reasons) > 1 else ''}"
    return "\n".join([f"{target} cannot hold {modules}:", *lines])
