"""Recipes: patterns to formats, alike in passes, on loading and in jobs."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from chop import ChopConfig, MaseGraph, passes
from chop.actions.compress.settings import CompressConfig
from chop.actions.export.settings import ExportConfig
from chop.cli.values import read_value
from chop.errors import ConfigError
from chop.formats import format_string, parse_format_string
from chop.formats.recipe import Recipe, match_paths
from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantizedOperator
from chop.passes.module import quantize_module_transform_pass
from chop.pipelines.packed_weights import pack_weights
from tests.ir.test_hf_folder import CAUSAL, IDS, decoder

PATHS = ["model.embed", "model.layers.1.mlp.up", "model.layers.10.mlp.up", "model.head", "head"]
PATTERNS = ["re:.*mlp", "re:model.layers.1", r"re:.*layers\.1\.", "re:.*up$", "re:head", "re:zzz"]
RECIPE = {
    "overrides": {"re:.*down_proj": "mxint8", "layers.0.mlp": "mxint:width=6"},
    "skip": ["lm_head", "re:.*self_attn.[qk]_proj"],
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.sampled(2)
def test_expressions_match_as_those_of_compressed_tensors(pattern):
    match = pytest.importorskip("compressed_tensors.utils.match").match_name
    assert match_paths(pattern, PATHS) == {path for path in PATHS if match(path, pattern)}


def test_paths_mean_what_is_in_them_and_whole_ones_precede():
    assert match_paths("head", PATHS) == {"head"}
    assert match_paths("up", PATHS) == set(PATHS[1:3]) == match_paths("mlp", PATHS)
    assert match_paths("layers.1", PATHS) == {PATHS[1]}
    assert match_paths(r"re:.*layers\.\d$", PATHS) == {PATHS[1]}
    assert match_paths("ead", PATHS) == set() == match_paths("up", [])


def texts(model):
    """The formats of the weights by the path of their module; "" of float ones."""
    return {
        path: format_string(module.spec.number_format("weight"))
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, QuantizedOperator) and not module.spec.weight.is_identity
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "float"
    decoder("llama").save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def graph():
    return MaseGraph(decoder("llama"))


@pytest.mark.long
def test_a_recipe_means_the_same_everywhere(folder, graph, tmp_path):
    given = ChopConfig("mxint4", operators="linear", **RECIPE)
    model = CAUSAL.from_pretrained(folder, quantization_config=given)
    expected = dict.fromkeys(["v_proj", "o_proj"], "mxint:width=4") | {
        "down_proj": "mxint",
        **dict.fromkeys(["gate_proj", "up_proj"], "mxint:width=6"),
    }
    found = texts(model)
    assert {path.rpartition(".")[2]: text for path, text in found.items()} == expected
    weight = {"config": {"weight": {"name": "mxint", "width": 4}}}
    mg, _ = passes.quantize_transform_pass(graph, {"linear": weight, **RECIPE})
    modules, info = quantize_module_transform_pass(decoder("llama"), {"linear": weight, **RECIPE})
    assert texts(mg.model) == texts(modules) == found and info["quantized"] == 5
    # A folder says by module what the recipe came to.
    model.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())["quantization_config"]["modules"]
    assert stored.keys() == found.keys() and RECIPE["skip"] == given.to_dict()["skip"]
    again = CAUSAL.from_pretrained(tmp_path)
    assert texts(again) == found and torch.equal(again(IDS).logits, model(IDS).logits)


def test_a_tied_layer_has_the_format_of_the_other(folder):
    load = CAUSAL.from_pretrained
    given = ChopConfig("mxint4", overrides={"lm_head": "mxint8"})
    found = texts(load(folder, quantization_config=given))
    assert found["lm_head"] == found["model.embed_tokens"] == "mxint"
    given = ChopConfig("mxint4", overrides={"lm_head": "mxint8", "embed_tokens": "mxint6"})
    with pytest.raises(ConfigError, match="'lm_head' and 'model.embed_tokens' share a weight"):
        load(folder, quantization_config=given)


def test_overrides_alone_and_layers_by_pattern():
    net = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32))
    mg, info = passes.quantize_transform_pass(MaseGraph(net), {"overrides": {"re:[02]": "mxint4"}})
    assert info["quantized"] == 2 and set(texts(mg.model)) == {"0", "2"}
    rule = {"config": {"weight": {"name": "mxint"}, "data_in": {"name": "mxint"}}}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "name", "re:[2]": rule})
    assert texts(mg.model) == {"0": "mxint:width=4", "2": "mxint"}
    mg, _ = passes.quantize_transform_pass(mg, {"overrides": {"2": "mxint6"}})
    spec = mg.modules["2"].spec
    assert spec.weight.width == 6 and spec.data_in.width == 8


def test_functions_in_a_module_that_is_skipped_stay_float(graph):
    rule = {"config": {"name": "mxint"}}
    rules = {"silu": rule, "mul": rule, "linear": rule}
    mg, _ = passes.quantize_transform_pass(graph, {**rules, "skip": "self_attn"})
    inside = [m for n in mg.nodes if "self_attn" in str(n.meta.get("nn_module_stack", ""))
              if isinstance(m := mg.get_module(n), QuantizedOperator)]  # fmt: skip
    assert not inside and any("mlp" in path for path in texts(mg.model))


def test_weights_of_an_export_follow_it(graph):
    given = Recipe.read(RECIPE["overrides"], RECIPE["skip"], "")
    with pytest.raises(ConfigError, match="'model.embed_tokens' shares its weight with"):
        pack_weights(graph, parse_format_string("mxint4"), recipe=given)
    given = replace(given, skip=(*given.skip, "embed_tokens"))
    mg = pack_weights(graph, parse_format_string("mxint4"), recipe=given)
    packed = [m for m in mg.model.modules() if isinstance(m, PackedOperator)]
    assert len(packed) == 5 and texts(mg.model)["model.layers.0.mlp.down_proj"] == "mxint"
    assert "lm_head" not in texts(mg.model)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"overrides": {"re:.*dwn_proj": "mxint8"}}, r"'re:.*dwn_proj' matches no .*'down_proj'"),
        ({"overrides": {"down_prj": "mxint8"}}, "did you mean 'down_proj'"),
        ({"overrides": {"re:(": "mxint8"}}, "is not a regular expression"),
        ({"overrides": {"re:": "mxint8"}}, "expected a path, or 're:'"),
        ({"overrides": {"": "mxint8"}}, "expected a path, or 're:'"),
        ({"overrides": {"mlp": "float"}}, "format 'float' cannot store weights"),
        ({"overrides": {"mlp": "mxnt8"}}, "mxint"),
        ({"overrides": ["mlp"]}, "expected formats by pattern"),
        ({"overrides": {"mlp": 8}}, "expected formats by pattern"),
        ({"overrides": {"q_proj": "mxint8"}, "skip": "self_attn"}, "matches no quantized layer"),
        ({"overrides": {"norm": "mxint8"}}, "'norm' matches no quantized layer"),
        ({"skip": ["re:.*dwn_proj"]}, "dwn_proj"),
        ({"skip": "re:["}, "is not a regular expression"),
    ],
)
@pytest.mark.sampled(4)
def test_mistakes_are_named(folder, graph, given, message):
    with pytest.raises(ConfigError, match=message):
        config = ChopConfig("mxint4", **given)
        CAUSAL.from_pretrained(folder, quantization_config=config)
    rule = {"config": {"weight": {"name": "mxint", "width": 4}}}
    for run, model in [
        (passes.quantize_transform_pass, graph),
        (quantize_module_transform_pass, decoder("llama")),
    ]:
        with pytest.raises(ConfigError, match=message):
            run(model, {"linear": rule, **given})


def test_settings_of_jobs_read_it():
    given = ["re:.*down_proj=mxint:width=8", "0=8.4"]
    read = read_value(given, Mapping[str, str])
    assert read == {"re:.*down_proj": "mxint:width=8", "0": "8.4"}
    assert CompressConfig(overrides=read, skip=("a",)).recipe == Recipe(read, ("a",))
    with pytest.raises(ConfigError, match="awq scales weights for one format"):
        CompressConfig(overrides=read, method=("awq",))
    with pytest.raises(ConfigError, match="exceptions from formats: expected formats"):
        CompressConfig(skip=("a",), formats=(), layers={"fc1": {"weight": "8.4"}})
    with pytest.raises(ConfigError, match="expected --format for the other weights"):
        ExportConfig("gpt-tiny", ("gptq",), overrides=read)
