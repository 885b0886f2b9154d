"""Folders of decoders in onnxruntime-genai and openvino-genai: the greedy tokens of the graph.

`CHOP_ORT_GENAI` and `CHOP_OPENVINO_GENAI` name the Pythons of environments of their own that have
onnxruntime-genai, and openvino-genai of the version of openvino here.
"""

import functools
import json
import os
import re
import subprocess
from types import MappingProxyType, SimpleNamespace

import pytest
import torch
import transformers
from tokenizers import decoders

from chop import MaseGraph
from chop.base.files import atomic_files
from chop.captured.record import CaptureRecord
from chop.errors import ConfigError
from chop.export import language_model, openvino
from chop.export.onnx.genai import write_genai_files
from chop.export.target import Target
from chop.export.targets import target
from chop.formats import parse_format_string
from chop.pipelines.packed_weights import pack_weights
from tests.export.decoders import HEADS, SIZES
from tests.export.gguf.test_target import VOCABULARY
from tests.export.gguf.test_tokenizer import byte_level
from tests.onnx_runs import translations_once
from tests.pages import ROOT

__all__ = ["translations_once"]

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", reason="onnxruntime reads the file")

FORMAT, TOKENS, TIE = "group_integer:width=4", 24, 1e-3
"""Logits of engines that differ by less than `TIE` are nearly tied."""
MODELS = {"Llama": {"num_hidden_layers": 2}, "Qwen2": {"tie_word_embeddings": True}}
STOP = {"bos_token_id": 1, "eos_token_id": [2, 5], "pad_token_id": 0}
SEARCH = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1}
PYTHONS = {
    "onnx": ("CHOP_ORT_GENAI", "onnxruntime-genai"),
    "openvino": ("CHOP_OPENVINO_GENAI", "openvino-genai"),
}
CLIENTS = {
    "onnx": """
import json, sys
import numpy as np
import onnxruntime_genai as engine

folder, prompts, count, text = json.loads(sys.argv[1])
model = engine.Model(folder)
settings = engine.GeneratorParams(model)
length = len(prompts[0]) + count
settings.set_search_options(do_sample=False, max_length=length, repetition_penalty=1.0,
                            batch_size=len(prompts))
generator = engine.Generator(model, settings)
generator.append_tokens(np.array(prompts, dtype=np.int32))
while not generator.is_done():
    generator.generate_next_token()
rows = [generator.get_sequence(i) for i in range(len(prompts))]
tokens = [[int(x) for x in row[len(prompts[0]):]] for row in rows]
tokenizer = engine.Tokenizer(model)
ids = tokenizer.encode(text).tolist()
print("FOUND", json.dumps([tokens, ids, tokenizer.decode(ids)]))
""",
    "openvino": """
import json, sys
import numpy as np
import openvino as ov
import openvino_genai as engine

folder, prompts, count, text = json.loads(sys.argv[1])
exact = {"INFERENCE_PRECISION_HINT": "f32"}
pipeline = engine.LLMPipeline(folder, "CPU", ATTENTION_BACKEND="SDPA", **exact)
settings = pipeline.get_generation_config()
settings.do_sample, settings.repetition_penalty, settings.max_new_tokens = False, 1.0, count
ids = ov.Tensor(np.array(prompts, dtype=np.int64))
given = engine.TokenizedInputs(ids, ov.Tensor(np.ones(ids.shape, dtype=np.int64)))
tokens = pipeline.generate(given, settings).tokens
tokenizer = pipeline.get_tokenizer()
ids = tokenizer.encode(text).input_ids.data[0].tolist()
print("FOUND", json.dumps([tokens, ids, tokenizer.decode(ids)]))
""",
}


SHAPES = {"input_ids": [0, 0], "logits": [0, 0, VOCABULARY]}
KEY, VALUE = (f"past_key_values.0.{part}" for part in ("key", "value"))
CACHED = {**SHAPES, KEY: [0, 2, 0, 16], VALUE: [0, 2, 0, 16]}


def in_client(kind):
    """Marks a case that runs in a client's own Python."""
    variable, library = PYTHONS[kind]
    missing = not os.environ.get(variable)
    reason = f"{variable} names no Python with {library}"
    return pytest.param(kind, marks=[pytest.mark.long, pytest.mark.skipif(missing, reason=reason)])


@functools.cache
def graph(name):
    torch.manual_seed(0)
    cls = getattr(transformers, f"{name}ForCausalLM")
    sizes = {**SIZES, **HEADS, "vocab_size": VOCABULARY, "initializer_range": 0.1, **MODELS[name]}
    model = cls(cls.config_class(**sizes)).eval()
    model.generation_config = transformers.GenerationConfig(**STOP, **SEARCH)
    return pack_weights(MaseGraph(model), parse_format_string(FORMAT))


