"""Tokens per second: what is measured is what `generate` does."""

import importlib.util

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from chop.bench.clock import clock_for
from chop.errors import ConfigError
from chop.models import load_model
from chop.nn.packed import PackedLinear
from chop.studies import llama_cpp, quantized_caches
from chop.studies.generate import (
    GenerateComparison,
    bench_generate,
    packed_graph,
)
from chop.studies.generation_peers import (
    CompiledDecoder,
    NativeDecoder,
    TorchDecoder,
    build_peers,
    decode_call,
    prefill_call,
    saved_bytes,
)
from chop.studies.quantized_caches import check_caches, compare_caches
from chop.studies.results import numeric_rows
from chop.studies.settings import BenchGenerateConfig

IDS = torch.randint(300, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model():
    return load_model("gpt-tiny")


def test_a_step_gives_the_logits_of_the_whole_text_and_forgets(model):
    with torch.inference_mode():
        whole = model(torch.cat([IDS, IDS[:, :1]], 1)).logits
        step = decode_call(model, IDS)
        for _ in range(3):
            torch.testing.assert_close(step(), whole[:, -1:], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            prefill_call(model, IDS)(), whole[:, -2:-1], rtol=1e-4, atol=1e-4
        )


@pytest.mark.long
def test_a_compiled_step_gives_the_logits_of_the_whole_text_and_forgets(model):
    packed = packed_graph(model, "group_integer4").to_module().eval()
    with torch.no_grad():
        whole = packed(torch.cat([IDS, IDS[:, :1]], 1)).logits
        step = CompiledDecoder("compiled", packed).call("decode", IDS)
        for _ in range(3):
            torch.testing.assert_close(step(), whole[:, -1:], rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_a_native_step_gives_the_logits_of_the_whole_text_and_forgets(model):
    packed, one = packed_graph(model, "mxint8").to_module().eval(), IDS[:1]
    with torch.inference_mode():
        whole = packed(torch.cat([one, one[:, :1]], 1)).logits
        native = NativeDecoder("native", packed)
        step = native.call("decode", one)
        for _ in range(3):
            torch.testing.assert_close(step(), whole[:, -1:], rtol=1e-4, atol=1e-4)
    assert native.model.forward._steps is not None
    assert "forward" not in vars(packed)


@pytest.mark.long
def test_packed_weights_are_in_a_model_of_the_same_class(model):
    twin = packed_graph(model, "mxint8").to_module().eval()
    assert type(twin) is type(model)
    packed = [m for m in twin.modules() if isinstance(m, PackedLinear)]
    assert len(packed) == sum(isinstance(m, nn.Linear) for m in model.modules())
    text = {"max_new_tokens": 4, "do_sample": False}
    assert twin.generate(IDS, **text).shape == (2, 13)
    assert saved_bytes(twin) < 0.3 * saved_bytes(model)


def test_peers_answer_alike_and_missing_ones_say_why(model):
    found, missing = build_peers(model)
    names = [contender.name for contender in found]
    assert names[:2] == ["bfloat16", "quantize_dynamic"]
    assert ("torchao" in missing) == (len(names) == 2)
    with torch.inference_mode():
        exact = model(IDS).logits
        for contender in found:
            error = (contender.model(IDS).logits - exact).norm() / exact.norm()
            assert error < 0.2, contender.name
    assert next(model.parameters()).dtype == torch.float32


@pytest.mark.parametrize("missing", [("torchao",), ("torchao", "quantize_dynamic"), ()])
def test_results_with_missing_peers_are_rows(missing):
    told = dict.fromkeys(missing, "is not installed: pip install torchao.")
    assert list(numeric_rows(GenerateComparison((), {}, told))) == [
        {"table": "missing", "name": name, "value": told[name]} for name in missing
    ]


@pytest.mark.long
def test_the_command_measures_every_model(tmp_path):
    found = bench_generate(BenchGenerateConfig(quick=True, formats=("mxint4",), out=tmp_path))
    assert [row.model for row in found.rows] == ["float32", "mxint4"]
    assert set(found.comparisons) == {"prefill", "decode"}
    for row in found.rows:
        assert row.decode_per_second == pytest.approx(1 / row.decode.seconds)
        assert row.prefill_per_second == pytest.approx(8 / row.prefill.seconds)
    (table,) = found.tables().values()
    assert table[0]["decode, times as fast"] == "1 (baseline)"


@pytest.mark.long
def test_caches_are_compared_on_text_that_the_model_writes(model, monkeypatch):
    monkeypatch.setattr(quantized_caches, "JUDGED", 24)
    formats = ("float", "group_integer8", "mxint4/float", "binary")
    clock = clock_for(torch.device("cpu"), 1, None)
    check_caches(model, formats, 80, residual=16)
    start = IDS[:, :1]
    float_cache, same, *coarser = compare_caches(model, formats, 80, 16, clock, start)
    layers, size = model.config.num_hidden_layers, model.config.hidden_size // 2  # of key heads
    numbers = 2 * layers * 2 * (80 + 24) * size
    assert float_cache.size_bytes == same.size_bytes == same.float_bytes == 4 * numbers
    assert (float_cache.bits, same.divergence, same.same_token) == (32.0, 0.0, 1.0)
    divergences = [row.divergence for row in coarser]
    assert 0 < divergences[0] < divergences[1] < divergences[2]
    coded = (80 + 24 - 16) // 32 * 32  # of 104 tokens
    expected = (coded * 8.5 + (80 + 24 - coded) * 32) / (80 + 24)
    assert coarser[0].bits == pytest.approx(expected)
    assert all(row.seconds > 0 and row.times_as_fast > 0 for row in coarser)
    (title,) = GenerateComparison((), {"decode": Named()}, {}, (same,)).tables().keys() - {
        "Generating text (once)"
    }
    assert title.startswith("KV caches")


class Named:
    """Stands for times."""

    how = "once"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "mlp"}, "expected a decoder"),
        ({"prompt": 0}, "prompt: got 0, expected 1 or more"),
        ({"residual": -1}, "residual: got -1, expected 0 or more"),
        ({"caches": ("mxint4",), "prompt": 65}, "65 tokens stay float in a cache in mxint4"),
        (
            {"caches": ("mxint4",), "prompt": 200},
            "expected at most 128, got 200: the model supports 256 tokens",
        ),
        ({"caches": ("mxin4",)}, "did you mean 'mxint'"),
        ({"caches": ("mxint4/8.auto",)}, "specify its fields as numbers"),
    ],
)
def test_what_cannot_generate(settings, message):
    with pytest.raises(ConfigError, match=message):
        bench_generate(BenchGenerateConfig(quick=True, **settings))


