"""Integer graphs of trained models in each family of formats, beside the quantised ones."""

import pytest
import torch
from torch import nn

from chop import passes
from chop.formats import Binary, MXInt, QuantSpec, ScaleInteger, Ternary, parse_format_string
from chop.ir.ops import quantizable_operators
from chop.quantization.named_operators import present_operators
from chop.train.calibration import calibration_batches
from tests.integer import graphs

DIGITS = 360
FITTED = parse_format_string("8.auto")


UNIFORM = {
    "scale_integer": ScaleInteger(8),
    "mxint": MXInt(8),
    "binary": Binary(),
    "ternary": Ternary(threshold=0.5),
}
WEIGHTS = {
    "scale per tensor": ScaleInteger(8),
    "scale per channel": ScaleInteger(8, granularity="channel"),
    "binary": Binary(),
    "binary with a scale": Binary(scaling_factor=True),
    "ternary": Ternary(),
    "ternary with a scale": Ternary(scaling_factor=True),
    "mxint": MXInt(8),
}
EXACT = ("binary", "ternary")
ROUNDED_TWICE = ("softmax", "layer_norm")
"""Operators that approximate in any format."""


def lowered(model, spec, others=None):
    """The info of lowering all operators in `spec`; those without weights in `others`."""
    mg = graphs.float_graph(model, True)
    rules = {
        name: {"config": spec if others is None or name in ("linear", "conv2d") else others}
        for name in present_operators(mg, quantizable_operators())
    }
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", **rules})
    rows = graphs.workload(model, True).train
    batches = list(calibration_batches(mg.model, rows, rows=graphs.CALIBRATION_ROWS))
    mg, _ = passes.calibrate_transform_pass(mg, {"batches": batches, "static_scales": True})
    batch = graphs.test_rows(model, DIGITS)
    integer, info = passes.lower_to_integer_transform_pass(mg, {"batches": [batch]})
    images = {"pixel_values": batch["pixel_values"]}
    with torch.no_grad():
        info["same"] = (integer.model(**images).logits == mg.model(**images).logits).all().item()
    info["terms"] = [m.in_features for m in mg.modules.values() if isinstance(m, nn.Linear)][-1]
    return info


def share_different(rows, kinds):
    found = [row for row in rows if row["kind"] in kinds]
    return sum(row["different"] for row in found) / max(sum(row["codes"] for row in found), 1)


MODELS = ["mlp", pytest.param("vit", marks=pytest.mark.long)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", list(UNIFORM))
@pytest.mark.sampled(1)
def test_all_operators_in_one_format(model, name):
    info = lowered(model, QuantSpec.uniform(UNIFORM[name]))
    rows, accuracy = info["operators"], info["accuracy"]
    assert abs(accuracy["integer"] - accuracy["quantized"]) <= 0.01
    assert accuracy["quantized"] > 0.95 or name in EXACT
    assert sum(row["codes"] for row in rows) > 90_000
    if name in EXACT:
        assert info["same"] and all(row["different"] == 0 for row in rows)
    if name == "mxint":
        exact = [row for row in rows if row["kind"] not in ROUNDED_TWICE]
        assert all(row["different"] == 0 == row["saturated"] for row in exact)
        assert share_different(rows, ROUNDED_TWICE) < 1e-3
    if name == "scale_integer":
        between = [row for row in rows if row["name"] != rows[-1]["name"]]  # logits are real
        assert all(row["largest"] <= 1 for row in between)
        assert share_different(between, {row["kind"] for row in between}) < 1e-3


@pytest.mark.sampled(4)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", list(WEIGHTS))
def test_formats_of_weights(model, name):
    info = lowered(model, QuantSpec(FITTED, WEIGHTS[name], FITTED), QuantSpec.uniform(FITTED))
    accuracy, (*between, last) = info["accuracy"], info["operators"]
    assert abs(accuracy["integer"] - accuracy["quantized"]) <= 0.01
    # Results between layers may lie on either side of a tie.
    assert all(row["largest"] <= 1 for row in between)
    assert share_different(between, {row["kind"] for row in between}) < 2e-3
    if model == "mlp":
        # Products, sums, the bias and scales on either side are rounded in float32.
        error = (info["terms"] + 3) * 2.0**-24
        assert last["largest"] <= error * max(-last["low"], last["high"])
        assert info["same"] or "scale" in name
