"""The examples run as their readers run them."""

import csv
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chop import MaseGraph
from chop.nn.quantized import QuantLinear
from tests import programs
from tests.workloads import own_text_model

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
IMAGES = EXAMPLES.parent / "docs/images"
SHORT = ("--max-length", 128)
"""Reviews are cut to half of their length, and answered as well."""


def run(name, *arguments):
    done = programs.run(EXAMPLES / name, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.long  # its snippets run in test_user_snippets
def test_tutorial_1(tmp_path):
    text = run("tutorial_1.py", "--out", tmp_path)
    assert "dropouts: 6 before, 0 after" in text
    assert "identical outputs" in text
    assert "without attention_mask: " in text and "without labels: " in text
    drawn = (tmp_path / "without_labels.svg").read_text()
    # Where a line of transformers is depends on its version.
    known = (IMAGES / "without-labels.svg").read_text()
    assert re.sub(r"\.py:\d+", ".py", drawn) == re.sub(r"\.py:\d+", ".py", known)
    files = {"bert.svg", "without_attention_mask.svg", "tutorial_1.pt", "tutorial_1.mz"}
    assert files <= {f.name for f in tmp_path.iterdir()}


@pytest.mark.slow
@pytest.mark.long  # its snippets run in test_user_snippets
def test_tutorial_2_on_the_built_in_reviews(tmp_path):
    out = tmp_path / "rows.json"
    text = run("tutorial_2.py", "--limit", 150, *SHORT, "--folder", tmp_path, "--out", out)
    assert "LoRA trains 13.8 times fewer, on 14 layers" in text
    rows = json.loads(out.read_text())
    assert rows["nodes with input_ids"] < rows["nodes with input_ids, attention_mask, labels"]
    assert rows["trainable"][1:] == [413_314, 29_964]
    assert abs(rows["not fine-tuned"] - 0.5) < 0.1
    assert rows["fine-tuned in full"] > 0.9 and rows["fine-tuned with LoRA"] > 0.9
    assert rows["LoRA fused"] == rows["fine-tuned with LoRA"]
    written = {file.name for file in tmp_path.iterdir()}
    assert {"adapter", "input_ids.svg", "tutorial_2_lora.pt", "tutorial_2_lora.mz"} <= written


@pytest.mark.long
def test_tutorials_3_and_4_take_a_model_of_ones_own(tmp_path):
    own = ("--checkpoint", own_text_model(tmp_path / "own"), "--limit", 40, "--max-length", 32)
    formats = ("--formats", "4.2,4.auto", "--qat", "4.auto")
    own += ("--epochs", 1)
    run("tutorial_3.py", *own, *formats, "--out", tmp_path / "3.json")
    rows = json.loads((tmp_path / "3.json").read_text())
    assert list(rows) == ["float", "PTQ 4.2", "PTQ 4.auto", "QAT 4.auto"]
    text = run("tutorial_4.py", *own, "--methods", "l1-norm", "--out", tmp_path)
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert "l1-norm: 50.00% of" in text
    assert rows["l1-norm, reloaded"] == rows["l1-norm, fine-tuned"]
    assert {"l1-norm.pt", "l1-norm.mz"} <= {file.name for file in tmp_path.iterdir()}


@pytest.mark.slow
@pytest.mark.long  # bert-tiny is trained first
def test_tutorial_3_on_the_built_in_reviews(tmp_path):
    out = tmp_path / "rows.json"
    formats = ("--formats", "8.4,4.2,4.auto", "--qat", "4.auto")
    run("tutorial_3.py", "--limit", 300, *SHORT, *formats, "--out", out)
    rows = json.loads(out.read_text())
    assert rows["float"] > 0.8
    assert abs(rows["PTQ 8.4"] - rows["float"]) < 0.03
    assert rows["PTQ 4.2"] < 0.6 < rows["PTQ 4.auto"]
    assert rows["QAT 4.auto"] > rows["float"] - 0.03


@pytest.mark.slow
@pytest.mark.long
def test_tutorial_4_on_the_built_in_reviews(tmp_path):
    text = run("tutorial_4.py", "--limit", 300, *SHORT, "--epochs", 1, "--out", tmp_path)
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert rows["float"] > 0.8
    assert rows["l1-norm, pruned"] > rows["random, pruned"]
    for method in ("l1-norm", "random"):
        assert f"{method}: 50.00% of" in text
        assert rows[f"{method}, fine-tuned"] >= rows[f"{method}, pruned"] - 0.03
        assert rows[f"{method}, reloaded"] == rows[f"{method}, fine-tuned"]
    assert {"l1-norm.pt", "l1-norm.mz"} <= {file.name for file in tmp_path.iterdir()}


@pytest.mark.slow
@pytest.mark.long  # its commands have tests of their own
def test_lab_1_draws_its_figures(tmp_path):
    text = run("lab_1.py", "--quick", "--model", "mlp", "--out", tmp_path)
    assert "narrowest within a point: 4.auto" in text
    assert "sparsest within a point: l1-norm" in text
    assert "both together: 9" in text
    both = MaseGraph.from_checkpoint(tmp_path / "both").modules.values()
    assert any(isinstance(module, QuantLinear) and module.is_pruned for module in both)
    for folder in ("width", "sparsity"):
        files = {file.name for file in (tmp_path / folder).iterdir()}
        assert {"accuracy.png", "accuracy.svg", "points.jsonl", "table.csv", "table.md"} <= files
    ranges = {file.name for file in (tmp_path / "bits").iterdir()}
    assert {"integer-bits.png", "fraction-bits.png", "ranges.png", "ranges.csv"} <= ranges
    pruned = {file.name for file in (tmp_path / "quantized-sparsity").iterdir()}
    assert {"accuracy.png", "accuracy-activations.png", "accuracy-both.png"} <= pruned


@pytest.mark.slow
@pytest.mark.long
def test_tutorial_6_keeps_within_four_bits_and_goes_on(tmp_path):
    text = run("tutorial_6.py", "--quick", "--out", tmp_path)
    assert "classes, 6 trials" in text and "answers the same: True" in text
    mixed = next(line for line in text.splitlines() if "mixed" in line and "│" in line)
    bits, accuracy = (cell.strip() for cell in mixed.split("│")[2:4])
    assert float(bits) <= 4 and float(accuracy.rstrip("%")) > 88
    again = run("tutorial_6.py", "--quick", "--out", tmp_path)
    assert "classes, 6 trials" in again and mixed in again


@pytest.mark.slow
@pytest.mark.long
def test_lab_3_draws_a_curve_for_each_format(tmp_path):
    told = ("--quick", "--formats", "integer,binary,mxint", "--out", tmp_path)
    run("lab_3.py", *told)
    figures = {name: tmp_path / f"{name}-compared" for name in ("widths", "formats", "trained")}
    for name, folder in figures.items():
        svg = (folder / "best-so-far.svg").read_text()
        labels = ["tpe"] if name == "widths" else ["integer", "binary", "mxint"]
        assert all(f"<!-- {label} -->" in svg for label in labels)
        rows = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))
        assert [row["searches"] for row in rows] == labels
        assert [row["choices"] for row in rows] == ["14" if name == "widths" else "28"] * len(rows)
    before = (tmp_path / "search.db").stat().st_mtime_ns
    run("lab_3.py", *told)
    assert (tmp_path / "search.db").stat().st_mtime_ns == before


