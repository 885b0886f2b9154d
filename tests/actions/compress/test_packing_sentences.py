"""Sentences of `chop compress` on what is not packed."""

from chop.actions.compress.report import describe_packing
from chop.quantization.packing import READ_DIRECTLY


def row(layer, kind, elements, why, *parameters):
    return {
        "layer": layer,
        "kind": kind,
        "elements": elements,
        "why_float": why,
        "parameters": parameters,
    }


def test_parameters_that_the_model_reads_directly_are_one_sentence():
    norms = [
        row(f"layers.{i}.norm", "LlamaRMSNorm", 64, READ_DIRECTLY, f"layers.{i}.norm.weight")
        for i in range(30)
    ]
    text = describe_packing({"packed_share": 0.5, "float_layers": norms})
    assert text == (
        "50.0% of the parameters are packed. 1,920 numbers that the model reads directly "
        "(layers.0.norm.weight, layers.1.norm.weight, layers.2.norm.weight, "
        "layers.3.norm.weight and 26 more) stay in float."
    )


def test_layers_of_a_kind_are_one_sentence_for_each_reason():
    why = "has no format for its weight"
    rows = [
        row("a", "LayerNorm", 8, why, "a.weight", "a.bias"),
        row("b", "BatchNorm2d", 4, why, "b.weight"),
        row("", "Net", 3, READ_DIRECTLY, "token"),
        row("c", "LayerNorm", 8, why, "c.weight", "c.bias"),
    ]
    text = describe_packing({"packed_share": 0.976, "float_layers": rows})
    assert text == (
        "97.6% of the parameters are packed. "
        "16 numbers of 2 LayerNorm (a ... c) stay in float: each has no format for its weight. "
        "4 numbers of 1 BatchNorm2d (b) stay in float: it has no format for its weight. "
        "3 numbers that the model reads directly (token) stay in float."
    )
