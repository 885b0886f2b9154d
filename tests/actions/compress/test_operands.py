"""Default operands of `chop compress`: weights of language models, all operands of others."""

import dataclasses
import json
import re
import sys

import pytest
import torch

import chop
from chop import MaseGraph, passes
from chop.actions.compress.job import compress
from chop.actions.compress.settings import CompressConfig
from chop.actions.compress.targets import about_targets, export_targets
from chop.actions.export.job import export
from chop.actions.export.settings import ExportConfig
from chop.data import get_tokenizer
from chop.export.targets import TARGETS
from chop.formats import INPUT_OPERANDS
from chop.ir.huggingface.card import card_rows
from chop.models import load_model
from chop.nn.quantized import QuantizedOperator
from tests.workloads import untrained

QUICK = {"bench_seconds": 0, "qat_epochs": 0, "keep_best": True, "force": True, "onnx": False}
FORMAT = {"formats": ("group_integer:width=4",)}
TEXTS = {"dataset": "stories", "limit": 4, "max_length": 16}
INTERVAL = r"[\d.]+ \(95 % interval .+\) on 4 test rows of stories; float [\d.]+ \(95 % .+\)"
PERPLEXITY = "perplexity (lower is better)"
ASSUMED = "Inputs and biases of a language model stay float"


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """The folder of a decoder with a separate head, whose sizes every target supports."""
    import transformers

    folder = tmp_path_factory.mktemp("decoder") / "llama"
    tokenizer = get_tokenizer("gpt-tiny")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    count = -len(tokenizer) // 32 * -32
    config = transformers.LlamaConfig(vocab_size=count, num_attention_heads=2, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def run(decoder, tmp_path_factory):
    """A compressed decoder, and its result."""
    out = tmp_path_factory.mktemp("run") / "out"
    return out, compress(CompressConfig(model=decoder, out=out, **FORMAT, **TEXTS, **QUICK))


def operands(folder):
    """The operands that some layer of a run's model rounds."""
    model = MaseGraph.from_checkpoint(folder / "model").model
    layers = [x for x in model.modules() if isinstance(x, QuantizedOperator)]
    return {name for x in layers for name, fmt in x.spec.items() if not fmt.is_identity}


@pytest.mark.long
def test_a_decoder_has_float_inputs(run):
    out, result = run
    assert operands(out) == {"weight"} and result["config"]["operands"] == ("weight",)
    assert json.loads((out / "manifest.json").read_text())["settings"]["operands"] == ["weight"]
    (assumed,) = [text for text in result["assumptions"] if ASSUMED in text]
    assert "--operands data_in,weight,bias" in assumed
    assert ASSUMED in (out / "report.html").read_text()


def test_the_report_names_the_targets_that_hold_the_result(run):
    out, result = run
    assert {name for name, why in result["targets"].items() if why} == {"modelopt", "qonnx"}
    text = " ".join((out / "table.md").read_text().split())
    assert "gguf (llama.cpp, transformers)" in text and "some formats as floats" in text
    assert "qonnx: model.embed_tokens: QONNX has no node" in text


def test_a_reason_of_several_targets_is_given_once():
    whys = {"gptq": "gptq: expected a decoder.", "gguf": "gguf: expected a decoder.", "onnx": ""}
    notes = [note.text for note in about_targets({**whys, "qonnx": "fc: no node"})]
    assert notes[1:] == [
        "Targets that cannot store it: gptq, gguf: expected a decoder; qonnx: fc: no node."
    ]


@pytest.mark.long
@pytest.mark.parametrize("model", ["gpt-tiny", "vit"])
def test_targets_are_named_without_their_libraries(model, monkeypatch):
    """The main job runs on the requirements alone."""
    mg, _ = passes.pack_transform_pass(MaseGraph(chop.quantize(load_model(model), "mxint4")))
    for target in TARGETS.values():
        if target.extra:
            for name in (target.library, *target.needs):
                monkeypatch.setitem(sys.modules, name, None)
    reasons = export_targets(mg)
    assert reasons.keys() == {*TARGETS} and reasons["onnx"] == ""
    needs = [why for why in reasons.values() if why.startswith("the check needs")]
    assert all("pip install" in why for why in needs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["compressed-tensors", "gptq", "gguf"])
def test_targets_for_language_models_hold_the_result(run, tmp_path, name):
    pytest.importorskip(TARGETS[name].library)
    # This tokenizer has no form in GGUF.
    settings = {"to": (name,), "seconds": 0, "tokenizer": name != "gguf"}
    (row,) = export(ExportConfig(model=str(run[0]), out=tmp_path, **settings))
    assert row.weights.equal == row.weights.compared > 0
    assert row.difference < 1e-4 and row.changes == ()
    if name != "gguf":
        made, own = (card_rows(x / "README.md") for x in (run[0] / "model", tmp_path / name))
        assert own["method"] == made["method"] and own["calibration data"] == "none"
        assert own["base model"] == made["base model"] == "llama"
        assert re.fullmatch(INTERVAL, own[PERPLEXITY]) and own["versions"] == made["versions"]
        assert float(own["bits per weight"]) > float(made["bits per weight"])  # a float embedding


def test_the_card_has_the_measured_metric(run):
    out, result = run
    rows = card_rows(out / "model" / "README.md")
    assert rows["method"] == "PTQ: each weight is rounded to the nearest value"
    assert re.fullmatch(INTERVAL, rows[PERPLEXITY]) and "command" not in rows
    assert f"{result['saved']['perplexity']:.2f}" in rows[PERPLEXITY]
    assert float(rows["bits per weight"]) == pytest.approx(result["saved"]["bits"], abs=0.006)


@pytest.mark.long
def test_given_operands_win(decoder, tmp_path):
    given = {"operands": ("data_in", "weight"), **FORMAT, **TEXTS, **QUICK}
    result = compress(CompressConfig(model=decoder, out=tmp_path, **given))
    assert operands(tmp_path) == {"data_in", "weight"}
    assert not any(ASSUMED in text for text in result.get("assumptions", ()))
    assert "it rounds its inputs to group_integer" in result["targets"]["gguf"]


@pytest.mark.parametrize("method", [("smoothquant",), ("smoothquant", "gptq")])
def test_smoothquant_rounds_inputs(method, decoder, tmp_path):
    settings = {**TEXTS, **QUICK, "method": method, "formats": ("mxint:width=8",)}
    config = CompressConfig(model=decoder, out=tmp_path, **settings)
    assert config.with_operands(is_language_model=True).operands == INPUT_OPERANDS
    plain = dataclasses.replace(config, method=("gptq",))
    assert plain.with_operands(is_language_model=True).operands == ("weight",)


@pytest.mark.long
def test_smoothquant_moves_outliers_of_rounded_inputs(decoder, tmp_path):
    settings = {**TEXTS, **QUICK, "method": ("smoothquant",), "formats": ("mxint:width=8",)}
    result = compress(CompressConfig(model=decoder, out=tmp_path, **settings))
    assert operands(tmp_path) == {"data_in", "weight"}
    assert not any(ASSUMED in text for text in result.get("assumptions", ()))


@pytest.mark.long
def test_blocks_have_float_inputs(decoder, tmp_path):
    settings = {**TEXTS, **QUICK, **FORMAT, "method": ("gptq",), "model": decoder}
    settings |= {"onnx": None, "by_block": True}
    result = compress(CompressConfig(out=tmp_path, **settings))
    assert {name for name, why in result["targets"].items() if why} == {"modelopt", "qonnx"}
    assert "gguf (llama.cpp, transformers)" in (tmp_path / "table.md").read_text()
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    modules = config["quantization_config"]["modules"]
    assert "GPTQ: " in card_rows(tmp_path / "model" / "README.md")["method"]
    assert modules and all("data_in" not in json.dumps(each) for each in modules.values())


@pytest.mark.usefixtures("unpainted")
def test_other_models_round_all_operands(tmp_path):
    result = compress(CompressConfig(out=tmp_path, formats=("8.auto",), **QUICK), untrained())
    assert operands(tmp_path) == {"data_in", "weight", "bias"}
    assert not any(ASSUMED in text for text in result.get("assumptions", ()))


@pytest.mark.long
def test_a_decoder_that_a_function_judges_has_float_inputs(decoder, tmp_path):
    model, rows = load_model(decoder), {"input_ids": torch.randint(100, (4, 6))}
    chop.compress(model, rows, evaluate=lambda model: 1.0, out=tmp_path, **FORMAT, **QUICK)
    assert operands(tmp_path) == {"weight"}


def test_operators_without_a_weight_round_their_inputs():
    # Of attention, a format of weights alone would round nothing.
    for names in (("scaled_dot_product_attention",), ("linear", "scaled_dot_product_attention")):
        config = CompressConfig(operators=names).with_operands(is_language_model=True)
        assert config.operands == ("data_in", "weight", "bias")
    config = CompressConfig(operators=("linear",)).with_operands(is_language_model=True)
    assert config.operands == ("weight",)
