"""Rows as people have them: frames, mappings with labels, lists of rows and of batches."""

from decimal import Decimal

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import chop
from chop.errors import ConfigError
from chop.train import evaluate, fit, read_rows
from chop.train.unlabeled import read_inputs
from chop.workloads.workload import Workload

pandas = pytest.importorskip("pandas")

torch.manual_seed(0)
X, Y = torch.randn(12, 6), torch.arange(12) % 2
PICTURES = torch.randn(12, 3, 4, 4)
FRAME = pandas.DataFrame(X.numpy(), columns=list("abcdef"))
SERIES = pandas.Series(Y.numpy(), index=range(100, 112))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(48, 4), nn.Linear(6, 4)

    def forward(self, image, numbers):
        return self.a(image.flatten(1)) + self.b(numbers)


def net():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def convolution():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))


FRAMES = {
    "labels in it": lambda: FRAME.assign(label=Y.numpy()),
    "labels first": lambda: pandas.concat(
        [SERIES.set_axis(FRAME.index).rename("labels"), FRAME], axis=1
    ),
    "a series": lambda: (FRAME, SERIES),
    "a frame of labels": lambda: (FRAME, SERIES.to_frame()),
    "an array": lambda: (FRAME, Y.numpy()),
    "pandas' own types": lambda: (FRAME.convert_dtypes(), SERIES.astype("Int64")),
    "float64": lambda: (FRAME.astype("float64"), SERIES.astype("float64")),
    "categories": lambda: (FRAME, SERIES.astype("category")),
    "decimals": lambda: (FRAME.map(lambda x: Decimal(float(x))), SERIES),
    "objects": lambda: (FRAME.astype(object), SERIES.astype(object)),
    "a column of floats": lambda: (FRAME, Y.float()[:, None]),
}


@pytest.mark.parametrize("given", FRAMES)
def test_frames_are_rows_of_vectors(given):
    rows = read_rows(FRAMES[given]())
    (x,) = rows.columns.values()
    assert x.dtype == torch.float32 and torch.equal(x, X) and torch.equal(rows.labels, Y)


FRAMES_REFUSED = {
    "times": (
        lambda: (FRAME.assign(g=pandas.Timestamp("2026-11-29")), SERIES),
        "column 'g': expected numbers, got Timestamp",
    ),
    "arrays in cells": (
        lambda: (pandas.DataFrame({"x": list(X.numpy())}), SERIES),
        r"column 'x': .*pass its rows as an array \(numpy\.stack\(series\)\)",
    ),
    "only texts": (
        lambda: (FRAME.astype(str), SERIES),
        "column 'a': expected numbers, got '",
    ),
    "classes": (lambda: (FRAME, SERIES.map({0: "no", 1: "yes"})), "column 'labels': .*got 'no'"),
    "infinite": (lambda: (FRAME.assign(b=np.inf), SERIES), r"infinite .* columns 'b' \(12\)"),
    "blank": (lambda: (FRAME.assign(b=np.nan), SERIES), r"NaN, in the columns 'b' \(12\)"),
    "no labels": (lambda: FRAME, "a frame with a column 'labels' or 'label'.*'a', 'b'"),
    "an infinite tensor": (
        lambda: (X.log().abs().nan_to_num(torch.inf), Y),
        "infinite numbers|NaN",
    ),
    "another order": (
        lambda: (FRAME, SERIES.set_axis(FRAME.index)[::-1]),
        r"same labels in another order; pass \(X, y\.loc\[X\.index\]\), or \(X, y\.to_numpy",
    ),
    "missing category": (
        lambda: (FRAME, SERIES.mask([True] + [False] * 11).astype("category")),
        "labels: 1 of 12 rows have no label",
    ),
    "infinite labels": (lambda: (X, torch.full((12,), torch.inf)), "labels: 12 of 12 rows"),
}


@pytest.mark.parametrize("case", FRAMES_REFUSED)
def test_what_is_no_number_is_named_by_column(case):
    given, message = FRAMES_REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        read_rows(given())


def test_two_inputs_with_labels():
    given = {"image": PICTURES, "numbers": FRAME}, SERIES
    rows = read_rows(given)
    assert torch.equal(rows.columns["image"], PICTURES) and torch.equal(rows.labels, Y)
    assert torch.equal(rows.columns["numbers"], X)
    with pytest.raises(ConfigError, match="got image 5, numbers 12, labels 12"):
        read_rows(({"image": PICTURES[:5], "numbers": X}, Y))
    workload = Workload.of(Two(), given, given)
    assert workload.example()["image"].shape == (3, 3, 4, 4)


@pytest.mark.parametrize("name", ["Unnamed: 0", "__index_level_0__"])
def test_indices_that_pandas_wrote_are_no_inputs(name):
    frame = FRAME.reset_index(names=name)
    for rows in (read_rows((frame, SERIES)), read_inputs(net(), frame)):
        assert torch.equal(rows.columns["input 0"], X) and rows.vector == tuple("abcdef")
    kept = pandas.DataFrame({name: Y.numpy()})
    assert read_rows((kept, SERIES)).columns["input 0"].shape == (12, 1)
    given = (frame, SERIES), (FRAME, SERIES)
    assert Workload.of(net(), *given).example()["input"].shape[1] == 6


