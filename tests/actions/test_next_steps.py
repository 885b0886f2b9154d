"""Next steps: lines of a page that run as they are, with the real folders of the run."""

from pathlib import Path

import pytest
import torch

from chop import MaseGraph
from chop.actions.compress.job import compress
from chop.actions.compress.settings import CompressConfig
from chop.actions.next_steps import (
    export_search_step,
    quoted,
    steps_after_blocks,
    steps_after_compression,
    steps_after_emit,
    steps_after_pruning,
    steps_after_search,
    steps_after_sweep,
    steps_with_run,
    workload_options,
)
from chop.actions.sweep.settings import QuantizeSweepConfig
from chop.report.document import read_document
from chop.runs import read_manifest
from chop.workloads.settings import WorkloadConfig
from tests.cli.test_shown_commands import parse, words_of
from tests.workloads import untrained

QUICK = {"qat_epochs": 0, "bench_seconds": 0, "max_drop": 1, "force": True, "onnx": True}
FOLDERS = [Path("runs/demo"), Path("/data/my runs/it's"), Path("$HOME/`x`"), Path("a;rm -rf b")]


@pytest.fixture(scope="module")
def workload():
    return untrained()


def commands(steps):
    lines = [line for step in steps for line in step.code.splitlines()]
    return [line.removeprefix("chop ") for line in lines if line.startswith("chop ")]


def parsed(line):
    name, words = words_of(line)
    return parse(name, words).params


def get_result(**values):
    own = {"saved": {}, "why_no_folder": "", "onnx": None, "targets": {}, "task": "causal-lm"}
    return {**own, **values}


@pytest.mark.parametrize("out", FOLDERS, ids=str)
def test_commands_parse_and_name_the_folder(out):
    steps = steps_after_compression(get_result(), out, "Net", "model.onnx")
    export, bench, evaluate = map(parsed, commands(steps))
    assert str(out) == str(export["model"]) == str(bench["compressed"]) == str(evaluate["model"])
    blocks = parsed(*commands(steps_after_blocks(get_result(), out, "Net")))
    assert blocks["model"] == str(out / "model")
    assert str(parsed(*commands(steps_after_emit(out)))["out"]) == str(out)
    build, show = commands(
        steps_after_search(quoted(out), out / "best/a/model", out / "recipe.toml")
    )
    assert str(parsed(build)["config"]) == str(out / "recipe.toml")
    assert str(out) in map(str, parsed(show).values())
    written, compressed = map(parsed, commands([export_search_step(quoted(out), out)]))
    assert str(out / "best.toml") in map(str, written.values())
    assert str(compressed["config"]) == str(out / "best.toml")


@pytest.mark.parametrize(
    "task, targets, expected",
    [
        ("causal-lm", {"onnx": "", "compressed-tensors": "a reason", "gguf": ""}, "gguf"),
        ("causal-lm", {"onnx": "", "compressed-tensors": "", "gguf": ""}, "compressed-tensors"),
        ("causal-lm", {"onnx": "", "gptq": "a reason"}, "onnx"),
        ("classification", {"onnx": "", "compressed-tensors": ""}, "onnx"),
    ],
)
def test_the_step_of_export_names_a_target_that_holds_the_model(task, targets, expected):
    result = get_result(task=task, targets=targets)
    export, *_ = commands(steps_after_compression(result, Path("a"), "Net", ""))
    assert export == f"export a --to {expected}"


@pytest.mark.parametrize("out", FOLDERS, ids=str)
def test_lines_of_python_compile_and_name_the_folder(out):
    found = get_result(onnx={"session_config": {"session.x": "1"}})
    steps = steps_after_compression(found, out, "Net", "model.onnx")
    code = [step.code for step in steps if "import" in step.code]
    assert len(code) == 3
    for lines in code:
        assert any(str(out) in str(x) for x in compile(lines, "page", "exec").co_consts)


def test_options_name_model_and_data_again():
    config = WorkloadConfig(
        "net.py:Net", "my data.csv", weights="w.pt", pixel_mean=(0.1, 0.2), force=True, seed=3
    )
    given = parsed(f"compress {workload_options(config)} --formats 8.4")
    assert (given["model"], given["dataset"]) == ("net.py:Net", "my data.csv")
    assert given["weights"] == "w.pt" and given["force"] is True
    assert "0.1" in str(given["pixel_mean"]) and "0.2" in str(given["pixel_mean"])
    assert workload_options(WorkloadConfig("mlp")) == "--model mlp"


def test_commands_of_a_run_that_names_code_confirm_it():
    out, trust = Path("runs/own"), " --trust-code"
    lines = commands(steps_after_compression(get_result(), out, "Net", "model.onnx", trust))
    lines += commands(steps_after_search(str(out), None, out / "recipe.toml", trust))[:1]
    lines += commands([export_search_step(str(out), out, trust)])
    assert len(lines) == 6 and all(line.endswith(trust) for line in lines)
    assert all(parsed(line) for line in lines[:3])


