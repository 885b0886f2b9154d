"""Suggestions for operators without an integer form: rewrites of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from torch import fx

from chop.ir.graph import MaseGraph
from chop.nn.lora import LoraLinear
from chop.nn.quantized import QuantizedOperator

FORMATS = (
    "choose integer (calibrated), scale_integer (fixed scales of activations), binary, ternary or "
    "mxint (weights)"
)
UNFORMATTED = (
    "quantize the remaining float operators with quantize_transform_pass, or by the key 'missing' "
    "of lower_to_integer_transform_pass, such as {'batches': [inputs], 'missing': '8.auto'}"
)
REST = (
    "use the operators under 'Components' in docs/guide/circuit-operators.md instead, or leave "
    "operators after the last layer to the program that reads its results"
)
ROUNDED_AHEAD = (
    "add a buffer of zeros to its input, x + self.zeros, because sums have a format, or use an "
    "activation with a format, such as relu, gelu, silu or tanh"
)
OWNED = "put the parameters into a module, such as nn.Linear or nn.Conv2d, and call it"
CHOICE = "write a choice by sign as relu, nn.PReLU or F.hardtanh"
OTHER_MASK = (
    "hide keys by a causal mask or by an input (batch, keys), or compute attention as "
    "torch.softmax(q @ k.transpose(-2, -1) * scale + bias, -1) @ v with a buffer of finite biases"
)
OTHER_NORM = "write an instance norm as nn.GroupNorm(channels, channels)"
GATES = "write the gates as linear layers, sigmoid, tanh and products, unrolled over time"
RECURRENT = ("rnn", "lstm", "gru")
MATRIX = "write the product as x @ matrix"
RETURN = "return the scores, and {name} them in the program that reads them"
REWRITES: Mapping[str, str] = MappingProxyType(
    {
        "clamp": "write clamp as F.hardtanh(x, low, high)",
        "clip": "write clip as F.hardtanh(x, low, high)",
        "div": "write a division by constants as a product with a buffer of their reciprocals",
        "prelu": "use nn.PReLU",
        "max": "write x.max(dim)[0] as x.amax(dim)",
        "expand_as": "write expand_as as expand with explicit sizes",
        **{f"{name}{cell}": GATES for name in RECURRENT for cell in ("", "cell")},
        **dict.fromkeys(("mm", "mv", "addmm", "einsum"), MATRIX),
        "set_item": "join slices with torch.cat instead of writing to a tensor",
        "instancenorm2d": OTHER_NORM,
        "instance_norm": OTHER_NORM,
        "log_softmax": RETURN.format(name="log_softmax"),
        "argmax": RETURN.format(name="argmax"),
        "sort": RETURN.format(name="sort"),
        "topk": RETURN.format(name="topk"),
    }
)
"""Rewrites of operators without a circuit, by operator name in the operator table."""
NORM = (
    "write a batch norm as nn.BatchNorm1d or nn.BatchNorm2d, without a format or with an integer "
    "format for data_in"
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
    attends = any(mg.operator(each).name == "softmax" for each in mg.nodes)
    row, module = mg.operator(node), mg.get_module(node)
    if isinstance(module, LoraLinear):
        yield "merge adapters with fuse_lora_weights_transform_pass"
    elif "(dropout" in refusal.text:
        yield "call dropout with training=self.training"
    elif "(mask '" in refusal.text:
        yield OTHER_MASK
    elif row.is_affine:
        yield NORM
    elif row.name in REWRITES:
        yield REWRITES[row.name]
    elif "that no module owns" in refusal.text:
        yield OWNED
    elif row.name == "where" and not attends:
        yield CHOICE
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


def explain_missing_format(mg: MaseGraph, node: fx.Node) -> str:
    """Returns the reason why a value has no codes, with a suggestion."""
    for reader in node.users:
        row = mg.operator(reader)
        if row.is_quantizable and not isinstance(mg.get_module(reader), QuantizedOperator):
            return (
                f"none of its readers has a format; quantize '{reader.name}' ({row.name}) with a "
                "format for data_in"
            )
    return (
        "the graph returns it without a format; compute it by a quantized operator with a data_out "
        "format, such as relu or add, or remove it from the model's outputs"
    )
