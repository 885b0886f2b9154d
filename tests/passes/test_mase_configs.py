"""Whole TOML files with the keys that MASE's own have, on the model that they are for."""

import logging
import warnings

import pytest
import torch

from chop import MaseGraph, passes
from chop.base.notices import forget_notices
from chop.config import load_toml
from chop.data import get_dataset_info
from chop.errors import ConfigError
from chop.models import get_model
from chop.passes.module import quantize_module_transform_pass
from tests.passes.conftest import with_metadata
from tests.subcases import subcases

HEAD = 'model = "toy"\ndataset = "digits"\n\n[passes.quantize]\nby = "{by}"\nreport = true\n\n'
OPERANDS = ("data_in", "weight", "bias")


def keys(**fields):
    return [f"{name}_{key} = {value}" for name in OPERANDS for key, value in fields.items()]


def section(rule, name, *lines):
    return "\n".join([f"[passes.quantize.{rule}.config]", f'name = "{name}"', *lines, ""])


def file_of(*sections, by="type"):
    return HEAD.format(by=by) + "\n".join(sections)


def of_one(name, **fields):
    """A file with one format for all operators."""
    return file_of(section("default", name, *keys(**fields)))


FIXED = keys(width=6, frac_width=2)
FLOATS = {"width": 6, "exponent_width": 3, "exponent_bias": 4}
SIGNS = keys(width=1, stochastic=0, bipolar=1)
UNKNOWN = keys(mean='"NA"', median='"NA"', max='"NA"')
FILES = {
    "binary": file_of(
        section("default", "binary", 'binary_training = "NA"', "data_in_frac_width = 0", *SIGNS)
    ),
    "block_fp": of_one(
        "block_fp", width=5, exponent_width=8, exponent_bias=120, block_size="[1, 8]"
    ),
    "block_log": of_one("block_log", width=5, exponent_bias_width=5, block_size="[8]"),
    "block_minifloat": of_one(
        "block_minifloat", width=6, exponent_width=3, exponent_bias_width=5, block_size="[8]"
    ),
    "fixed": file_of(
        section("default", "fixed", "cache_quantized_weight = true", *FIXED),
        section("relu", "fixed", *keys(width=5, frac_width=1)),
    ),
    "fixed_with_outputs": file_of(
        section(
            "default",
            "fixed",
            "floor = true",
            *FIXED,
            "data_out_width = 9",
            "data_out_frac_width = 3",
        )
    ),
    "fixed_activation_binary": file_of(
        section(
            "default",
            "binary",
            "binary_training = 1",
            *SIGNS[3:],
            "data_in_width = 24",
            *SIGNS[1:3],
            *keys(frac_width=0),
        )
    ),
    "integer": of_one("integer", width=6, frac_width=2),
    "log": of_one("log", width=6, exponent_bias=100),
    "minifloat_denorm": of_one("minifloat_denorm", **FLOATS),
    "minifloat_ieee": of_one("minifloat_ieee", **FLOATS),
    "ternary_scaled": file_of(
        section("default", "ternary", *keys(width=2, scaling_factor="true"), *UNKNOWN),
        section(
            "seq_blocks_1",
            "ternary",
            "data_in_scaling_factor = true",
            "data_in_width = 2",
            "data_in_frac_width = 0",
            'data_in_mean = "NA"',
            "data_in_median = -0.5",
            "data_in_max = 3.5",
        ),
    ),
    "uniform": file_of(
        section(
            "default", "binary", "stochastic = true", "bipolar = true", *keys(width=1, frac_width=0)
        )
    ),
    "integer_by_name": file_of(
        section("default", "integer", *FIXED),
        section("seq_blocks_0", "integer", *keys(width=14, frac_width=3)),
        by="name",
    ),
}


@pytest.fixture(scope="module")
def toy():
    return with_metadata(MaseGraph(get_model("toy", dataset_info=get_dataset_info("digits"))))


