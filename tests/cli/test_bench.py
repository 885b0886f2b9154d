import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from chop import passes
from chop.actions.bench import ways
from chop.actions.bench.job import BenchModelConfig, bench_model
from chop.actions.bench.latency import describe_fastest, describe_speed, find_fastest
from chop.actions.bench.ways import build_backends
from chop.actions.compress.job import CompressConfig, compress
from chop.errors import CheckpointError, ConfigError
from chop.ir.graph import MaseGraph
from chop.runs import MANIFEST, read_manifest
from tests import programs

ENGINES = ["onnxruntime", *(["openvino"] if importlib.util.find_spec("openvino") else [])]
PEERS = [f"float in {name}" for name in ENGINES]


def chop(*arguments, code=0):
    return " ".join(programs.chop(*arguments, code=code).split())


@pytest.fixture(scope="module")
def compressed(tmp_path_factory):
    out = tmp_path_factory.mktemp("compressed")
    config = CompressConfig(
        model="mlp", out=out, formats=("4.auto",), max_drop=1, qat_epochs=0, bench_seconds=0.02
    )
    return out, compress(config)


@pytest.mark.long
def test_compress_ends_with_speed_and_size(compressed):
    out, info = compressed
    models = ("float", "float graph", "compressed", "frozen", *ENGINES, *PEERS)
    assert [(row["model"], row["batch"]) for row in info["speed"]] == [
        (model, batch) for batch in (1, 16) for model in models
    ]
    exact, graph, small = info["speed"][:3]
    assert graph["largest_difference"] < 1e-5
    assert small["file_bytes"] == info["saved_bytes"]["model.pt"]
    assert (exact["times_as_fast"], exact["times_as_fast_interval_95"]) == (1.0, None)
    low, high = small["times_as_fast_interval_95"]
    assert low <= small["times_as_fast"] <= high
    assert exact["rows_per_second"] == pytest.approx(1000 / exact["latency_ms"])
    *_, speed, _, fastest, _, missing = (out / "table.md").read_text().splitlines()
    assert (speed, fastest) == (describe_speed(info["speed"], True), info["fastest"])
    assert fastest.startswith("Fastest: ") and str(out) in fastest
    assert missing.startswith("Not measured: compiled: ")


@pytest.mark.long
def test_every_way_is_beside_float_in_its_own_engine(compressed):
    out, info = compressed
    rows = {row["model"]: row for row in info["speed"] if row["batch"] == 16}
    for name in ("float graph", "compressed", "frozen"):
        assert rows[name]["peer"] == "float"
        assert rows[name]["times_as_fast_as_peer"] == rows[name]["times_as_fast"]
    assert rows["onnxruntime"]["peer"] == rows["float in onnxruntime"]["peer"]
    assert rows["float in onnxruntime"]["times_as_fast_as_peer"] == 1.0
    low, high = rows["onnxruntime"]["times_as_fast_as_peer_interval_95"]
    assert low <= rows["onnxruntime"]["times_as_fast_as_peer"] <= high
    assert rows["float in onnxruntime"]["largest_difference"] < 1e-4
    assert rows["onnxruntime"]["file_bytes"] == (out / "model.onnx").stat().st_size
    assert rows["float in onnxruntime"]["file_bytes"] > 2 * rows["onnxruntime"]["file_bytes"]
    table = (out / "table.md").read_text()
    assert "times as fast as float in PyTorch | as float in the same engine" in table


def told(*rows, rounds_inputs=True):
    return describe_speed(
        [
            {
                "model": "compressed",
                "batch": batch,
                "times_as_fast": t,
                "times_as_fast_interval_95": ends,
            }
            for batch, t, ends in rows
        ],
        rounds_inputs,
    )


@pytest.mark.parametrize(
    "rows, slower",
    [
        ([(1, 0.5, (0.48, 0.52))], "slower, because"),
        ([(1, 1.4, (1.3, 1.5)), (16, 0.9, (0.85, 0.95))], "slower at batch 16, because"),
        ([(1, 1.2, (1.1, 1.3)), (16, 0.98, (0.9, 1.1))], None),
        ([(1, 0.7, None)], "slower, because"),
        ([(1, 1.3, None)], None),
    ],
)
def test_a_smaller_model_that_is_slower_is_called_so(rows, slower):
    text = told(*rows)
    assert text.startswith(f"Speed: PyTorch, {rows[0][1]:.2f} (")
    assert "times as fast as float" in text
    assert ("slower" in text) == ("rounding the inputs" in text) == (slower is not None)
    alone = told(*rows, rounds_inputs=False)  # weights: no call rounds anything
    assert alone == text.replace("rounding the inputs", "decoding the weights at each call")
    assert slower is None or slower in text
    assert ("no difference shown (0.90 to 1.10) at batch 16" in text) == (rows[-1][1] == 0.98)