@pytest.mark.slow
@pytest.mark.long
def test_lab_2_compares_samplers_and_modes(tmp_path):
    told = ("--quick", "--limit", 200, "--sampler", "random", "--out", tmp_path)
    text = run("lab_2.py", *told)
    assert "81 different architectures" in text
    for sampler in ("random", "grid", "tpe", "sensitivity"):
        assert f"{sampler}, none, seed 0" in text
        assert f"<!-- {sampler} -->" in (tmp_path / "samplers/best-so-far.svg").read_text()
    assert "random, compress-train, seed 0" in text
    table = (tmp_path / "table.csv").read_text().splitlines()
    sizes = {row.split(",")[0]: row.split(",")[3] for row in table[1:]}
    assert sizes.keys() == {"none", "compress", "compress-train"}
    assert "<!-- compress-train -->" in (tmp_path / "modes/best-so-far.svg").read_text()
    measured = (tmp_path / "measured.jsonl").read_text().splitlines()
    assert len(measured) == len(set(measured))
    run("lab_2.py", *told)
    assert (tmp_path / "measured.jsonl").read_text().splitlines() == measured


@pytest.mark.slow
@pytest.mark.long  # its snippets run in test_user_snippets, searches in test_search_nas
def test_tutorial_5_counts_compares_compresses_and_measures_nothing_again(tmp_path):
    quick = ("--quick", "--limit", 100, "--out", tmp_path)
    text = run("tutorial_5.py", *quick)
    assert "no field 'num_layers': did you mean 'num_hidden_layers'?" in text
    assert "1.69e+17 settings, 2.25e+15 different architectures" in text
    for sampler in ("random", "tpe", "sensitivity"):
        assert f"{sampler}: {{'measured': 2}}" in text
        assert f"<!-- {sampler} -->" in (tmp_path / "samplers/best-so-far.svg").read_text()
        (best,) = (f for f in (tmp_path / sampler / "best").iterdir() if f.is_dir())
        assert MaseGraph.from_checkpoint(best / "model").model
    cells = [line.split("│") for line in text.splitlines() if "│" in line]
    modes = ("none", "compress", "compress-train")
    size = {cell[1].strip(): int(cell[2]) for cell in cells if cell[1].strip() in modes}
    assert size["compress"] == size["compress-train"] < size["none"] / 4
    again = run("tutorial_5.py", *quick)
    assert [line.split("│") for line in again.splitlines() if "│" in line] == cells


