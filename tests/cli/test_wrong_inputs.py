"""Commands with wrong inputs: exit code 2, and one sentence about what is wrong."""

import csv
import json
import re

import pytest
import torch
from PIL import Image
from torch import nn

import chop
from chop.cli import main

NETS = """
import sys
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        return self.fc(x)

class Leaves(Net):
    def forward(self, x):
        sys.exit("bye")

class TwoInputs(Net):
    def forward(self, x, mask):
        return self.fc(x)

class Nothing(Net):
    def forward(self, x):
        return self.fc(x) * float("nan")

class Sums(Net):
    def forward(self, x):
        return self.fc(x).mean(0)

class Empty(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2, device="meta")

    def forward(self, x):
        return self.fc(x)

class Detached(Net):
    def forward(self, x):
        return self.fc(x).detach()

class Silent(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

class Text(nn.Module):
    def forward(self, x):
        return "text"

def leave(model):
    sys.exit(0)

def lost(output, labels):
    return output.sum() * float("nan")

def endless(model):
    return float("inf")
"""
TRAINED = ("--qat-epochs", 1, "--qat", "all")
RANGE = range(60)
TINY = ("--train-epochs", 0, "--qat-epochs", 0, "--bench-seconds", 0, "--force")


def table(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("a", "b", "c", "label"), *rows])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with models, tables, pictures of one class, and incomplete checkpoints."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "net.py").write_text(NETS)
    table(folder / "rows.csv", [(i, i % 3, i % 5, i % 2) for i in range(60)])
    table(folder / "ones.csv", [(i, i % 3, i % 5, 1) for i in range(60)])
    table(folder / "large.csv", [(f"{i + 1}e300", 1, 2, i % 2) for i in range(60)])
    for name in ("net.h5", "net.onnx"):
        (folder / name).write_text("x")
    (folder / "titled.csv").write_text("# rows\na,b,c,label\n1,2,3,0\n")
    (folder / "untrained").mkdir()
    table(folder / "untrained" / "test.csv", [(i, i % 3, i % 5, i % 2) for i in RANGE])
    (folder / "titles.csv").write_text("# rows\n# of today\na,b,c,label\n1,2,3,0\n")
    (folder / "trailing.csv").write_text("a,b,c,label,\n" + "1,2,3,0,\n4,5,6,1,\n" * 9)
    (folder / "wide.csv").write_bytes("a,b,c,label\n1,2,3,0\n".encode("utf-16-le"))
    (folder / "spaces.csv").write_text("a b c label\n" + "1 2 3 0\n4 5 6 1\n" * 9)
    (folder / "list.json").write_text("[1, 2, 3]")
    (folder / "nested.json").write_text(
        json.dumps([{"a": {"b": i}, "label": i % 2} for i in RANGE])
    )
    for name, test in (("fewer", "a,b,label\n1,2,0\n3,4,1\n"), ("empty", "a,b,c,label\n")):
        (folder / name).mkdir()
        table(folder / name / "train.csv", [(i, i % 3, i % 5, i % 2) for i in RANGE])
        (folder / name / "test.csv").write_text(test)
    (folder / "plan.json").write_text('{"plan": 3}')
    for part in ("train", "test"):
        (folder / "pictures" / part / "cat").mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(folder / "pictures" / part / "cat" / "1.png")
    small = chop.quantize(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), "8.auto", torch.randn(9, 3))
    for missing in ("mz", "pt"):
        chop.save(small, folder / f"no_{missing}" / "model")
        (folder / f"no_{missing}" / f"model.{missing}").unlink()
    return folder


