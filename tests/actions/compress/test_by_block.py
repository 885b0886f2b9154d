"""`chop compress --by-block`: the same folder with one block in memory."""

import filecmp
import shutil
from types import SimpleNamespace

import pytest

from chop.actions.compress.by_block import LEARNED, Decoder, _skipping_part
from chop.actions.compress.job import compress
from chop.actions.compress.settings import CompressConfig
from chop.data import get_tokenizer
from chop.errors import ConfigError
from chop.quantization.walk.files import BlockFiles
from chop.quantization.walk.values import NoBlocksError
from chop.runs import read_manifest
from tests.actions.test_hf_folder import contents

ROUNDED = {"method": ("gptq",), "formats": ("mxint:width=4",), "qat_epochs": 0, "force": True}
SHORT = {"dataset": "stories", "limit": 6, "max_length": 32, "calibration_rows": 6, "seed": 1}


def llama(folder, layers=2):
    import transformers

    tokenizer = get_tokenizer("gpt-tiny")
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": layers}
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), num_attention_heads=4, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"method": ("rotate", "gptq")}, "one format, and methods among smoothquant, awq, gptq"),
        ({"method": ()}, "by_block: expected one format.* the methods none"),
        ({"formats": ("4.2", "mxint")}, "one format"),
        ({"qat_epochs": 2}, "qat_epochs: not supported with by_block"),
        ({"samples": 2}, "samples: not supported with by_block"),
        ({"skip_vision": True}, "skip_vision: not supported with by_block"),
        ({"layers": {"a": {"weight": "4.2"}}}, "layers: not supported with by_block"),
    ],
)
def test_what_a_walk_does_not_do_is_refused(settings, reason):
    with pytest.raises(ConfigError, match=reason):
        CompressConfig(by_block=True, **{**ROUNDED, **settings})


def test_a_built_in_model_is_not_walked(tmp_path):
    config = CompressConfig(model="gpt-tiny", out=tmp_path / "out", by_block=True, **ROUNDED)
    with pytest.raises(NoBlocksError, match="not a transformers folder"):
        Decoder.load(config, None)
    assert not (tmp_path / "out").exists()


def test_a_format_that_waits_for_data_is_not_walked(tmp_path):
    settings = {**ROUNDED, **SHORT, "formats": ("8.auto",), "model": llama(tmp_path / "float")}
    with pytest.raises(NoBlocksError, match="format 8.auto needs calibration data"):
        Decoder.load(CompressConfig(out=tmp_path / "out", by_block=True, **settings), None)


@pytest.mark.long
@pytest.mark.parametrize("value, reason", [("nan", "NaN"), ("inf", "infinite values")])
def test_weights_that_are_no_numbers_are_named(tmp_path, value, reason):
    from safetensors.torch import load_file, save_file

    settings = {**ROUNDED, **SHORT, "model": llama(tmp_path / "float")}
    file, name = tmp_path / "float" / "model.safetensors", "model.layers.1.mlp.up_proj.weight"
    state = load_file(file)
    state[name][3, 4] = float(value)
    save_file(state, file, {"format": "pt"})
    with pytest.raises(ConfigError, match=f"have {reason}: {name}"):
        compress(CompressConfig(out=tmp_path / "out", by_block=True, **settings))


LEFT = {
    "gptq": "GPTQ left these layers at the nearest number: model.embed_tokens: it is not a Linear",
    "awq": "AWQ left these layers unscaled",
    "smoothquant": "SmoothQuant left these layers unsmoothed",
    "learned_rounding": "learned rounding left these layers alone: model.embed_tokens: it",
}


@pytest.mark.long
@pytest.mark.parametrize(
    "method", [("gptq",), ("awq", "gptq"), ("awq",), ("smoothquant",), (LEARNED,)]
)
def test_the_folder_is_that_of_the_whole_graph_byte_for_byte(tmp_path, method, capsys):
    settings = {**ROUNDED, **SHORT, "model": llama(tmp_path / "float"), "method": method}
    found = compress(CompressConfig(out=tmp_path / "blocks", by_block=True, **settings))
    whole = {"keep_best": True, "bench_seconds": 0}
    expected = compress(CompressConfig(out=tmp_path / "whole", **whole, **settings))
    names = sorted(file.name for file in (tmp_path / "whole" / "model").iterdir())
    folders = [tmp_path / name / "model" for name in ("blocks", "whole")]
    assert filecmp.cmpfiles(*folders, names, shallow=False) == (names, [], [])
    told, whole = found["saved"]["left_alone"], expected["saved"]["left_alone"]
    assert all(LEFT[name] in text for name in method for text in (told, whole))
    # What is told of scales names nodes, which a graph without weights numbers otherwise.
    assert told == whole or method not in (("gptq",), (LEARNED,))
    assert "".join(told.split()) in "".join(capsys.readouterr().out.split())
    assert found["saved"]["format"] == expected["saved"]["format"]
    for name in ("validation", "perplexity", "bits", "size_kb"):
        for mine, other in zip(found["rows"], expected["rows"], strict=True):
            assert mine[name] == pytest.approx(other[name], rel=0.01), name
    assert not (tmp_path / "blocks" / "blocks").exists()