CALLS = {
    "fit": lambda data: fit(net(), data),
    "evaluate": lambda data: evaluate(net(), data),
    "compress": lambda data: chop.compress(net(), data, bench_seconds=0),
    "quantize": lambda data: chop.quantize(net(), "8.auto", data),
}


@pytest.mark.parametrize("call", CALLS)
def test_columns_of_a_frame_that_are_read_are_named(call):
    labeled = FRAME.assign(id=range(12), label=Y.numpy())
    with pytest.raises(ConfigError, match=r"input: 'a', .*'id'\. Leave out .*frame\.drop\("):
        CALLS[call](labeled)
    with pytest.raises(ConfigError, match="'d', 'e'. .* add those that are missing"):
        CALLS[call]((FRAME.drop(columns="f"), SERIES))


def test_a_frame_of_texts_is_to_be_tokenized():
    texts = pandas.DataFrame({"text": ["once upon a time", "the cat"]})
    with pytest.raises(ConfigError, match="only texts, in 'text': tokenize .* needs no labels"):
        fit(net(), texts)
    for call in (lambda: fit(net(), texts.assign(label=[0, 1])), lambda: CALLS["quantize"](texts)):
        with pytest.raises(ConfigError, match="column 'text': expected numbers, .* tokenize"):
            call()


UNLABELED = ("rows", "an iterator", "a frame", "a loader of tensors", "a data set of one tensor")


@pytest.mark.parametrize("case", UNLABELED)
def test_a_workload_with_its_own_evaluation_needs_no_labels(case):
    make, given = LISTS[case]
    workload = Workload.of(make(), given(), evaluate=lambda model: 1.0)
    assert torch.equal(workload.train.columns["input 0"], X) and len(workload.test) == 12


def test_a_data_set_without_labels_is_read():
    named = Dataset.from_dict({"input": X.numpy()})
    workload = Workload.of(net(), named, evaluate=lambda model: 1.0)
    for rows in (workload.train, read_inputs(net(), named)):
        assert torch.equal(rows.columns["input"], X)


LISTS = {
    "rows": (net, lambda: list(X)),
    "batches": (net, lambda: list(X.split(5))),
    "arrays": (net, lambda: [x.numpy() for x in X.split(4)]),
    "tuples of one": (net, lambda: [(x,) for x in X.split(4)]),
    "batches with labels": (net, lambda: list(zip(X.split(5), Y.split(5), strict=True))),
    "rows with labels": (net, lambda: list(zip(X, Y, strict=True))),
    "an iterator": (net, lambda: iter(X.split(5))),
    "lists of numbers": (net, lambda: X.tolist()),
    "a frame": (net, lambda: FRAME),
    "a loader of tensors": (net, lambda: DataLoader(X, 5)),
    "a loader of tuples": (net, lambda: DataLoader(TensorDataset(X), 5, shuffle=True)),
    "a data set of one tensor": (net, lambda: TensorDataset(X)),
    "pictures": (convolution, lambda: list(PICTURES)),
    "batches of pictures": (convolution, lambda: list(PICTURES.split(5))),
    "mappings": (
        Two,
        lambda: [{"image": i, "numbers": x} for i, x in zip(PICTURES, X, strict=True)],
    ),
    "batches of mappings": (
        Two,
        lambda: [
            {"image": i, "numbers": x} for i, x in zip(PICTURES.split(5), X.split(5), strict=True)
        ],
    ),
    "a loader of mappings": (
        Two,
        lambda: DataLoader(
            [{"numbers": x, "image": i} for i, x in zip(PICTURES, X, strict=True)], 5
        ),
    ),
}


@pytest.mark.parametrize("case", LISTS)
def test_rows_without_labels_are_read_one_by_one(case):
    make, given = LISTS[case]
    model = make().train()
    columns = read_inputs(model, given()).columns
    expected = {"image": PICTURES, "numbers": X} if make is Two else {"input 0": X}
    expected = {"input 0": PICTURES} if make is convolution else expected
    assert columns.keys() == expected.keys() and model.training
    assert all(torch.allclose(columns[name], x) for name, x in expected.items())


def test_a_model_is_quantized_with_batches_as_with_their_rows():
    model = net()
    one = chop.quantize(model, "8.auto", X)(X)
    assert torch.equal(chop.quantize(model, "8.auto", list(X.split(5)))(X), one)
    assert torch.equal(chop.quantize(model, "8.auto", FRAME)(X), one)
    with pytest.raises(ConfigError, match="an empty list"):
        chop.quantize(model, "8.auto", [])


@pytest.mark.parametrize(
    ("wrap", "way_out"),
    [
        (torch.compile, r"pass net\._orig_mod"),
        (nn.DataParallel, r"pass net\.module"),
        (lambda model: torch.jit.trace(model, X), "pass the original model"),
    ],
    ids=["compiled", "parallel", "traced"],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_wrapped_models_say_which_one_to_pass(wrap, way_out, tmp_path):
    model = wrap(net())
    with pytest.raises(ConfigError, match=way_out):
        chop.quantize(model, "8.auto", X)
    with pytest.raises(ConfigError, match=way_out):
        chop.compress(model, (X, Y), out=tmp_path)