@pytest.fixture
def message(monkeypatch, capsys, place):
    """Runs a command that fails; returns its message without the kind of error."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "1000")

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["chop", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        return capsys.readouterr().err.strip().splitlines()[-1].partition(": ")[2]

    return run


def compress(model, data, *options):
    return ("compress", "--model", model, "--dataset", data, "--formats", "8.auto", *TINY, *options)


@pytest.mark.parametrize("missing", ["mz", "pt"])
@pytest.mark.parametrize("name", ["", "/model", "/model.pt"])
@pytest.mark.parametrize("command", ["export", "shard", "emit"])
def test_half_a_checkpoint_is_named_by_its_missing_file(message, missing, name, command):
    options = {"export": ("--to", "pt2"), "shard": ("--mesh", 2), "emit": ("--model", "mlp")}
    said = message(command, f"no_{missing}{name}", *options[command])
    if command == "emit":  # a run's folder and its model are given together
        return
    assert re.match(rf"'.*no_{missing}/model\.{missing}' is missing: a checkpoint is two", said)


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            ("evaluate", "mlp", "--stride", 4),
            "stride: leave it out, since built-in model 'mlp' has its own data",
        ),
        (
            ("compress", "--model", "mlp", "--max-length", 9),
            "max_length: applies to texts, and built-in model 'mlp' reads none",
        ),
        (
            ("compress", "--model", "bert-tiny", "--max-length", 5000, "--limit", 8),
            "max_length: got 5000 tokens, and the model has a table of 512 positions",
        ),
        (
            ("shard", "--model", "bert-tiny", "--length", 1000),
            "length: got 1000 tokens, and the model has a table of 512 positions: use at most 512",
        ),
        (compress("net.py:Net", "rows.csv", "--stride", 4), "stride: applies to texts, and 'rows"),
        (("report", "no_mz", "--out", "pictures"), "--out: 'pictures' is a folder, expected a"),
        (("shard", "--plan", '{"plan": 3}'), "plan: write the JSON '{\"plan\": 3}' to a file"),
        (("shard", "--plan", "plan.json"), "plan 'plan.json': key 'plan' does not exist: choose"),
        (compress("net.py:Leaves", "rows.csv"), "'net.py:Leaves' cannot take rows of 'rows.csv'"),
        (
            compress("net.py:Net", "rows.csv", "--evaluate", "net.py:leave"),
            "evaluate 'net.py:leave': line 52, in leave, raises SystemExit: 0.",
        ),
        (
            compress("net.py:Net", "rows.csv", "--evaluate", "net.py:endless"),
            "evaluate 'net.py:endless': returned inf for the float model",
        ),
        (
            compress("net.py:Net", "large.csv"),
            "data: 60 of 60 rows have infinite numbers, in float32 with a maximum of 3.4e38",
        ),
        (
            compress("net.py:Net", "titled.csv"),
            "file 'titled.csv': the first line, '# rows', has fewer columns. The first line must",
        ),
        (
            compress("net.py:Net", "titles.csv"),
            "'titles.csv' cannot be read as csv: line 3 has 4 columns, and the first line",
        ),
        (
            compress("net.py:Net", "trailing.csv"),
            "data: no row of the split 'train' has a number in the column 'Unnamed: 4': the column "
            "is empty",
        ),
        (
            compress("net.py:Net", "untrained"),
            "data set 'untrained' has no labeled split 'train': found ['test']. Add one, such as",
        ),
        (compress("net.h5", "rows.csv"), "model 'net.h5': expected a PyTorch model, such as"),
        (compress("net.onnx", "rows.csv"), "model: 'net.onnx' is an ONNX file, which only chop"),
        (
            compress("net.py:Net", "wide.csv"),
            "file 'wide.csv': line 1 has NUL bytes, so that it is",
        ),
        (("lower", "net.py:Net"), "chop lower 'net.py:Net': expected an output folder; pass"),
        (
            compress("net.py:Net", "spaces.csv"),
            "file 'spaces.csv': its only column is 'a b c label', since",
        ),
        (compress("net.py:Net", "list.json"), "data set 'list.json' has no column 'labels' or"),
        (compress("net.py:Nothing", "rows.csv"), "'net.py:Nothing' returns only NaN for rows of"),
        (compress("net.py:Silent", "rows.csv"), "'net.py:Silent': Silent has no forward"),
        (
            compress("net.py:Detached", "rows.csv", "--train-epochs", 1),
            "the output of the model has no gradient",
        ),
        (compress("net.py:", "rows.csv"), "model 'net.py:': expected a class or function, such as"),
        (compress("net.py:Net", "rows.csv", "--qat-lr", 0.1), "qat_lr: nothing is trained, since"),
        (
            ("sweep", "prune", "--finetune-epochs", 0, "--finetune-lr", 0.1),
            "finetune_lr: nothing is trained, since finetune_epochs is 0.",
        ),
        (compress("net.py:Net", "rows.csv", "--figures", ""), "--figures: unknown figure format"),
        (compress("net.py:Empty", "rows.csv"), "'net.py:Empty' has weights without values"),
        (
            compress("net.py:Sums", "rows.csv"),
            "task 'classification': expected logits of (B, C) and labels of (B,), got (2,) and "
            "(10,); the model returned 2 rows for 10",
        ),
        (
            compress("net.py:Net", "rows.csv", "--loss", "net.py:lost", *TRAINED),
            "loss 'net.py:lost': returned NaN, although the model's output has none.",
        ),
        (compress("net.py:Net", "nested.json"), "data set 'nested.json': expected columns of"),
        (compress("net.py:Net", "empty"), "'empty' has no rows in 'test.csv'"),
        (
            compress("net.py:Net", "fewer"),
            "data: no row of the split 'test' has a number in the column 'c'",
        ),
        (
            ("bench", "model", "--model", "mlp", "--threads", 100_000),
            "chop bench model --threads: got 100000, expected 1 to 1024.",
        ),
        (
            ("bench", "softmax", "--threads", 100_000),
            "chop bench softmax --threads: got 100000, expected 1 to 1024.",
        ),
        (
            ("report", "no_mz", "--out", "runs/page"),
            "--out: 'runs/page': expected an HTML file, such as 'runs/page.html'.",
        ),
        (
            compress("net.py:Text", "rows.csv"),
            "'net.py:Text': its forward returns 'text', expected a",
        ),
        (
            compress("net.py:Net", "rows.csv", "--rotation", "group"),
            "rotation: 'group' needs method rotate",
        ),
        (
            ("search", "precision", "--model", "mlp", "--widths", "0:3", "--limit", 16),
            "width: no searched format (integer) can have 0; leave it out.",
        ),
        (
            ("search", "resume", "no_mz", "--trials", -5),  # before the storage is read
            "chop search resume --trials: got -5, expected 1 to 1000000000.",
        ),
        (
            ("evaluate", "mlp", "--gen-kwargs", '{"a": 1}'),
            "'{\"a\": 1}': expected name=value, such as bits=4.",
        ),
    ],
    ids=lambda value: " ".join(map(str, value))[:60] if isinstance(value, tuple) else "",
)
def test_the_message_names_what_is_wrong(message, command, expected):
    assert message(*command).startswith(expected)


def test_lines_of_chop_are_not_called_the_users(message):
    said = message(*compress("net.py:TwoInputs", "rows.csv"))
    assert "TypeError: TwoInputs.forward() missing 1 required" in said and "probe.py" not in said


def test_labels_that_are_all_one_are_one_class_and_start_nowhere(message, capsys):
    with pytest.raises(AssertionError):  # --force continues, and the model is saved
        message(*compress("net.py:Net", "ones.csv"))
    printed = capsys.readouterr()
    assert "have one class" in printed.out + printed.err
    assert "start at 1" not in printed.out + printed.err


def test_the_name_of_a_model_is_checked_before_data_are_read(message, monkeypatch):
    timm = type("timm", (), {"is_model": lambda name: False, "list_models": lambda: ["resnet18"]})
    monkeypatch.setitem(__import__("sys").modules, "timm", timm)
    said = message(*compress("timm:resnt18", "pictures"))
    assert said == "timm has no model 'resnt18': did you mean 'resnet18'?"