def test_a_speed_that_was_not_measured_is_called_so():
    assert told() == "Speed: not measured, because of --bench-seconds 0."


def test_the_command_exports_an_onnx_file_that_the_run_lacks(tmp_path):
    rows = timed(float=(1, 1), compressed=(0.5, 0.9), onnxruntime=(2, 2))
    text = describe_fastest(rows, tmp_path, True, {}, "net.py:Net")
    assert text.endswith(f"To run it: chop export {tmp_path} --to onnx --trust-code.")
    (tmp_path / "model.onnx").touch()
    text = describe_fastest(rows, tmp_path, True, {}, "net.py:Net")
    assert text.endswith(f"To run it: chop.export.onnx.session.opened('{tmp_path}/model.onnx').")


def timed(**times):
    """Rows of ways: ratios at batch 1 and 16, beside float in PyTorch and in the same engine."""
    return [
        {
            "model": model,
            "batch": batch,
            "times_as_fast": t,
            "times_as_fast_interval_95": (0.98 * t, 1.02 * t),
            "peer": "float in onnxruntime" if own else "float",
            "times_as_fast_as_peer": own[i] if own else t,
            "times_as_fast_as_peer_interval_95": (0.98 * own[i], 1.02 * own[i]) if own else None,
            "largest_difference": 0.1,
            "file_bytes": None,
        }
        for model, (one, many, *own) in times.items()
        for i, (batch, t) in enumerate(((1, one), (16, many)))
    ]


FOLDER = Path("runs/one")


def test_the_fastest_way_and_its_command_are_told():
    rows = timed(float=(1, 1), compressed=(0.5, 0.9), frozen=(0.4, 0.7), onnxruntime=(0.9, 0.2))
    text = describe_fastest(rows, FOLDER, True, {})
    assert text == (
        "Fastest: compressed, 0.50 (0.49 to 0.51) at batch 1, 0.90 (0.88 to 0.92) at batch 16 "
        "times as fast as float in PyTorch. To run it: "
        "MaseGraph.from_checkpoint('runs/one/model'). On this machine it is not faster than float, "
        "because rounding the inputs costs more time than small layers save; larger layers and "
        "batches gain more; try chop bench model runs/one "
        "--batch 64."
    )
    rows += timed(compiled=(1.5, 1.2))
    rows += [{**row, "largest_difference": 0.5} for row in timed(openvino=(9, 9))]  # it saturates
    text = describe_fastest(rows, FOLDER, True, {})
    assert text.startswith("Fastest: compiled, 1.50 (1.47 to 1.53) at batch 1, 1.20 (1.18 to 1.22)")
    assert text.endswith(
        "{'compile': True})[1]['compiled']. Excluded because their outputs "
        "differ from the saved model's: openvino."
    )
    assert describe_fastest([], FOLDER, True, {}) == ""


def test_what_the_engine_gains_is_not_the_compressions():
    rows = timed(float=(1, 1), compressed=(0.5, 0.9), onnxruntime=(4.0, 2.0, 1.0, 0.9))
    text = describe_fastest(rows, FOLDER, True, {})
    assert "; no difference shown (0.98 to 1.02) at batch 1, 0.90 (0.88 to 0.92) at batch" in text
    assert "as float in onnxruntime. The speed comes from the engine, " in text
    rows = timed(compressed=(0.5, 0.9), onnxruntime=(4.0, 2.0, 0.5, 0.9))
    assert "Float in onnxruntime is faster, " in describe_fastest(rows, FOLDER, True, {})
    rows = timed(compressed=(0.5, 0.9), onnxruntime=(4.0, 2.0, 1.5, 0.9))
    assert "comes from the engine" not in describe_fastest(rows, FOLDER, True, {})
    assert find_fastest(rows).in_short() == (
        "4.00x as fast at batch 1 and 2.00x at batch 16 as float in PyTorch (1.50x and 0.90x as "
        "float in onnxruntime)"
    )