@pytest.mark.long  # the search has tests of its own
def test_tutorial_7_searches_within_less_memory_and_runs(tmp_path):
    text = run("tutorial_7.py", "--quick", "--out", tmp_path)
    assert "Budgets" in text and "1000 MB/s" in text and "nothing" in text
    assert "no plan on a mesh of 2 fits into 140,000 bytes" in text
    assert "66 nodes agree with one process" in text
    assert "collectives equal the prediction" in text
    assert (tmp_path / "plans.png").is_file()


@pytest.mark.slow
@pytest.mark.tools("verilator", "iverilog", "yosys", "c++")
@pytest.mark.long
def test_tutorial_8_finds_the_fault_that_it_plants(tmp_path):
    text = run("tutorial_8.py", "--quick", "--out", tmp_path)
    assert "in integers: 0 of 2,128 codes differ" in text
    assert "7 nodes with a component, a sample every " in text
    rows = [line.split("│")[1:5] for line in text.splitlines() if line.startswith("│ verilator")]
    profiles = {row[1].strip(): row[3].strip() for row in rows}
    assert profiles.items() >= {("none", "80"), ("slow_reader", "80"), ("bursts", "80")}
    assert re.search(r"^found: 8 samples in verilator, .* of 'fc3' at \[\d+\]: exp", text, re.M)
    assert "0 outputs differ from PyTorch" in text and "checked again: 360 equal outputs" in text
    assert "<svg" in (tmp_path / "verified" / "dataflow.svg").read_text()


@pytest.mark.slow
@pytest.mark.long  # test_hf_folder does the same by the command
def test_tutorial_10_saves_a_decoder_that_transformers_loads(tmp_path):
    text = run("tutorial_10.py", "--quick", "--rows", 4, "--out", tmp_path)
    assert "mxint:width=3, down_proj in mxint8" in text and "3, learned rounding" in text
    assert re.search(r"a cache in 8 bits takes \d\d% of the float one", text)
    assert "mxint:width=4, a LlamaForCausalLM" in text
    assert "a new process loads it and answers with the same tokens" in text
    assert "saved in" in text and "0.19 MB of weights" in text
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        file.name for file in tmp_path.iterdir()
    }