def tokenizer():
    """Byte-level tokens, which texts of any bytes survive."""
    made = byte_level()
    made.backend_tokenizer.decoder = decoders.ByteLevel()
    return made


def run_client(kind, code, *given, cwd):
    """Returns what a program prints in a client's Python."""
    done = subprocess.run(
        [os.environ[PYTHONS[kind][0]], "-c", code, json.dumps(given)],
        env={**os.environ, "PYTHONPATH": ""},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5_000:]
    return done.stdout


def page_program(kind):
    """Returns the program of the page, which generates from a text."""
    page = (ROOT / "docs/guide/export-onnx.md").read_text()
    programs = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    (program,) = (
        x for x in programs if x.startswith(f"import {PYTHONS[kind][1].replace('-', '_')}")
    )
    return program


@torch.no_grad()
def assert_greedy(mg, prompt, tokens):
    """Each token has the graph's largest logit after the tokens before, up to near-ties.

    The last ones may be missing, after a token that ends the text.
    """
    assert len(tokens) == TOKENS or tokens[-1] in STOP["eos_token_id"]
    ids = torch.tensor([prompt + tokens])
    answer = mg.model(input_ids=ids, attention_mask=torch.ones_like(ids))
    logits = answer.logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert (logits.max(-1).values - chosen).max() <= TIE


def described(config=None, generation=MappingProxyType({**STOP, **SEARCH})):
    """A graph without nodes that has the record of a decoder: all that descriptions read."""
    sizes = {**SIZES, **HEADS, "vocab_size": VOCABULARY, **MODELS["Llama"]}
    config = transformers.LlamaConfig(**sizes) if config is None else config
    generation = None if generation is None else dict(generation)
    record = CaptureRecord("LlamaForCausalLM", config, generation_config=generation)
    return SimpleNamespace(model=SimpleNamespace(record=record))


def test_the_description_is_that_of_the_model(tmp_path):
    shapes = {**SHAPES, **{name: [0, 2, 0, 16] for name in (KEY, VALUE)}}
    shapes |= {name.replace("0", "1"): shape for name, shape in shapes.items() if "0" in name}
    path = tmp_path / "decoder.onnx"
    files, notes = write_genai_files(described(), path, shapes, tokenizer())
    assert notes == [] and {*files} == {*tmp_path.iterdir()}
    assert {path.with_name(x) for x in ("genai_config.json", "tokenizer.json")} < {*files}
    config = json.loads((tmp_path / "genai_config.json").read_text())
    model, decoder = config["model"], config["model"]["decoder"]
    expected = {**STOP, "vocab_size": VOCABULARY, "context_length": 2048, "type": "decoder"}
    assert {name: model[name] for name in expected} == expected
    sizes = {"hidden_size": 64, "head_size": 16, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "num_hidden_layers": 2, "filename": path.name}
    assert {name: decoder[name] for name in sizes} == sizes
    search = {**SEARCH, "num_beams": 1, "top_k": 50, "max_length": 2048}
    assert {name: config["search"][name] for name in search} == search
    assert config["search"]["past_present_share_buffer"] is False


@pytest.mark.parametrize(
    "config, shapes, note",
    [
        (None, {}, "its inputs have no key-value cache"),
        (None, {KEY: [0, 2, 0, 16], "pixel_values": [0, 3]}, "it also takes pixel_values"),
        (None, {KEY: [0, 2, 0, 16]}, "some of its layers have no cache"),
        (
            None,
            {KEY: [0, 2, 0, 16], VALUE: [0, 2, 0, 8]},
            "the heads of its keys and values differ in number or size",
        ),
        (
            transformers.BloomConfig(),
            {KEY: [0, 2, 0, 16], VALUE: [0, 2, 0, 16]},
            "its configuration has no max_position_embeddings",
        ),
        (
            {},
            {KEY: [0, 2, 0, 16], VALUE: [0, 2, 0, 16]},
            "its configuration is not one of transformers",
        ),
    ],
)
def test_decoders_that_the_library_cannot_run(config, shapes, note, tmp_path):
    mg = described(config)
    files, notes = write_genai_files(mg, tmp_path / "model.onnx", {**SHAPES, **shapes}, None)
    assert (files, notes) == ([], [f"onnxruntime-genai cannot run the file, because {note}"])
    assert list(tmp_path.iterdir()) == []


