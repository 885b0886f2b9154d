"""A model trained with rounding is better than one rounded after training, in every format."""

import math

import pytest

from chop import MaseGraph, passes
from chop.formats import (
    Binary,
    BinaryResidual,
    BlockFP,
    BlockLog,
    BlockMinifloat,
    Float,
    GroupAffine,
    GroupInteger,
    Integer,
    Log,
    MinifloatDenorm,
    MinifloatIEEE,
    MXInt,
    QuantSpec,
    ScaleInteger,
    Ternary,
    formats,
)
from chop.train import default_dataset, evaluate, fit, load_trained, read_rows

# Narrow enough that rounding alone costs something.
NARROW = [
    Integer(4, 2),
    MinifloatDenorm(4, 2, 3),
    MinifloatIEEE(4, 2, 2),
    Log(3, 3),
    BlockFP(2),
    BlockMinifloat(4, 2, 2),
    BlockLog(2),
    *(Binary(), Binary(scaling_factor=True)),
    BinaryResidual(levels=1),
    Ternary(scaling_factor=True),
    ScaleInteger(3),
    GroupAffine(2),
    GroupInteger(2),
    MXInt(2),
]


@pytest.fixture(scope="module")
def workload():
    dataset = default_dataset("mlp")
    rows = {split: read_rows(dataset[split]) for split in ("train", "test")}
    example = {"pixel_values": rows["train"].columns["pixel_values"][:3]}
    mg, _ = passes.init_metadata_analysis_pass(MaseGraph(load_trained("mlp"), dummy_in=example))
    return passes.add_common_metadata_analysis_pass(mg)[0], rows


@pytest.mark.parametrize("fmt", NARROW, ids=lambda fmt: fmt.label)
@pytest.mark.long
def test_training_with_rounding_improves(workload, fmt):
    mg, rows = workload
    # What comes out of a ReLU has no sign to keep.
    data_in = Float() if fmt.name.startswith("binary") else fmt
    # No norm keeps values in range here: where they saturate, an unclipped gradient drives them on.
    spec = {"config": QuantSpec(data_in, fmt, gradient="clip")}
    rounded, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": spec})
    before = evaluate(rounded.model, rows["test"])
    losses = fit(rounded.model, rows["train"], epochs=6, lr=3e-3)
    assert all(map(math.isfinite, losses)) and losses[-1] < 0.7 * losses[0]
    assert evaluate(rounded.model, rows["test"]) > before + 0.005


def test_no_format_is_left_out():
    loses_nothing = {"float", "fp8", "k_quant", "mxfp", "nf4", "nvfp4"}
    assert {fmt.name for fmt in NARROW} == {kind.name for kind in formats()} - loses_nothing