@pytest.mark.long
def test_tutorial_10_answers_in_four_bits(tmp_path):
    text = run("tutorial_10.py", "--out", tmp_path)
    assert text.count("'Ben has the red kite.'") == 2
    assert text.count("'The red kite is behind the wall.'") == 2


@pytest.mark.long  # softmax is measured in tests/studies and by its command too
def test_tutorial_9_counts_what_moves_and_times_it(tmp_path):
    text = run("tutorial_9.py", "--quick", "--device", "cpu", "--out", tmp_path)
    assert "reads 5MN + 2M, writes 3MN + 2M: True" in text
    assert "fused: reads MN, writes MN, 4.00 times less" in text
    tables = (tmp_path / "tables.md").read_text()
    assert "| naive | " in tables and "| torch.compile | " in tables
    if importlib.util.find_spec("triton"):
        assert "Triton kernel in Triton's interpreter" in tables


@pytest.mark.slow
@pytest.mark.long  # what compiles and packs is measured in tests/studies too
def test_lab_4_measures_all_three_parts(tmp_path):
    text = run("lab_4.py", "--quick", "--out", tmp_path)
    assert "fused in the graph of bert-tiny: softmax, softmax_1" in text
    assert "8.25 bits, 74.2% saved on packed layers" in text
    assert "measured again and again" in " ".join(text.split())
    compiled = (tmp_path / "compile" / "tables.md").read_text()
    assert "| pays after |" in compiled and "recompile, call 2" in compiled
    assert "| fused (flash) |" in (tmp_path / "attention" / "tables.md").read_text()
    assert "| linear, relu |" in (tmp_path / "linear" / "tables.md").read_text()
    assert (
        "| 1 - (8 + 8/32)/32 = 74.2% saved, 8.25 bits |"
        in (tmp_path / "dequantize" / "tables.md").read_text()
    )
    assert (tmp_path / "compile" / "mlp-batch-16.svg").is_file()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("loop", ["pool", "joblib", "ray"])
def test_a_loop_of_ones_own_measures_what_it_asks_for(loop, tmp_path, monkeypatch):
    if loop != "pool":
        pytest.importorskip(loop, reason=f"{loop} is not installed")
    monkeypatch.chdir(tmp_path)
    settings = ("--with", loop, "--trials", "5", "--limit", "200")
    if loop == "joblib":  # by `run` its idle processes would be waited for, five minutes long
        command = [sys.executable, EXAMPLES / "own_loop.py", *settings]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    else:
        text = run("own_loop.py", *settings)
    told = re.search(r"^5 configurations, ([0-5]) within 4 bits per weight$", text, re.M)
    best = re.search(r"^best: ([\d.]+) bits, kl ([\d.]+), accuracy [\d.]+%$", text, re.M)
    assert float(best[1]) <= 4 or told[1] == "0"
    assert 0 <= float(best[2]) < 5


@pytest.mark.long
def test_one_decoder_for_several_engines(tmp_path):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors reads its folder")
    pytest.importorskip("gguf", reason="gguf reads its file")
    targets = ("compressed-tensors", "gguf", "onnx")
    text = run("export.py", "--to", *targets, "--out", tmp_path)
    line = r"^(\S+): [\d,]+ kB, weights equal: (\d+) of (\d+), outputs differ by (\S+)$"
    found = re.findall(line, text, re.MULTILINE)
    differences = {target: difference for target, _, _, difference in found}
    assert set(differences) == set(targets) and all(equal == of for _, equal, of, _ in found)
    assert float(differences["compressed-tensors"]) == float(differences["gguf"]) == 0
    assert float(differences["onnx"]) < 1e-4
    assert {"compressed-tensors", "model.gguf", "model.onnx"} <= {
        x.name for x in tmp_path.iterdir()
    }