def test_options_name_the_function_that_judges():
    config = QuantizeSweepConfig("net.py:Net", "rows.csv", evaluate="judge.py:score")
    (step,) = steps_after_sweep(config, "net.py:Net", "8.4")
    given = parsed(step.code.removeprefix("chop "))
    assert (given["model"], given["evaluate"]) == ("net.py:Net", "judge.py:score")


def test_a_sweep_of_a_programs_own_model_has_no_command():
    config = WorkloadConfig("mlp")
    (step,) = steps_after_sweep(config, "mlp", "8.4")
    assert step.code == "chop compress --model mlp --formats 8.4"
    assert steps_after_sweep(config, "Net", "8.4") == steps_after_sweep(config, "mlp", "") == []


def test_a_pruned_model_is_made_smaller(tmp_path):
    config = WorkloadConfig("mlp")
    (step,) = steps_after_pruning(config, "mlp", None)
    assert step.code == "chop compress --model mlp"
    assert steps_after_pruning(config, "Net", None) == []
    (tmp_path / "model.mz").touch()
    lines = commands(steps_after_pruning(config, "mlp", tmp_path))
    assert [line.split()[0] for line in lines] == ["export", "bench", "evaluate"]
    own = commands(steps_after_pruning(WorkloadConfig("net.py:Net"), "net.py:Net", tmp_path))
    assert all(line.endswith(" --trust-code") for line in own)


def test_without_a_model_the_command_keeps_the_nearest(monkeypatch):
    nothing = get_result(saved=None)
    monkeypatch.setattr("sys.argv", ["/venv/bin/chop", "compress", "--out", "a b"])
    (step,) = steps_after_compression(nothing, Path("a b"), "Net", "")
    assert step.code == "chop compress --out 'a b' --keep-best"
    monkeypatch.setattr("sys.argv", ["mine.py"])
    assert steps_after_compression(nothing, Path("a b"), "Net", "") == []


@pytest.fixture(name="ran", scope="module")
def _ran(workload, tmp_path_factory):
    out = tmp_path_factory.mktemp("next") / "my runs"
    return compress(CompressConfig(out=out, formats=("8.auto",), **QUICK), workload), out


@pytest.mark.long
def test_the_page_of_a_compression_ends_with_lines_that_run(ran, workload):
    _, out = ran
    page = (out / "report.html").read_text()
    made, following = page.index("Reproduce"), page.index("Next steps")
    assert made < following and "my runs/model" in page[following:]
    steps = {step.label: step.code for step in read_document(out).steps}
    found = {}
    exec(steps["Load the model in PyTorch"], found)
    rows = workload.example()
    expected = MaseGraph.from_checkpoint(out / "model").model
    torch.testing.assert_close(found["model"](**rows), expected(**rows), rtol=0, atol=0)
    exec(steps["Run it with onnxruntime"], found)
    assert [each.name for each in found["session"].get_inputs()] == list(rows)


def test_a_compression_has_the_numbers_of_the_list(ran, workload):
    outcome = read_manifest(ran[1]).outcome
    assert outcome.data == workload.dataset and outcome.metric == "accuracy"
    assert 0 <= outcome.value <= 1 and outcome.reference is not None
    assert outcome.size_bytes == (ran[1] / "model.pt").stat().st_size and 8 <= outcome.bits < 10


def test_layers_are_in_the_order_of_the_model_and_formats_have_a_legend(ran):
    told, document = ran[0], read_document(ran[1])
    order = [row["layer"] for row in told["layers"]]
    charts = [chart for chart in document.charts if chart.kind == "histograms"]
    assert len(charts) == 2
    for chart in charts:
        titles = [panel.title for panel in chart.panels]
        assert titles == [layer for layer in order if layer in titles]
    layers, legend = document.tables
    assert [texts[0] for texts in layers.texts] == order
    names = legend.texts[0][0].split(", ")
    assert legend.columns == ("format", "what it is") and "integer 8.auto" in names
    # Weights, inputs and biases are named in the same way.
    assert {text for texts in layers.texts for text in texts[1:4]} <= set(names)


def test_the_page_of_a_command_suggests_the_others(tmp_path):
    assert steps_with_run(tmp_path, "evaluate") == []
    (tmp_path / "model.mz").touch()
    for command, others in (
        ("evaluate", ["export", "bench"]),
        ("bench model", ["export", "evaluate"]),
    ):
        lines = commands(steps_with_run(tmp_path, command))
        assert [line.split()[0] for line in lines] == others
