"""Models and labels that cannot be used are named by their cause."""

import copy
import threading
from functools import partial

import datasets
import numpy as np
import pandas
import pytest
import torch
from sklearn.metrics import mean_absolute_error, r2_score, zero_one_loss
from torch import nn
from torch.utils.data import Dataset

import chop
from chop.actions.given_rows import with_label_column
from chop.actions.sweep.settings import QuantizeSweepConfig
from chop.base.notices import collected_assumptions
from chop.errors import ChopError
from chop.train import evaluate, find_task, fit, read_rows
from chop.train.intervals import Score
from chop.train.judge import Judge
from chop.train.text_labels import with_numbered_texts
from chop.workloads.chance import check_scores
from chop.workloads.workload import Workload

X = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(24) % 3
FRAME = pandas.DataFrame(X.numpy(), columns=list("abcd"))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)


class Complex(Net):
    def forward(self, x):
        return torch.fft.fft(self.layer(x))


class Forgetful(Net):
    def forward(self, x):
        self.layer(x)


class Changed(Net):
    """Model whose output goes through a function."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x):
        return self.change(self.layer(x))


class Locked(Net):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Unsized(Dataset):
    def __getitem__(self, i):
        return X[i], Y[i]


@torch.inference_mode()
def _in_inference_mode():
    return Net()


def distance(predictions, labels):
    return (predictions - labels).abs().mean()


LAZY = nn.Sequential(nn.LazyLinear(3))
COLUMNS = {**{name: X[:, i] for i, name in enumerate("abcd")}, "label": Y}
CALLS = {
    "complex": (lambda: evaluate(Complex(), (X, Y)), "returns real numbers, got torch.complex64"),
    "complex in training": (lambda: fit(Complex(), (X, Y)), "real numbers, got torch.complex64"),
    "none": (lambda: chop.quantize(Forgetful(), data=X), "its forward returns None"),
    "number": (
        lambda: chop.quantize(Changed(lambda y: 3), data=X),
        "returns 3, expected a",
    ),
    "array": (
        lambda: chop.quantize(Changed(lambda y: y.detach().numpy()), data=X),
        r"returns a ndarray of shape \[3, 3\] \(float32\), expected a tensor",
    ),
    "decisions": (
        lambda: evaluate(Changed(lambda y: y > 0), (X, Y)),
        "of each row, got bool",
    ),
    "mean": (lambda: fit(Changed(torch.mean), (X, Y)), "of each row, got a single number"),
    "lazy": (lambda: chop.quantize(LAZY, data=X), "lazy layers .* such as 0.weight; call it once"),
    "lazy training": (lambda: fit(LAZY, (X, Y)), "lazy layers whose weights have no values"),
    "exported": (
        lambda: chop.quantize(torch.export.export(Net(), (X,)).module(), data=X),
        "of torch.export, .* pass the original module",
    ),
    "lock": (
        lambda: Workload.of(Locked(), (X, Y)),
        "an attribute that cannot be copied",
    ),
    "swapped": (lambda: Workload.of(Net(), (Y, X)), "Inputs and labels seem to be swapped"),
    "whole numbers": (
        lambda: chop.quantize(Net(), data=(X * 10).int()),
        r"weights are float32: pass x as float32, such as X.float\(\)",
    ),
    "one row": (lambda: read_rows((X[0], Y[0])), "got 0 for y; pass one value per row"),
    "text as label": (
        lambda: read_rows([(x, y, "id") for x, y in zip(X, Y, strict=True)]),
        "column 'labels': expected rows of numbers, got 'id'",
    ),
    "other column": (lambda: read_rows({"x": X, "y": Y}), "label.column names another column"),
    "no length": (lambda: read_rows(Unsized()), r"got Unsized without __len__\."),
    "no train": (
        lambda: chop.quantize(Net(), data={"test": X}),
        "a split train, got test",
    ),
    "train is None": (
        lambda: chop.compress(Net(), {"train": None}),
        "expected labeled rows, .* None",
    ),
    "test rows beside": (lambda: evaluate(Net(), (X, Y, X, Y)), "test=.X_test, y_test"),
    "test rows of another length": (
        lambda: read_rows((X[:9], X[9:], Y[:9], Y[9:])),
        r"4 of \[9, 15, 9, 15\] rows. If some are test rows, pass \(X, y\) and test=",
    ),
    "list of inputs": (
        lambda: read_rows(([X, X], Y)),
        r"For a model with several inputs, pass \(\(a, b\), y\)",
    ),
    "forward with a list": (
        lambda: evaluate(Net(), ((X, X), Y)),
        "a list of tensors needs a wrapper with a parameter for each",
    ),
    "weights": (
        lambda: evaluate(Net(), (X, Y, torch.ones(24))),
        "the last array counts as labels, and weights of rows are not read",
    ),
    "array for a graph": (
        lambda: chop.MaseGraph(Net(), dummy_in={"x": X}).model(X.numpy()),
        r"got a ndarray; pass torch.as_tensor\(x, dtype=torch.float32\)",
    ),
    "frame for a graph": (
        lambda: chop.MaseGraph(Net(), dummy_in={"x": X}).model(FRAME),
        r"got a DataFrame; pass torch.as_tensor\(x.to_numpy\(\), dtype=torch.float32\)",
    ),
    "inference tensors": (
        lambda: fit(_in_inference_mode(), (X, Y)),
        r"inference tensors, .* pass copy.deepcopy\(model\), made outside of it",
    ),
    "columns": (lambda: evaluate(Net(), COLUMNS), "pass a pandas frame, or .X, y. of arrays"),
    "from minus one": (
        lambda: find_task("classification").check_labels(Y - 1),
        "classes begin at -1, add 1 to the labels; otherwise, .* Remove rows",
    ),
    "no rows": (lambda: evaluate(Net(), (X[:0], Y[:0])), "at least one row, got 0 rows"),
    "used iterator": (
        lambda: chop.quantize(Net(), data=iter(())),
        "empty or already consumed iterator",
    ),
    "class": (
        lambda: chop.MaseGraph(Net()).to_module(like=Net),
        "like: expected an nn.Module, got the class Net; pass an instance",
    ),
    "direction": (
        lambda: Workload.of(Net(), (X, Y), lower_is_better=True, metric=distance),
        r"otherwise pass metric=chop.train.Metric\(name, score, higher_is_better=False\)",
    ),
    "direction of a function": (
        lambda: check_scores(
            {"test": Score(0.1, None, 2.0, 24)},
            Workload.of(Net(), (X, X[:, :3]), metric=distance),
            QuantizeSweepConfig(),
        ),
        r"If lower distance is better, pass chop.train.Metric\(name, score, higher_is_better=False",
    ),
    "width": (
        lambda: QuantizeSweepConfig(widths="0,4", qat_epochs=0),
        "width: got 0, expected 1 to 32",
    ),
}


@pytest.mark.parametrize(("call", "message"), CALLS.values(), ids=CALLS)
def test_the_cause_is_named(call, message):
    with pytest.raises(ChopError, match=message):
        call()


def test_weights_that_are_cut_off_say_so(tmp_path):
    from safetensors.torch import save_file

    from chop.models.weights import load_weights

    path = tmp_path / "net.safetensors"
    save_file(Net().state_dict(), path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ChopError, match="cannot be read as safetensors .*; it may be cut off"):
        load_weights(Net(), path)
    torch.save(Net(), path)
    with pytest.raises(ChopError, match="contains no readable weights: expected only"):
        load_weights(Net(), path)


@pytest.mark.parametrize(
    "rows",
    [
        {"x": X, "labels": Y, "id": ["row"] * 24},
        {"x": X, "labels": Y, "id": np.array(["row"] * 24)},
        [{"x": x, "labels": y, "id": "row"} for x, y in zip(X, Y, strict=True)],
        ({"x": X, "id": pandas.Series(["row"] * 24)}, Y),
        (FRAME.assign(id="row"), Y),
        FRAME.assign(id=pandas.Categorical(["row"] * 24), label=Y.numpy()),
        datasets.Dataset.from_dict({"x": X.tolist(), "id": ["row"] * 24, "label": Y.tolist()}),
    ],
    ids=["columns", "array", "rows", "pair", "frame", "categories", "table"],
)
def test_a_column_of_texts_beside_numbers_is_an_assumption(rows):
    with collected_assumptions() as assumptions:
        read = read_rows(rows)
    (column,) = read.columns.values()
    assert torch.equal(column, X)
    (text,) = [each.text for each in assumptions]
    assert text == "columns without numbers are not used as inputs: id"


def test_text_labels_of_tables_are_numbered_in_all_splits():
    texts = {"train": ["b", "a"] * 12, "test": ["a"] * 24}
    tables = {
        key: datasets.Dataset.from_dict({"x": X.tolist(), "label": texts[key]}) for key in texts
    }
    read = {key: read_rows(table) for key, table in with_numbered_texts(tables).items()}
    assert read["train"].labels.tolist() == [1, 0] * 12 and not read["test"].labels.any()
    assert torch.equal(read["test"].columns["x"], X)


def test_lists_that_are_missing_in_a_table_are_one_sentence():
    table = datasets.Dataset.from_dict({"x": [None, [1.0, 2.0]], "label": [0, 1]})
    with pytest.raises(ChopError, match=r"column 'x': 1 of 2 rows are missing \(None\); fill"):
        read_rows(table)


def test_rows_that_were_written_elsewhere_are_read():
    big_endian = read_rows((X.numpy().astype(">f4"), Y.numpy().astype(">i8")))
    assert torch.equal(big_endian.columns["input 0"], X) and torch.equal(big_endian.labels, Y)
    torch.manual_seed(0)
    model = Net()
    expected = chop.quantize(model, data=X)(X)
    assert torch.equal(chop.quantize(model, data=(X,))(X), expected)


class Distance:
    higher_is_better = False

    def __call__(self, predictions, labels):
        return distance(predictions, labels)


@pytest.mark.parametrize(
    ("metric", "is_higher"),
    [
        (mean_absolute_error, False),
        (partial(zero_one_loss, normalize=False), False),
        (r2_score, True),
        (distance, True),
        (Distance(), False),
    ],
)
def test_the_direction_of_a_metric_follows_its_name_or_attribute(metric, is_higher):
    assert find_task("regression").with_metric(metric).metric.higher_is_better == is_higher


def test_a_copy_of_inference_tensors_trains():
    assert len(fit(copy.deepcopy(_in_inference_mode()), (X, Y), epochs=1)) == 1


@pytest.mark.parametrize("name, way_out", [("fit", "train.fit"), ("load", "MaseGraph.from_chec")])
def test_a_name_of_another_package_is_named(name, way_out):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; use chop.{way_out}"):
        getattr(chop, name)


def test_a_list_of_label_columns_is_several_columns():
    frame = FRAME.assign(rain=Y.numpy() % 2, snow=Y.numpy() // 2)
    listed, joined = (with_label_column(frame, x) for x in (["rain", "snow"], "rain,snow"))
    assert np.array_equal(listed[1], joined[1]) and listed[0].equals(joined[0])
    assert listed[1].shape == (24, 2)


def test_classes_in_place_of_hits_are_warned_of():
    with pytest.warns(UserWarning, match="return predictions == labels instead"):
        Judge.of(lambda model: model(X).argmax(1)).score(Net())
