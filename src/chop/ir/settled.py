"""Settled graphs: final state of quantized operators for exporters and integer graphs."""

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
    """Copies a graph to the CPU in eval mode, with plain weights and learned scales as formats.

    Raises:
        ConfigError: if learned scales wait for a first batch.
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
    """Returns path -> first forward hook of each module that runs; "" is the model itself.

    A hook on all modules counts as one of the model.
    """
    called = {
        str(node.target): mg.get_module(node) for node in mg.nodes if node.op == "call_module"
    }
    hooks_by_path = {"": forward_hooks(mg.model)}
    for path, module in called.items():
        inside = () if module is None else module.modules()
        hooks_by_path[path] = [hook for part in inside for hook in forward_hooks(part)]
    return {path: hooks[0] for path, hooks in hooks_by_path.items() if hooks}


def refuse_hooks(hooked: Mapping[str, str], where: str, what: str) -> None:
    """Raises ConfigError if modules have forward hooks.

    Args:
        hooked: from `hooked_modules`.
        where: the pass.
        what: target without hooks, such as "an integer graph".
    """
    for path, hook in hooked.items():
        owner = f"module '{path}'" if path else "the model"
        raise ConfigError(
            f"{where}: {owner} has the forward hook {hook}, and {what} does not run it; remove "
            "it, or compute what it does in the model's forward."
        )


def operand_text(path: str, operator: QuantizedOperator, operand: str) -> str:
    """Returns `path.operand (format)`, for messages."""
    return f"{path or 'model'}.{operand} ({getattr(operator.spec, operand).label})"


def missing_forms(where: str, what: str, missing: list[str], way_out: str) -> str:
    """Returns a message that lists operands without a form in the target.

    Args:
        where: the pass.
        what: reason, such as "ONNX has no 8-bit form".
        missing: operands or nodes; the message names six.
        way_out: suggestion.
    """
    return f"{where}: {what} of {enumerate_names(missing, 6)}; {way_out}."


def refuse_nested(inputs: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError for nested inputs, since circuits take tensors.

    Args:
        inputs: values or metadata by name.
        where: the pass.
    """
    for name, value in inputs.items():
        is_object = isinstance(value, FieldsSpec | SimpleNamespace)
        if is_object or (not isinstance(value, TensorSpec) and tree_children(value) is not None):
            raise ConfigError(
                f"{where}: expected tensors as inputs, and '{name}' has several of them; add an "
                "argument of forward for each of them."
            )