def test_an_encoder_with_the_head_of_a_decoder_has_no_cache_to_measure(tmp_path):
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=40, hidden_size=16, **sizes)
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="a cache, such as gpt-tiny; got a Bert"):
        bench_generate(BenchGenerateConfig(model=str(tmp_path), quick=True))


def test_llama_cpp_that_is_not_there_says_why(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert llama_cpp.contenders([], 10, 1) == (
        [],
        {"llama.cpp": "is not installed: pip install cyllama."},
    )


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("cyllama") is None,
    reason="llama.cpp is called by cyllama: pip install cyllama",
)
def test_llama_cpp_answers_alike_again_and_again(model):
    graphs = {name: packed_graph(model, name) for name in ("mxint8", "mxfp8")}
    (found,), missing = llama_cpp.contenders(graphs.items(), 10, 1)
    assert "gguf cannot store" in missing["llama.cpp mxfp8"]
    twin = TorchDecoder("ours", graphs["mxint8"].to_module().eval())
    for kind in ("prefill", "decode"):
        expected, call = twin.call(kind, IDS[:1])(), found.call(kind, IDS[:1])
        assert (call() - expected).norm() < 0.05 * expected.norm()
        for _ in range(2):  # later calls leave their logits in llama.cpp
            call()
            logits = torch.tensor(found._context.get_logits())
            assert (logits - expected.flatten()).norm() < 0.05 * expected.norm()
