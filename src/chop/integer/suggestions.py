"""Suggestions for operators without an integer form: rewrites of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from torch import fx, nn

from chop.formats import Binary, BinaryResidual, Ternary
from chop.ir.graph import MaseGraph
from chop.nn.lora import LoraLinear
from chop.nn.quantized import QuantizedOperator
from chop.private.torch_api import BatchNorm, Convolution

FORMATS = (
    "choose integer (calibrated), scale_integer (fixed scales of activations), binary, ternary or "
    "mxint (weights)"
)
UNFORMATTED = (
    "set a format for the remaining float operators with the key 'missing', such as '8.auto'"
)
REST = (
    "use the operators under 'Components' in docs/guide/circuit.md instead, or leave "
    "operators after the last layer to the program that reads its results"
)
OTHER_NORM = (
    "replace it with an nn.BatchNorm2d directly after a convolution and retrain, since only "
    "batch norms can be folded"
)
RETURN = "return the scores, and {name} them in the program that reads them"
REWRITES: Mapping[str, str] = MappingProxyType(
    {
        "abs": "write |x| as x.relu() + (-x).relu()",
        "pow": "write powers as products, x * x",
        "square": "write powers as products, x * x",
        "clamp": "write clamp as F.hardtanh(x, low, high)",
        "clip": "write clip as F.hardtanh(x, low, high)",
        "prelu": "write PReLU as x.relu() - slope * (-x).relu(), or use nn.LeakyReLU",
        "div": "write a division by constants as a product with a buffer of their reciprocals",
        "pad": "pad an image by padding= of the convolution that reads it",
        "amax": "write the maximum of each image channel as nn.MaxPool2d of the image size",
        "expand_as": "write expand_as as expand with explicit sizes",
        "group_norm": OTHER_NORM,
        "instancenorm2d": OTHER_NORM,
        "instance_norm": OTHER_NORM,
        "log_softmax": RETURN.format(name="log_softmax"),
        "argmax": RETURN.format(name="argmax"),
        "sort": RETURN.format(name="sort"),
        "topk": RETURN.format(name="topk"),
    }
)
"""Rewrites of operators without a circuit, by operator name in the operator table."""
FOLD = (
    "fold batch norms into the preceding convolutions and linear layers with "
    "conv_bn_fusion_transform_pass before quantizing"
)
SCALE_AND_SHIFT = (
    "write a batch norm that cannot be folded into a convolution or linear layer as x * scale + "
    "shift, with two buffers: scale = weight / sqrt(running_var + eps), shift = bias - "
    "running_mean * scale; their shape is (channels, 1, 1) for images"
)


@dataclass(frozen=True)
class Refusal:
    """A node or operand without an integer form.

    Attributes:
        node: the node.
        text: its name and the reason.
    """

    node: fx.Node
    text: str


def suggest_changes(mg: MaseGraph, refused: Sequence[Refusal]) -> list[str]:
    """Returns changes that give a graph an integer form, without duplicates."""
    changes = dict.fromkeys(change for refusal in refused for change in _suggestions(mg, refusal))
    # The general one ends the sentence.
    return [change for change in changes if change != REST] + [REST] * (REST in changes)


def _suggestions(mg: MaseGraph, refusal: Refusal) -> Iterator[str]:
    node = refusal.node
    row, module = mg.operator(node), mg.get_module(node)
    if isinstance(module, LoraLinear):
        yield "merge adapters with fuse_lora_weights_transform_pass"
    elif "(dropout" in refusal.text:
        yield "call dropout with training=self.training"
    elif row.is_affine:
        yield _norm_suggestion(mg, node)
    elif row.name in REWRITES:
        yield REWRITES[row.name]
    elif row.makes_masks or getattr(module, "meets_masks", False):
        yield (
            "rewrite manual attention as scaled_dot_product_attention, whose masks have an "
            "integer form, with fuse_attention_transform_pass before quantizing"
        )
    elif isinstance(module, QuantizedOperator) and row.integer is not None:
        yield FORMATS
    elif row.is_quantizable and row.integer is not None:
        yield UNFORMATTED
    else:
        yield REST


def _norm_suggestion(mg: MaseGraph, node: fx.Node) -> str:
    """Returns the suggestion for a batch norm, by the layer ahead of it."""
    read = node.all_input_nodes[0] if node.all_input_nodes else None
    before = mg.get_module(read) if read is not None else None
    if read is None or not isinstance(before, Convolution | nn.Linear):
        return SCALE_AND_SHIFT
    shape = getattr(read.meta.get("spec"), "shape", None)
    is_by_channel = shape is None or len(shape) == 2 + len(getattr(before, "kernel_size", ()))
    has_signs = isinstance(before, QuantizedOperator) and isinstance(
        before.spec.weight, Binary | BinaryResidual | Ternary
    )
    is_module = isinstance(mg.get_module(node), BatchNorm)
    return FOLD if is_module and is_by_channel and not has_signs else SCALE_AND_SHIFT
