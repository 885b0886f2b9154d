"""Assumptions of a job: one list, printed before the outcome, and in every rendering of it."""

import csv
import json
import pathlib
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import chop
from chop.actions.compress.doubts import note_doubts, note_large_drop, note_test_drop
from chop.actions.compress.job import CompressConfig, compress
from chop.actions.compress.table import Candidate, Row
from chop.actions.emit.lower import LowerConfig, lower
from chop.actions.idle_training import assume_rate
from chop.actions.sweep.verdict import note_weak_training
from chop.base.notices import collected_assumptions
from chop.data import load_dataset
from chop.data.catalogue import describe_dataset
from chop.errors import ConfigError
from chop.report.document import read_document
from chop.train import Metric, fit
from chop.train.intervals import Score
from chop.train.tasks import CLASSIFICATION
from chop.workloads.load import load_workload
from chop.workloads.pictures import get_preprocessing
from chop.workloads.settings import WorkloadConfig
from chop.workloads.workload import Workload

QUICK = {"formats": ("8.auto",), "qat_epochs": 0, "bench_seconds": 0}
NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x)

class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, pixel_values):
        return self.fc(pixel_values.mean((2, 3)))
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A trained model, its only table, and a folder of pictures in two splits."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    torch.manual_seed(0)
    x = torch.randn(300, 4)
    y = (x[:, 0] > 0).long()
    model = nn.Sequential()
    model.fc = nn.Linear(4, 2)
    fit(model.fc, (x, y), epochs=20, lr=3e-2)
    torch.save(model.state_dict(), "net.pt")
    with pathlib.Path("train.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["a", "b", "c", "d", "label"], *torch.cat([x, y[:, None]], 1).tolist()])
    draw = np.random.default_rng(0)
    for split in ("train", "test"):
        for number, name in enumerate(("cat", "dog")):
            (folder := tmp_path / "pics" / split / name).mkdir(parents=True)
            for i in range(6):
                pixels = draw.integers(0, 100, (4, 4, 3)) + 100 * number
                Image.fromarray(pixels.astype("uint8")).save(folder / f"{i}.png")
    return tmp_path


def test_rows_that_were_split_off_are_said_first(files, capsys, unpainted):
    named = {"model": "net.py:Net", "weights": "net.pt", "dataset": "train.csv"}
    found = compress(CompressConfig(out=files / "run", **named, **QUICK))
    first, *_ = found["assumptions"]
    assert first.startswith("No test split found: 20% of the rows are used as test data")
    printed = " ".join(capsys.readouterr().out.split())
    assert "test rows" not in printed.replace("No test rows", "")
    outcome = "No test rows were given, so these numbers may be too good: saved integer 8.auto"
    assert printed.index(f"Assumptions: - {first}") < printed.index(outcome)
    assert "60 split-off rows" in printed
    table = (files / "run" / "table.md").read_text()
    assert table.startswith(f"Assumptions:\n\n- {first}\n")
    assert "| split-off (95 % interval) |" in table and "240" not in table
    document = read_document(files / "run")
    assert document.verdict.startswith(outcome) and document.assumptions[0] == first
    assert json.loads((files / "run" / "result.json").read_text())["assumptions"][0] == first
    page = (files / "run" / "report.html").read_text()
    body = page[page.index("<main") :]
    assert body.index(first[:20]) < body.index('class="verdict"') < body.index("<table")


def test_test_rows_of_a_folder_are_test_rows(files):
    (files / "both").mkdir()
    for name in ("train", "test"):
        (files / "both" / f"{name}.csv").write_text((files / "train.csv").read_text())
    named = {"model": "net.py:Net", "weights": "net.pt"}
    alone = load_workload(WorkloadConfig(dataset="train.csv", **named))
    given = load_workload(WorkloadConfig(dataset="both", **named))
    assert alone.has_seen_test and alone.count_test() == "60 split-off rows"
    assert not given.has_seen_test and given.count_test(5) == "5 test rows"
    assert given.get_name("validation") == alone.get_name("validation") == "validation"


def test_other_jobs_say_the_same(files, capsys, unpainted):
    named = {"model": "net.py:Net", "weights": "net.pt", "dataset": "train.csv"}
    lower(LowerConfig(out=files / "lower", **named))
    printed = " ".join(capsys.readouterr().out.split())
    assert "Assumptions: - No test split found: 20%" in printed and "split-off rows" in printed
    assert read_document(files / "lower").assumptions


def test_pictures_of_one_split_name_the_folder_with_both(files):
    found = load_workload(WorkloadConfig(model="net.py:Pictures", dataset="pics/train"))
    texts = [each.text for each in found.assumptions]
    assert "To use 'pics/test', pass the folder 'pics'." in texts[0]
    assert any("pixels from 0 to 1 as (x - 0.5) / 0.5: an assumption" in text for text in texts)
    whole = load_workload(WorkloadConfig(model="net.py:Pictures", dataset="pics"))
    assert not whole.has_seen_test and len(whole.test) == 12


def test_rows_in_memory_are_split_off_too(files):
    x = torch.randn(100, 4)
    y = (x[:, 0] > 0).long()
    model = nn.Linear(4, 2)
    fit(model, (x, y), epochs=30, lr=5e-2)
    given = chop.compress(nn.Sequential(model), (x, y), (x, y), out=files / "a", **QUICK)
    drawn = chop.compress(nn.Sequential(model), (x, y), out=files / "b", **QUICK)
    assert not any("No test rows" in text for text in given.result["assumptions"])
    assert drawn.result["assumptions"][0].endswith("Pass test=(X, y).")
    assert drawn.result["row_counts"]["test"] == 20
    again = Workload.of(nn.Sequential(model), (x, y))
    assert again.has_seen_test and replace(again, name="b").has_seen_test


def candidate(method, validation, test):
    scores = {"validation": validation, "test": test}
    values = {name: Score(value, ends or None, 0.5, 200) for name, (value, *ends) in scores.items()}
    row = Row(method, "8.auto", validation[0], test[0], 8.0, 1, 1.0)
    return Candidate(row, None, values)


CASES = {
    "seen": ((0.98, 0.95, 0.99), (0.7, 0.6, 0.8), None, "probably trained on the validation rows"),
    "harder": ((0.7, 0.6, 0.8), (0.98, 0.95, 0.99), None, "the two sets differ"),
    "meet": ((0.9, 0.8, 0.95), (0.85, 0.75, 0.9), (0.88, 0.8, 0.93), None),
    "better": (
        (0.7, 0.6, 0.8),
        (0.7, 0.6, 0.8),
        (0.9, 0.85, 0.95),
        "float by more than its interval, on test rows: 8.auto (PTQ) 90.00%, float 70.00%",
    ),
}


@pytest.mark.parametrize(("max_drop", "is_noted"), [(0.01, False), (1.0, True)])
def test_a_loss_that_every_format_keeps_is_noted(max_drop, is_noted):
    with collected_assumptions() as found:
        note_large_drop(max_drop, Metric("accuracy", None, is_share=True))
    texts = [each.text for each in found]
    assert len(texts) == is_noted
    assert all(
        "A loss of up to 100.00 percentage points is allowed (--max-drop 1)" in text
        for text in texts
    )


@pytest.mark.parametrize("case", CASES)
def test_scores_that_look_wrong_are_told(case):
    validation, test, rounded, message = CASES[case]
    x, y = torch.randn(20, 4), torch.arange(20) % 2
    workload = Workload.of(nn.Sequential(nn.Linear(4, 2)), (x, y), (x, y))
    measured = [candidate("float", validation, test)]
    measured += [] if rounded is None else [candidate("PTQ", validation, rounded)]
    with collected_assumptions() as found:
        note_doubts(measured, workload)
    texts = [each.text for each in found]
    assert texts == [] if message is None else len(texts) == 1 and message in texts[0]


@pytest.mark.parametrize(
    ("trained", "told"),
    [(0.7, "8.auto from 85.00% to 70.00%. Try a smaller --qat-lr"), (0.82, None), (0.9, None)],
)
def test_training_that_made_a_format_worse_is_told(trained, told):
    x, y = torch.randn(20, 4), torch.arange(20) % 2
    workload = Workload.of(nn.Sequential(nn.Linear(4, 2)), (x, y), (x, y))
    same = (0.9, 0.8, 0.95)
    measured = [candidate("float", same, same), candidate("PTQ", (0.85, 0.8, 0.9), same)]
    measured.append(candidate("QAT", (trained, 0.6, 0.95), same))
    with collected_assumptions() as found:
        note_doubts(measured, workload)
    assert [told in each.text for each in found] == ([] if told is None else [True])


@pytest.mark.parametrize(
    ("rounded", "trained", "is_idle"),
    [(0.85, 0.85, True), (0.85, 0.86, False), (0.9, 0.9, False)],
    ids=["no effect", "better", "as float before"],
)
def test_training_without_effect_is_reported_with_a_way_out(rounded, trained, is_idle):
    x, y = torch.randn(20, 4), torch.arange(20) % 2
    workload = Workload.of(nn.Sequential(nn.Linear(4, 2)), (x, y), (x, y))
    test = (0.9, 0.8, 0.95)
    measured = [candidate("float", test, test), candidate("PTQ", (rounded, 0.8, 0.9), test)]
    measured.append(candidate("QAT", (trained, 0.6, 0.95), test))
    with collected_assumptions() as assumed:
        note_doubts(measured, workload)
    assert [each.text for each in assumed] == [
        "Training did not change the accuracy of 8.auto. Train for more epochs (--qat-epochs) or "
        "at a higher rate (--qat-lr)."
    ] * is_idle


@pytest.mark.parametrize(
    ("after", "sentence"),
    [
        ([0.9, 0.4, 0.3], "all 2 points below float"),
        ([0.9, 0.5, 0.2], r"no point within 1.00 percentage points of float.* \(--qat-lr\)"),
        ([0.8, 0.895, 0.3], None),
    ],
)
def test_a_sweep_whose_training_helped_no_point_says_so(after, sentence):
    rows = [
        {"float": 0.9, "PTQ": before, "QAT": now}
        for before, now in zip([0.9, 0.4, 0.3], after, strict=True)
    ]
    with collected_assumptions() as assumed:
        note_weak_training(rows, ("PTQ", "QAT"), CLASSIFICATION.metric, "qat")
    matches = [bool(re.search(sentence, each.text)) for each in assumed]
    assert matches == [True] * (sentence is not None)


@pytest.mark.parametrize(
    ("training", "lr", "sentence"),
    [
        ({"epochs": 2, "lr": 1e-4}, None, "2 epochs at a peak learning rate of 0.0001 .*-lr"),
        ({"epochs": 2, "lr": 1e-4}, 1e-4, None),
        ({"epochs": 0, "lr": 1e-4}, None, None),
    ],
)
def test_the_default_rate_of_training_is_an_assumption(training, lr, sentence):
    with collected_assumptions() as assumed:
        assume_rate(training, lr, "finetune")
    matches = [bool(re.search(sentence, each.text)) for each in assumed]
    assert matches == [True] * (sentence is not None)


@pytest.mark.parametrize(
    ("test", "drop", "is_noted"),
    [
        ((0.54, 0.44, 0.63), 0.01, True),
        ((0.9, 0.85, 0.961), 0.01, False),
        ((0.54, 0.44, 0.63), 0.4, 0),
    ],
    ids=["beyond", "within its interval", "allowed"],
)
def test_a_drop_on_test_rows_alone_is_reported(test, drop, is_noted):
    x, y = torch.randn(20, 4), torch.arange(20) % 2
    workload = Workload.of(nn.Sequential(nn.Linear(4, 2)), (x, y), (x, y))
    scores = (0.97, 0.9, 0.99)
    with collected_assumptions() as found:
        note_test_drop(
            candidate("PTQ", scores, test), candidate("float", scores, scores), workload, drop
        )
    message = "test rows 8.auto (PTQ) loses 43.00 percentage points, more than the 1.00 percentage"
    assert [message in each.text for each in found] == [True] * is_noted


def test_a_saved_model_that_fails_on_test_rows_is_reported(files):
    x = torch.randn(400, 4)
    y = (x[:, 0] > x[:, 1]).long()
    fit(model := nn.Linear(4, 2), (x, y), epochs=30, lr=5e-2)
    far = x[300:] * 300 + torch.tensor([3e4, 3e4, 0, 0])
    run = chop.compress(nn.Sequential(model), (x[:300], y[:300]), test=(far, y[300:]), **QUICK)
    noted = [text for text in run.result["assumptions"] if "although it passed on" in text]
    assert run.result["saved"] and len(noted) == 1


@pytest.mark.parametrize(("lower", "rounded"), [(False, 0.7), (False, 0.071), (True, 0.7)])
@pytest.mark.parametrize("ends", [(), (0.06, 0.08)], ids=["one number", "numbers of rows"])
def test_a_loss_that_counts_as_a_score_is_noted(lower, rounded, ends):
    judged = {"evaluate": lambda model: 0.0, "metric": "error", "lower_is_better": lower}
    workload = Workload.of(nn.Sequential(nn.Linear(4, 2)), torch.randn(20, 4), **judged)
    measured = [
        candidate(method, (value, *ends), (value, *ends))
        for method, value in (("float", 0.07), ("PTQ", rounded))
    ]
    with collected_assumptions() as found:
        note_doubts(measured, workload)
    message = "8.auto (PTQ) 0.7, float 0.07"
    advice = "If lower error is better, use --lower-is-better. Otherwise the float"
    is_noted = rounded == 0.7 and not lower
    assert [message in each.text and advice in each.text for each in found] == [True] * is_noted


@pytest.mark.parametrize(
    ("rounded", "poor_fit", "is_noted"),
    [(0.7, "1 of 2", True), (0.7, None, False), (0.6, "1 of 2", False)],
)
def test_a_function_with_one_number_for_all_models_is_noted(rounded, poor_fit, is_noted):
    judged = {"evaluate": lambda model: 0.7}
    workload = Workload.of(nn.Sequential(nn.Linear(4, 2)), torch.randn(20, 4), **judged)
    exact, other = candidate("float", (0.7,), (0.7,)), candidate("PTQ", (rounded,), (rounded,))
    other = replace(other, row=replace(other.row, poor_fit=poor_fit))
    with collected_assumptions() as found:
        note_doubts([exact, other], workload)
    assert ["gives 0.7 for all models" in each.text for each in found] == [True] * is_noted


def test_lower_is_better_for_errors():
    x, y = torch.randn(20, 4), torch.randn(20)
    workload = Workload.of(nn.Sequential(nn.Linear(4, 1)), (x, y), (x, y), metric="mse")
    seen = candidate("float", (0.1, 0.05, 0.2), (0.5, 0.4, 0.6))
    better = candidate("QAT", (0.1, 0.05, 0.2), (0.3, 0.25, 0.35))
    with collected_assumptions() as found:
        note_doubts([seen, better], workload)
    assert "trained on the validation rows" in found[0].text
    assert "8.auto (QAT) 0.3, float 0.5" in found[1].text and "float model as long" in found[1].text


def test_without_weights_they_are_the_first_suspicion(files):
    named = {"model": "net.py:Net", "dataset": "train.csv", "out": files / "run"}
    torch.manual_seed(0)
    with pytest.raises(ConfigError, match="or train it|--pixel") as stop:
        compress(CompressConfig(**named, **QUICK))
    assert "No --weights were given, so 'net.py:Net' has the weights from its" in str(stop.value)


def test_model_and_weights_are_checked_before_data(files):
    absent = {"dataset": "nothing.csv", "out": files / "run"}
    wrong = {
        "model file 'no.py' does not exist": {"model": "no.py:Net"},
        "'net.py' has no 'Nett': did you mean 'Net'": {"model": "net.py:Nett"},
        "weights 'no.pt': there is no such file": {"model": "net.py:Net", "weights": "no.pt"},
        "'train.csv' contains no readable weights": {"model": "net.py:Net", "weights": "train.csv"},
    }
    for message, settings in wrong.items():
        with pytest.raises(chop.errors.ChopError, match=message):
            load_workload(WorkloadConfig(**settings, **absent))
    (files / "text.csv").write_text("text,label\n" + "good,1\nbad,0\n" * 5)
    with pytest.raises(ConfigError, match=r"only texts \('text'\).* with --tokenizer"):
        load_workload(WorkloadConfig(model="net.py:Net", dataset="text.csv"))


def test_shapes_are_in_the_message(files):
    torch.save({"fc.weight": torch.zeros(3, 4), "fc.bias": torch.zeros(2)}, "wide.pt")
    with pytest.raises(chop.errors.CheckpointError) as stop:
        load_workload(WorkloadConfig(model="net.py:Net", weights="wide.pt", dataset="train.csv"))
    expected = "of another shape fc.weight (fc.weight (3, 4) in the file, (2, 4) in the model)."
    assert str(stop.value).endswith(expected)


def test_the_size_of_the_first_image_is_an_assumption(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    for number in range(8):
        folder = tmp_path / "images" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        size = (4, 4) if number else (6, 4)
        Image.fromarray(np.full(size, 9, np.uint8)).save(folder / f"{number}.png")
    info = describe_dataset("images", load_dataset(tmp_path / "images"))
    config = WorkloadConfig(model="net", dataset="images")
    text = str(get_preprocessing(config, nn.Linear(1, 1), info))
    assert "the size of the first one" in text
    fixed = replace(config, image_size=(9,))
    assert "first" not in str(get_preprocessing(fixed, nn.Linear(1, 1), info))
