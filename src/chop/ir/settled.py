"""Settled graphs: quantized operators as exporters and integer graphs read them."""

from __future__ import annotations

from chop.errors import enumerate_names
from chop.ir.graph import MaseGraph
from chop.nn.quantized import QuantizedOperator


def settled_copy(mg: MaseGraph) -> MaseGraph:
    """A copy on the CPU in eval mode, with weights as parameters and learned scales as formats.

    Raises:
        ConfigError: learned scales wait for a first batch.
    """
    settled = mg.copy()
    for node in settled.nodes:
        module = settled.module_of(node)
        if isinstance(module, QuantizedOperator):
            settled.replace(node, module.unpack().freeze_scales())
    settled.model.cpu().eval()
    return settled


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