@pytest.mark.long
def test_files_of_an_earlier_model_go(tmp_path):
    settings = {**ROUNDED, **SHORT, "model": llama(tmp_path / "float"), "out": tmp_path / "out"}
    compress(CompressConfig(keep_best=True, bench_seconds=0, **settings))
    (tmp_path / "out" / "model.onnx").touch()
    earlier = {"model.pt", "model.mz", "model.onnx", "graph.svg"}
    assert earlier <= {file.name for file in (tmp_path / "out").iterdir()}
    compress(CompressConfig(by_block=True, **settings))
    left = {file.name for file in (tmp_path / "out").iterdir()}
    assert not earlier & left
    assert "model" in left


@pytest.mark.long
def test_a_run_says_what_an_earlier_one_has_left(tmp_path, capsys, monkeypatch):
    settings = {**ROUNDED, **SHORT, "model": llama(tmp_path / "float"), "by_block": True}
    keep, kept = BlockFiles.keep, []

    def stopped(self, part, *given):
        keep(self, part, *given)
        kept.append(part)
        if kept == [0, 1]:
            raise KeyboardInterrupt

    monkeypatch.setattr(BlockFiles, "keep", stopped)
    with pytest.raises(KeyboardInterrupt):
        compress(CompressConfig(out=tmp_path / "out", **settings))
    shutil.copytree(tmp_path / "out", tmp_path / "other")
    capsys.readouterr()
    compress(CompressConfig(out=tmp_path / "out", **settings))
    assert kept == [0, 1, 2, 3]
    printed = " ".join(capsys.readouterr().out.split())
    assert "resumes after model.layers.0 of an earlier run" in printed
    assert "4 of 4: GPTQ" in printed
    settings["formats"] = ("mxint:width=5",)
    compress(CompressConfig(out=tmp_path / "other", **settings))
    assert kept[4:] == [0, 1, 2, 3]
    printed = " ".join(capsys.readouterr().out.split())
    assert "starts again, since an earlier run had other settings" in printed


@pytest.mark.long
def test_a_model_without_blocks_is_compressed_as_a_whole_which_a_line_says(tmp_path, capsys):
    settings = {**ROUNDED, **SHORT, "model": llama(tmp_path / "float", layers=1)}
    config = CompressConfig(
        out=tmp_path / "out", by_block=True, keep_best=True, bench_seconds=0, **settings
    )
    assert compress(config)["saved"] is not None
    printed = " ".join(capsys.readouterr().out.split())
    assert "as a whole, not block by block: it has no list of blocks" in printed
    assert (tmp_path / "out" / "model.pt").is_file()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "place", ["actions.compress.by_block.get_parts", "quantization.rounding.learned.list_outputs"]
)
def test_a_refusal_comes_before_files_and_evaluation(tmp_path, monkeypatch, place):
    def refused(*_):
        if place.endswith("get_parts"):
            raise NoBlocksError("the blocks do not run one after the other")
        return []

    monkeypatch.setattr(f"chop.{place}", refused)
    settings = {**ROUNDED, **SHORT, "method": ("learned_rounding",)}
    settings["model"] = llama(tmp_path / "float")
    with pytest.raises(NoBlocksError, match="one after the other|has no floating output"):
        Decoder.load(CompressConfig(out=tmp_path / "out", by_block=True, **settings), None)
    assert not [*(tmp_path / "out").glob("*")]


def test_a_value_that_no_file_has_leaves_no_files(tmp_path):
    files = BlockFiles(tmp_path / "blocks", {})
    with pytest.raises(NoBlocksError), _skipping_part(SimpleNamespace(files=files)):
        raise NoBlocksError("the value of node 'x' is a set, which no file has")
    assert not (tmp_path / "blocks").exists()


@pytest.mark.long
def test_a_run_that_stops_before_its_report_leaves_the_model_and_the_blocks(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    settings = {**ROUNDED, **SHORT, "model": llama(tmp_path / "float"), "by_block": True}
    out = tmp_path / "out"
    compress(CompressConfig(out=out, **settings))
    before, other = contents(out), {**settings, "formats": ("mxint:width=8",)}
    with monkeypatch.context() as patch:
        patch.setattr("chop.actions.job.write_report", stop)
        with pytest.raises(KeyboardInterrupt):
            compress(CompressConfig(out=out, **other))
    left = contents(out)
    assert {name: x for name, x in left.items() if not name.startswith("blocks/")} == before
    assert (out / "blocks").exists()
    compress(CompressConfig(out=out, **other))
    after = contents(out)
    assert after.keys() == before.keys()
    assert after["model/model.safetensors"] != before["model/model.safetensors"]
    assert {each.path for each in read_manifest(out).artifacts} == {*after}
