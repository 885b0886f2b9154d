"""Runs with other tables than their own: columns are matched by name, from any folder."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pandas
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from chop.actions.compress.job import compress
from chop.actions.compress.settings import CompressConfig
from chop.actions.emit.lower_settings import LowerConfig
from chop.actions.evaluate.job import evaluate
from chop.actions.evaluate.models import load_judged
from chop.actions.evaluate.settings import EvaluateConfig
from chop.actions.given_rows import with_label_column
from chop.actions.starting_run import config_of_run
from chop.base.notices import collected_assumptions
from chop.base.trust import trust_code
from chop.data import load_dataset
from chop.data.tokenizer import STORY_VOCABULARY, get_tokenizer
from chop.errors import ConfigError
from chop.workloads.load import load_workload
from chop.workloads.settings import WorkloadConfig

NET = (
    "from torch import nn\nclass Net(nn.Linear):\n    def __init__(self): super().__init__(2, 2)\n"
)
ROWS = [(i % 7 - 3.0, i % 5 * 1.0) for i in range(60)]


def write(path, names, rows):
    lines = [",".join(names), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Folder with a run whose model answers by the sign of the column `a`, and other tables."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "net.py").write_text(NET)
    save_file(
        {"weight": torch.tensor([[-4.0, 0.0], [4.0, 0.0]]), "bias": torch.zeros(2)},
        folder / "net.safetensors",
    )
    labels = [int(a > 0) for a, _ in ROWS]
    own = [(*row, label) for row, label in zip(ROWS, labels, strict=True)]
    named = [(a, b, ("no", "yes")[y]) for a, b, y in own]
    write(folder / "own.csv", ["a", "b", "label"], named)
    write(folder / "missing.csv", ["a", "b", "label"], [row for row in named if row[2] == "yes"])
    write(folder / "extra.csv", ["a", "b", "label"], [*named, (0.0, 0.0, "perhaps")] * 9)
    renamed = [(a, b, f"{name}!") for a, b, name in named]
    write(folder / "renamed.csv", ["a", "b", "label"], renamed)
    write(folder / "order.csv", ["b", "label", "a", "id"], [(b, y, a, 9) for a, b, y in own])
    write(folder / "names.csv", ["a", "z", "label"], own)
    write(folder / "other.csv", ["y", "q", "p"], [(y, b, a) for a, b, y in own])
    write(folder / "both.csv", ["labels", "b", "label"], [(int(a), b, y) for a, b, y in own])
    before = Path.cwd()
    os.chdir(folder)
    try:
        settings = {"formats": ("8.auto",), "qat_epochs": 0, "bench_seconds": 0.0}
        with trust_code():
            compress(
                CompressConfig(
                    "net.py:Net",
                    "own.csv",
                    out=Path("runs/own"),
                    weights="net.safetensors",
                    **settings,
                )
            )
    finally:
        os.chdir(before)
    return folder


def test_columns_in_another_order_are_matched_by_name(home, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(home)
    with trust_code():
        result = evaluate(EvaluateConfig("runs/own", dataset="order.csv", out=tmp_path))
        assert result.rows.own.value == 1.0
        assert "input_columns has no such name: 'id'" in capsys.readouterr().out
        with pytest.raises(ConfigError, match="'names.csv' has no input column 'b': choose from"):
            evaluate(EvaluateConfig("runs/own", dataset="names.csv"))


def test_classes_without_rows_leave_the_numbers_of_the_others(home, monkeypatch, tmp_path):
    monkeypatch.chdir(home)
    with trust_code():
        result = evaluate(EvaluateConfig("runs/own", dataset="missing.csv", out=tmp_path))
    assert result.rows.own.value == 1.0


@pytest.mark.parametrize(("table", "name"), [("extra", "'perhaps'"), ("renamed", "'no!', 'yes!'")])
def test_classes_that_a_run_does_not_have_are_refused(home, monkeypatch, table, name):
    monkeypatch.chdir(home)
    with (
        trust_code(),
        pytest.raises(ConfigError, match=f"{name} is not a class of .*: its classes are no, yes"),
    ):
        load_judged(EvaluateConfig("runs/own", dataset=f"{table}.csv"))


def test_prices_as_labels_of_a_run_with_classes_are_refused(home, monkeypatch, tmp_path):
    monkeypatch.chdir(home)
    prices = write(tmp_path / "price.csv", ["a", "b", "label"], [(a, b, a + 0.5) for a, b in ROWS])
    message = "task of .*own' is classification, and the labels of .*price.csv' .* of regression"
    with trust_code(), pytest.raises(ConfigError, match=message):
        load_judged(EvaluateConfig("runs/own", dataset=prices))


def test_whole_numbers_are_numbers_for_a_run_of_regression(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sum.py").write_text(
        "import torch\n"
        "class Sum(torch.nn.Sequential):\n"
        "    def __init__(self):\n"
        "        super().__init__(torch.nn.Linear(2, 1))\n"
        "        torch.nn.init.ones_(self[0].weight), torch.nn.init.zeros_(self[0].bias)\n"
    )
    columns = ["a", "b", "label"]
    given = write(tmp_path / "train.csv", columns, [(a, b, a + b) for a, b in ROWS])
    whole = write(tmp_path / "whole.csv", columns, [(i, 0, i) for i in range(3)] * 20)
    with trust_code():
        settings = {"dataset": given, "formats": ("8.auto",), "out": tmp_path / "run"}
        compress(CompressConfig("sum.py:Sum", **settings, qat_epochs=0, bench_seconds=0))
        judged = load_judged(EvaluateConfig("run", dataset=whole))
    assert judged.workload.task.name == "regression"


@pytest.mark.long
def test_labels_beside_texts_are_not_read_for_a_run_of_a_decoder(tmp_path):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = LlamaConfig(vocab_size=STORY_VOCABULARY, **sizes, num_attention_heads=2)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "float")
    get_tokenizer("stories").save_pretrained(tmp_path / "float")
    (tmp_path / "texts.txt").write_text("once upon a time there was a dog\n" * 40)
    model, texts, out = (str(tmp_path / each) for each in ("float", "texts.txt", "run"))
    settings = {"formats": ("mxint",), "out": Path(out), "qat_epochs": 0, "bench_seconds": 0.0}
    compress(CompressConfig(model, texts, max_length=16, force=True, **settings))
    rows = write(tmp_path / "rows.csv", ["text", "label"], [("a dog", i % 2) for i in range(20)])
    judged = load_judged(EvaluateConfig(out, dataset=rows))
    assert (judged.workload.task.name, type(judged.model)) == ("causal-lm", LlamaForCausalLM)


def test_the_order_of_classes_is_reported_for_runs_without_their_names(home, monkeypatch, tmp_path):
    monkeypatch.chdir(home)
    shutil.copytree("runs/own", tmp_path / "own")
    manifest = json.loads((tmp_path / "own/manifest.json").read_text())
    assert manifest["settings"].pop("class_names") == ["no", "yes"]
    (tmp_path / "own/manifest.json").write_text(json.dumps(manifest))
    given = EvaluateConfig(str(tmp_path / "own"), dataset="renamed.csv")
    with trust_code(), collected_assumptions() as assumed:
        load_judged(given)
    assert "does not record the names of its classes" in str(assumed)
    with trust_code():
        named = load_judged(replace(given, class_names=("yes!", "no!"))).workload
    assert named.class_names == ("yes!", "no!")
    answers = named.test.columns["x"][:, 0] > 0
    assert torch.equal(named.test.labels, 1 - answers.long())


def test_columns_of_another_table_can_be_named(home, monkeypatch, tmp_path):
    monkeypatch.chdir(home)
    with trust_code():
        rows = EvaluateConfig(
            "runs/own",
            dataset="other.csv",
            label_column="y",
            input_columns=("p", "q"),
            out=tmp_path,
        )
        assert evaluate(rows).rows.own.value == 1.0


def test_a_run_is_used_from_another_folder(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = os.path.relpath(home / "runs/own")
    reference = os.path.relpath(home / "net.py") + ":Net"
    with pytest.raises(ConfigError, match=f"--reference {reference}, or --trust-code"):
        evaluate(EvaluateConfig(run))
    result = evaluate(EvaluateConfig(run, reference=reference))
    assert result.rows.own.value == result.rows.reference.value == 1.0
    started = config_of_run(LowerConfig(start_from=Path(run), model=reference), None)
    assert started.weights == os.path.relpath(home / "net.safetensors")
    assert started.input_columns == ("a", "b")


def test_label_columns_that_are_not_chosen_are_named(home, monkeypatch):
    monkeypatch.chdir(home)
    with collected_assumptions() as assumed:
        columns = load_dataset("both.csv", label="labels")["train"].column_names
    assert columns == ["labels", "b"]
    assert "Column 'label' is not an input" in str(assumed)
    frame = pandas.read_csv("both.csv")
    with collected_assumptions() as assumed:
        assert [*with_label_column(frame, "b")] == ["labels"]
    assert "Column 'labels' is not an input" in str(assumed)


@pytest.mark.parametrize(
    ("label", "message"), [(7, "got the label 7"), (-1, "row 5 has the label")]
)
def test_labels_beyond_the_classes_are_found_in_every_split(home, label, message, tmp_path):
    rows = [(a, b, int(a > 0)) for a, b in ROWS]
    folder = tmp_path / "data"
    folder.mkdir()
    for split in ("train", "validation", "test"):
        own = [
            (*rows[5][:2], label) if i == 5 and split == "train" else row
            for i, row in enumerate(rows)
        ]
        write(folder / f"{split}.csv", ["a", "b", "label"], own)
    settings = {"weights": f"{home}/net.safetensors", "out": tmp_path / "out"}
    with pytest.raises(ConfigError, match=message):
        load_workload(WorkloadConfig(f"{home}/net.py:Net", str(folder), **settings))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("a", "c"), "no input column 'c': choose"),
        (("a", "a"), "'a' is given twice"),
        (("a", "label"), "no input column 'label'"),
    ],
)
def test_input_columns_that_a_table_lacks(home, columns, message, tmp_path):
    settings = {"weights": f"{home}/net.safetensors", "out": tmp_path / "out"}
    with pytest.raises(ConfigError, match=message):
        load_workload(
            WorkloadConfig(
                f"{home}/net.py:Net", f"{home}/own.csv", input_columns=columns, **settings
            )
        )


@pytest.mark.parametrize("setting", ["tokenizer", "text_column", "max_length", "stride"])
def test_settings_of_texts_are_refused_for_pictures(home, setting, tmp_path):
    for number in range(8):
        path = tmp_path / "pictures" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (2, 1), number).save(path)
    value = 8 if setting in ("max_length", "stride") else "label"
    settings = {"out": tmp_path / "out", setting: value}
    with pytest.raises(ConfigError, match=f"{setting}: applies to texts"):
        load_workload(WorkloadConfig(f"{home}/net.py:Net", str(tmp_path / "pictures"), **settings))


def test_numbers_that_are_written_as_texts_are_named(home, tmp_path):
    rows = [f'{{"a": "{a}", "b": "{b}", "label": {int(a > 0)}}}' for a, b in ROWS]
    (tmp_path / "texts.jsonl").write_text("\n".join(rows))
    with pytest.raises(ConfigError, match="numbers written as texts, such as"):
        load_workload(
            WorkloadConfig(
                f"{home}/net.py:Net", str(tmp_path / "texts.jsonl"), out=tmp_path / "out"
            )
        )


def test_a_table_with_other_columns_than_the_model_takes_is_described(home, tmp_path):
    write(tmp_path / "wide.csv", ["id", "a", "b", "label"], [(1, a, b, 0) for a, b in ROWS])
    with pytest.raises(ConfigError, match="x has the columns id, a, b; --input-columns selects"):
        load_workload(
            WorkloadConfig(f"{home}/net.py:Net", str(tmp_path / "wide.csv"), out=tmp_path / "out")
        )


def test_outputs_without_rows_are_reported(home, tmp_path):
    (tmp_path / "net.py").write_text(NET.replace("(2, 2)", "(2, 3)"))
    with collected_assumptions() as assumed:
        load_workload(
            WorkloadConfig(f"{tmp_path}/net.py:Net", f"{home}/own.csv", out=tmp_path / "out")
        )
    assert "The model has 3 outputs, and the labels are at most 1: no row" in str(assumed)
