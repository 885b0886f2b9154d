"""Settled graphs: quantized operators as exporters and integer graphs read them."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from chop.base.nested import tree_children
from chop.captured.overrides import forward_hooks
from chop.captured.specs import FieldsSpec, TensorSpec
from chop.errors import ConfigError, enumerate_names
from chop.ir.graph import MaseGraph
from chop.nn.quantized import QuantizedOperator


def settled_copy(mg: MaseGraph) -> MaseGraph:
    """A copy on the CPU in eval mode, with weights as parameters and learned scales as formats.

    Raises:
        ConfigError: learned scales wait for a first batch.
    """
    settled = mg.copy()
    settled.keep_evaluation("the program has the nodes of eval()")
    for node in settled.nodes:
        module = settled.get_module(node)
        if isinstance(module, QuantizedOperator):
            settled.replace(node, module.unpack().freeze_scales())
    settled.model.cpu().eval()
    return settled


def hooked_modules(mg: MaseGraph) -> dict[str, str]:
    """By path, the first forward hook of each module that runs: "" is the model itself.

    A hook on all modules is one of the model.
    """
    called = {
        str(node.target): mg.get_module(node) for node in mg.nodes if node.op == "call_module"
    }
    found = {"": forward_hooks(mg.model)}
    for path, module in called.items():
        inside = () if module is None else module.modules()
        found[path] = [hook for part in inside for hook in forward_hooks(part)]
    return {path: hooks[0] for path, hooks in found.items() if hooks}


def refuse_hooks(hooked: Mapping[str, str], where: str, what: str) -> None:
    """Raises ConfigError where modules have forward hooks.

    Args:
        hooked: of `hooked_modules`.
        where: the pass.
        what: has none of them, such as "an integer graph".
    """
    for path, hook in hooked.items():
        owner = f"module '{path}'" if path else "the model"
        raise ConfigError(
            f"{where}: {owner} has the forward hook {hook}, and {what} would not run it; remove "
            "it, or compute what it does in the model's forward."
        )


def operand_text(path: str, operator: QuantizedOperator, operand: str) -> str:
    """`path.operand (format)`, for messages."""
    return f"{path or 'model'}.{operand} ({getattr(operator.spec, operand).label})"


def missing_forms(where: str, what: str, missing: list[str], way_out: str) -> str:
    """Message that names what cannot be written.

    Args:
        where: the pass.
        what: has no form of it, such as "ONNX has no 8-bit form".
        missing: operands or nodes; the first six are named.
        way_out: what to do.
    """
    return f"{where}: {what} of {enumerate_names(missing, 6)}; {way_out}."


def refuse_nested(inputs: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError where an input is made of several: circuits take tensors.

    Args:
        inputs: values, or what the graph notes of them, by name.
        where: the pass.
    """
    for name, value in inputs.items():
        is_object = isinstance(value, FieldsSpec | SimpleNamespace)
        if is_object or (not isinstance(value, TensorSpec) and tree_children(value) is not None):
            raise ConfigError(
                f"{where}: expected tensors as inputs, and '{name}' has several of "
                "them; give forward an argument for each of them."
            )