def test_settings_that_the_description_cannot_express(tmp_path):
    """Search settings, and a tokenizer without `tokenizer.json`, are named."""
    settings = {**STOP, "bad_words_ids": [[7]], "max_length": 99, "pad_token_id": None}
    words = transformers.ByT5Tokenizer()
    files, notes = write_genai_files(
        described(None, settings), tmp_path / "model.onnx", CACHED, words
    )
    assert {*files} == {*tmp_path.iterdir()} and tmp_path / "tokenizer.json" not in files
    assert notes == [
        "onnxruntime-genai reads only tokenizers with a tokenizer.json: pass token ids",
        "genai_config.json cannot express bad_words_ids of the generation settings",
    ]
    config = json.loads((tmp_path / "genai_config.json").read_text())
    assert (config["model"]["pad_token_id"], config["search"]["max_length"]) == (2, 99)


@pytest.mark.parametrize(
    "mg, shapes", [(described(), SHAPES), (described(generation=None), CACHED)]
)
def test_descriptions_go_with_their_decoder(mg, shapes, tmp_path):
    """A file without a decoder loses the description of the older one, but no other file's."""
    description = tmp_path / "genai_config.json"
    write_genai_files(described(), tmp_path / "model.onnx", CACHED, None)
    write_genai_files(mg, tmp_path / "classifier.onnx", shapes, None)
    assert description.exists()
    write_genai_files(mg, tmp_path / "model.onnx", shapes, None)
    assert list(tmp_path.iterdir()) == []
    description.write_text("[]")  # another program's
    write_genai_files(mg, tmp_path / "model.onnx", shapes, None)
    assert description.exists()


def test_without_its_converter_the_tokenizer_is_in_no_openvino_file(tmp_path, monkeypatch):
    """A note says how to get the converter, and no older tokenizer stays."""
    monkeypatch.setattr(openvino, "version", lambda name: None)
    (tmp_path / "openvino_tokenizer.xml").touch()
    path = tmp_path / "openvino_model.xml"
    with atomic_files(tmp_path, "model") as fresh:
        inputs = ["input_ids", KEY, VALUE]
        (note,) = openvino._write_genai_files(described(), fresh, path, inputs, tokenizer())
    assert note == (
        "openvino-genai takes only token ids, because openvino-tokenizers is not installed: pip "
        "install openvino-tokenizers, and export again"
    )
    names = {file.name for file in tmp_path.iterdir()}
    assert {"config.json", "generation_config.json", "tokenizer.json"} < names
    assert "openvino_tokenizer.xml" not in names


@pytest.mark.parametrize("kind", ["onnx", "openvino"])
@pytest.mark.parametrize("weights", ["model-00001-of-00002.safetensors", "pytorch_model.bin"])
def test_files_of_a_model_are_not_overwritten(kind, weights, tmp_path, monkeypatch):
    """Decoders are refused in such folders before anything is computed."""
    monkeypatch.setattr(Target, "require", lambda self: None)
    monkeypatch.setattr(language_model, "has_cache", lambda mg: True)
    for name in ("config.json", weights):
        (tmp_path / name).write_text("{}")
    path = tmp_path / target(kind).stem
    with pytest.raises(ConfigError, match="expected a folder without another model"):
        target(kind).export(described(), path, tokenizer())
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", weights}
    for mg, folder in ((described(generation=None), tmp_path), (described(), tmp_path / "own")):
        language_model.require_no_model(mg, folder / path.name)


@pytest.mark.parametrize("kind", [in_client(kind) for kind in PYTHONS])
@pytest.mark.parametrize("name", MODELS)
def test_clients_open_the_folder_and_generate(name, kind, tmp_path):
    pytest.importorskip(target(kind).library)
    if kind == "openvino":
        pytest.importorskip("openvino_tokenizers")
    mg, words, text = graph(name), tokenizer(), "the cat sat, and 12 dogs!"
    folder = tmp_path / "runs/export"
    made = target(kind).export(mg, folder / target(kind).stem, words)
    assert not [note for note in made.notes if "genai" in note]
    prompts = [[*range(3, 10)], [*range(30, 37)]]
    printed = run_client(kind, CLIENTS[kind], str(folder), prompts, TOKENS, text, cwd=tmp_path)
    rows, ids, again = json.loads(printed.splitlines()[-1].removeprefix("FOUND "))
    for prompt, tokens in zip(prompts, rows, strict=True):
        assert_greedy(mg, prompt, tokens)
    assert (ids, again) == (words(text).input_ids, text)
    assert run_client(kind, page_program(kind), cwd=tmp_path).strip()