def test_a_way_that_is_faster_somewhere_comes_before_one_that_never_is():
    rows = timed(compressed=(0.95, 0.95), frozen=(2.0, 0.2))
    assert find_fastest(rows).name == "frozen" and find_fastest(rows).is_faster


@pytest.mark.parametrize(
    "missing, says",
    [
        ({"onnxruntime": "ONNX has no integer form of mxint."}, "such as 8.auto, lets"),
        ({"onnxruntime": "No module named 'x'"}, "onnxruntime was not measured (No module named"),
        ({"openvino": "is not installed"}, "try chop bench model runs/one --batch 64"),
    ],
)
def test_where_nothing_is_faster_a_sentence_says_why_and_the_way_out(missing, says):
    text = describe_fastest(timed(compressed=(0.5, 0.9)), FOLDER, False, missing)
    assert "On this machine it is not faster than float, because decoding the weights" in text
    assert says in text and text.count(". ") == 2


ROWS = [{"input": torch.ones(1, 4)}, {"input": torch.ones(3, 4)}]


@pytest.fixture
def packed():
    mg = MaseGraph(nn.Sequential(nn.Linear(4, 2)).eval(), dummy_in={"input": torch.ones(2, 4)})
    rule = {"config": {"name": "integer", "width": 8, "frac_width": 5}}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": rule})
    return passes.pack_transform_pass(mg, {"silent": True})[0]


def test_a_way_that_cannot_be_taken_says_why(packed):
    made, missing = build_backends(packed, ["frozen", "onnxruntime"], "cuda:0", ROWS, 1)
    assert [*made] == ["frozen"]
    assert missing == {"onnxruntime": "it runs on the CPU, not on cuda:0."}
    floats = MaseGraph(nn.Sequential(nn.Linear(4, 2)).eval(), dummy_in={"input": torch.ones(1, 4)})
    made, missing = build_backends(floats, ["frozen"], "cpu", ROWS, 1)
    assert not made and "has no quantized layer with a weight" in missing["frozen"]


def test_formats_that_an_engine_lacks_are_named_once():
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2)).eval()
    rows = [{"input": torch.ones(2, 32)}]
    mg = MaseGraph(model, dummy_in=rows[0])
    rule = {"config": {"name": "mxint", "width": 4}}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": rule})
    mg, _ = passes.pack_transform_pass(mg, {"silent": True})
    _, missing = build_backends(mg, ["onnxruntime"], "cpu", rows, 1)
    told = "ONNX has no integer form of mxint(width=4)"
    assert missing == {"onnxruntime": told}


class Refuses(nn.Module):
    """Takes no batch of three."""

    def forward(self, input):
        if len(input) == 3:
            raise RuntimeError("no batch of 3\nand a trace")
        return torch.zeros(1, 2)


def test_what_fails_when_it_runs_is_missing_and_nothing_else_is(packed, monkeypatch):
    threads = []

    def counted(mg, file):
        threads.append(torch.get_num_threads())
        return Refuses()

    class Other(nn.Module):
        def forward(self, input):
            return torch.zeros(len(input), 3)

    monkeypatch.setitem(ways.BACKENDS, "compiled", ways.Backend(counted, ""))
    monkeypatch.setitem(ways.BACKENDS, "openvino", ways.Backend(lambda mg, file: Other(), ""))
    before, steps = torch.get_num_threads(), len(packed.provenance)
    made, missing = build_backends(
        packed, ["compiled", "openvino", "frozen"], "cpu", ROWS, before + 1
    )
    assert [*made] == ["frozen"] and missing["compiled"] == "no batch of 3"
    assert "returns tensors of shapes" in missing["openvino"]
    assert threads == [before + 1] and torch.get_num_threads() == before
    assert len(packed.provenance) == steps


@pytest.mark.long
def test_engines_answer_as_the_saved_model(packed):
    steps = len(packed.provenance)
    made, missing = build_backends(packed, ENGINES, "cpu", ROWS, 1)
    assert [*made] == ENGINES and missing == {} and len(packed.provenance) == steps
    x = torch.randn(5, 4)
    for engine in made.values():
        with torch.no_grad():
            torch.testing.assert_close(engine(input=x)[0], packed.model(x), rtol=0, atol=0.1)
        assert engine.file_bytes > 0