@pytest.mark.filterwarnings("ignore::chop.base.notices.AdjustedWarning")
@pytest.mark.filterwarnings("ignore:.* lose weights to the format:UserWarning")
@subcases("name", FILES)
def test_every_file_quantizes_the_model(toy, tmp_path, name):
    (tmp_path / "file.toml").write_text(FILES[name])
    config = load_toml(tmp_path / "file.toml")["passes"]["quantize"]
    small, info = passes.quantize_transform_pass(toy, config)
    assert info["quantized"] >= 5  # three linear layers and two activations
    kind = small.modules["seq_blocks.0"].spec.weight.name
    assert kind == {"fixed": "integer"}.get(config["default"]["config"]["name"], kind)
    y = small.model(torch.randn(3, 1, 8, 8))
    assert y.isfinite().all() and not torch.equal(y, toy.model(torch.randn(3, 1, 8, 8)))
    assert config == load_toml(tmp_path / "file.toml")["passes"]["quantize"]


def test_values_are_those_of_the_file(toy, tmp_path):
    for name in ("fixed", "integer_by_name"):
        (tmp_path / name).write_text(FILES[name])
    read = lambda name: load_toml(tmp_path / name)["passes"]["quantize"]  # noqa: E731
    fixed, _ = passes.quantize_transform_pass(toy, read("fixed"))
    assert fixed.modules["seq_blocks.0"].spec.weight.label == "integer 6.2"
    assert fixed.modules["seq_blocks.1"].spec.data_in.label == "integer 5.1"
    by_name, _ = passes.quantize_transform_pass(toy, read("integer_by_name"))
    assert by_name.modules["seq_blocks.0"].spec.weight.label == "integer 14.3"
    assert by_name.modules["seq_blocks.2"].spec.weight.label == "integer 6.2"
    plain, info = quantize_module_transform_pass(toy.model, read("fixed"))
    assert info["quantized"] == 5 and plain.get_submodule("seq_blocks.0").spec.weight.width == 6


LINEAR = {"config": {"name": "integer", "width": 8, "frac_width": 4}}
OPTIONS = {
    "report": True,
    "baseline_weight_path": "baseline.mz",
    "load_type": "mz",
    "input_generator": iter(()),
    "dummy_in": {"x": torch.zeros(1)},
}


def test_options_of_mases_have_one_line_in_the_debug_log(toy, caplog):
    quantize = {"by": "type", "linear": LINEAR, **OPTIONS}
    prune = {"weight": {"sparsity": 0.5, "method": "l1-norm", "scope": "local"}, **OPTIONS}
    prune["activation"] = "NA"
    with caplog.at_level(logging.DEBUG, "chop.config"):
        assert passes.quantize_transform_pass(toy, quantize)[1] == {"quantized": 3}
        assert passes.prune_transform_pass(toy, prune)[1]["sparsity"] == pytest.approx(
            0.5, abs=0.01
        )
    first, second = [record.getMessage() for record in caplog.records]
    listed = "report, baseline_weight_path, load_type, input_generator, dummy_in"
    assert (
        first == f"quantize_transform_pass: {listed}: settings of MASE without an effect in chop."
    )
    assert second == first.replace("quantize", "prune")


def test_other_keys_stay_errors(toy):
    with pytest.raises(ConfigError, match=r"\['reprot'\]: expected {'config': {...}}, got True"):
        passes.quantize_transform_pass(toy, {"by": "type", "linear": LINEAR, "reprot": True})
    with pytest.raises(
        ConfigError, match="no quantizable operator.*'linaer': did you mean 'linear'"
    ):
        passes.quantize_transform_pass(toy, {"by": "type", "linaer": LINEAR})
    # A layer may be called as an option is: then it is a rule.
    with pytest.raises(ConfigError, match="no quantizable node in this model matches 'report'"):
        passes.quantize_transform_pass(toy, {"by": "name", "report": LINEAR})


def test_a_node_among_types_is_told_once(toy):
    forget_notices()
    config = {"by": "type", "linear": LINEAR, "seq_blocks_1": LINEAR}
    with pytest.warns(match="'seq_blocks_1' names a node, but rules by 'type'"):
        _, info = passes.quantize_transform_pass(toy, config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        passes.quantize_transform_pass(toy, config)
    assert info == {"quantized": 3}


def test_metadata_passes_take_the_dummy_input_that_mase_gives_them(toy):
    dummy = {"dummy_in": {"x": torch.randn(2, 1, 8, 8)}, "add_value": False}
    for run in (
        passes.add_software_metadata_analysis_pass,
        passes.add_hardware_metadata_analysis_pass,
        passes.add_pruning_metadata_analysis_pass,
    ):
        assert run(toy.copy(), dummy)[0] is not None
