"""Ways out of refusals of lowering: rewrites of the model that have an integer form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from torch import fx, nn

from chop.ir.graph import MaseGraph
from chop.nn.lora import LoraLinear
from chop.nn.quantized import QuantizedOperator
from chop.private.torch_api import Convolution

NUMBER = "of a number"
"""Ends the name of an operator with a number in the place of a tensor."""
FORMATS = (
    "choose integer (calibrated), scale_integer (fixed scales of activations), binary, ternary or "
    "mxint (weights)"
)
UNFORMATTED = "give operators that are still float a format by the key 'missing', as '8.auto'"
BUFFER = "keep numbers in buffers, as self.register_buffer('one', torch.tensor(1.0))"
REST = (
    "compute with the operators under 'Components' in docs/guide/circuit.md in their place, or "
    "leave those behind the last layer to the program that reads its results"
)
OTHER_NORM = (
    "nn.BatchNorm2d straight behind a convolution, trained anew, is folded into it; group and "
    "instance norms are not"
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
        "pad": "give zeros around a picture as padding= to the convolution that reads it",
        "amax": "write the largest of each channel of a picture as nn.MaxPool2d of its size",
        "expand_as": "write expand_as as expand with numbers",
        "group_norm": OTHER_NORM,
        "instancenorm2d": OTHER_NORM,
        "instance_norm": OTHER_NORM,
        "log_softmax": RETURN.format(name="log_softmax"),
        "argmax": RETURN.format(name="argmax"),
        "sort": RETURN.format(name="sort"),
        "topk": RETURN.format(name="topk"),
    }
)
"""Rewrites of operators without a circuit, by their names in the operator table."""
FOLD_CONVOLUTION = (
    "fold batch norms into the convolutions before them by conv_bn_fusion_transform_pass, before "
    "they are quantized"
)
FOLD_LINEAR = (
    "fold batch norms into the linear layers before them by "
    "torch.nn.utils.fusion.fuse_linear_bn_eval(linear, norm), before the model is captured"
)
SCALE_AND_SHIFT = (
    "write a batch norm that follows neither a convolution nor a linear layer as x * scale + "
    "shift, of two buffers: scale = weight / sqrt(running_var + eps), shift = bias - running_mean "
    "* scale; of shape (channels, 1, 1) for pictures"
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


def ways_out(mg: MaseGraph, refused: Sequence[Refusal]) -> list[str]:
    """Changes that give a graph an integer form, each change once."""
    found = dict.fromkeys(way for refusal in refused for way in _ways(mg, refusal))
    # The general one ends the sentence.
    return [way for way in found if way != REST] + [REST] * (REST in found)


def _ways(mg: MaseGraph, refusal: Refusal) -> Iterator[str]:
    node = refusal.node
    row, module = mg.operator(node), mg.get_module(node)
    if isinstance(module, LoraLinear):
        yield "merge adapters by fuse_lora_weights_transform_pass"
    elif "(dropout" in refusal.text:
        yield "call dropout with training=self.training"
    elif row.is_affine:
        yield _way_of_norm(mg, node)
    elif row.name in REWRITES:
        yield REWRITES[row.name]
    elif refusal.text.endswith(f"{NUMBER})"):
        yield BUFFER
    elif row.makes_masks or getattr(module, "meets_masks", False):
        yield (
            "rewrite attention written by hand as scaled_dot_product_attention, whose masks "
            "have an integer form, by fuse_attention_transform_pass before it is quantized"
        )
    elif isinstance(module, QuantizedOperator) and row.integer is not None:
        yield FORMATS
    elif row.is_quantizable and row.integer is not None:
        yield UNFORMATTED
    else:
        yield REST


def _way_of_norm(mg: MaseGraph, node: fx.Node) -> str:
    """The way out of a batch norm, by the layer that it reads."""
    read = node.all_input_nodes[0] if node.all_input_nodes else None
    before = mg.get_module(read) if read is not None else None
    if isinstance(before, Convolution):
        return FOLD_CONVOLUTION
    return FOLD_LINEAR if isinstance(before, nn.Linear) else SCALE_AND_SHIFT