@pytest.mark.parametrize("has_manifest", [True, False])
@pytest.mark.long
def test_a_compressed_folder_is_measured(has_manifest, compressed, tmp_path):
    folder, info = compressed
    if not has_manifest:  # of a run of an earlier version
        folder = shutil.copytree(folder, tmp_path / "older")
        (folder / MANIFEST).unlink()
    out = tmp_path / "bench"
    found = bench_model(
        BenchModelConfig(compressed=folder, out=out, batch_sizes=(2,), seconds=0.05, compile=False)
    )
    exact, graph, small, frozen, *engines = found.rows
    assert frozen.file_bytes is None and frozen.weight_bytes >= small.weight_bytes
    assert [engine.model for engine in engines] == [*ENGINES, *PEERS]
    engines = engines[: len(ENGINES)]
    for way in (frozen, *engines):
        difference = way.measured.largest_difference
        assert difference == pytest.approx(small.measured.largest_difference, rel=0.5)
    assert small.file_bytes == info["saved_bytes"]["model.pt"]
    assert exact.file_bytes == info["float_bytes"]["model.pt"]
    assert exact.weight_bytes == graph.weight_bytes > 6 * small.weight_bytes
    assert graph.measured.largest_difference < 1e-5 < small.measured.largest_difference
    names = {"table.md", "times-batch-2.json", "times-batch-2.svg"}
    names |= {"report.html", "report.json"}
    assert {file.name for file in out.iterdir()} == {*names, MANIFEST}
    manifest = read_manifest(out)
    assert {artifact.path for artifact in manifest.artifacts} == names
    assert manifest.kind == "bench model"
    for row, measured in zip(manifest.rows, found.rows, strict=True):
        assert row["model"] == measured.model and row["latency_seconds"] == measured.latency_seconds
        assert row["measured_ratio_low"] == measured.measured.ratio.low
        assert row["file_bytes"] == measured.file_bytes and "measured_readings" not in row
    record = json.loads((out / "times-batch-2.json").read_text())
    assert record["environment"]["threads"] == 1 and record["clock"] == "processor"


def test_the_command_compresses_what_has_no_folder(tmp_path):
    arguments = ["--model", "mlp", "--format", "mxint", "--batch", "4", "--seconds", "0.02"]
    text = chop("bench", "model", *arguments, "--no-compile", "--out", tmp_path)
    assert "mxint" in text and "interleaved" in text
    assert "Fastest: " in text and "onnxruntime: " in text  # has no mxint
    assert "| float graph | 4 |" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "times-batch-4.svg").is_file()


def test_mistakes_are_named(compressed, tmp_path):
    with pytest.raises(CheckpointError, match=r"no manifest\.json of a .*result\.json"):
        bench_model(BenchModelConfig(compressed=tmp_path))
    with pytest.raises(ConfigError, match="seconds: got 0, expected more than 0"):
        BenchModelConfig(seconds=0)
    with pytest.raises(ConfigError, match="got 0, expected 1 or more"):
        BenchModelConfig(batch_sizes=(4, 0))
    with pytest.raises(ConfigError, match=r"batch 10000: the data set has only \d+ test rows"):
        bench_model(BenchModelConfig(compressed=compressed[0], batch_sizes=(10_000,)))
    assert "did you mean 'mlp'" in chop("bench", "model", "--model", "mpl", code=2)


def test_attention_is_measured_and_written(tmp_path):
    text = chop("bench", "attention", "--quick", "--dtype", "float32", "--out", tmp_path)
    assert "Attention 2x3x32x16" in text and "Ceilings of the device" in text
    rows = [row for row in read_manifest(tmp_path).rows if row["table"] == "rows"]
    assert {(row["case_tokens"], row["case_dtype"]) for row in rows} == {(32, "float32")}
    assert len(rows) == 9 and all(row["measured_seconds"] > 0 for row in rows)
    table = (tmp_path / "tables.md").read_text()
    assert table.count("| fused (") == 3 and "| naive | fused | times as fast |" in table
    assert table.count("| naive | ") == 4
    for mask in ("none", "padding", "causal"):
        assert (tmp_path / f"2x3x32x16-float32-{mask}.svg").is_file()
        record = json.loads((tmp_path / f"2x3x32x16-float32-{mask}.json").read_text())
        assert record["variants"][2]["largest_difference"] < 1e-5
    assert "did you mean 'causal'" in chop("bench", "attention", "--mask", "casual", code=2)


def test_compile_names_what_it_does_not_know():
    assert "did you mean 'mlp'" in chop("bench", "compile", "--model", "mpl", code=2)
    assert "did you mean 'freezing'" in chop("bench", "compile", "--mode", "frezing", code=2)
