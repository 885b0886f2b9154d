"""Models and labels that cannot be used are named by their cause."""

import copy
import threading
from functools import partial
from importlib import import_module
from types import SimpleNamespace

import datasets
import numpy as np
import pandas
import pytest
import torch
from sklearn.metrics import (
    log_loss,
    mean_absolute_error,
    precision_score,
    r2_score,
    roc_auc_score,
    zero_one_loss,
)
from torch import nn
from torch.utils.data import Dataset, TensorDataset, random_split

import chop
from chop.actions.api import Compressed
from chop.actions.given_rows import with_label_column
from chop.actions.sweep.settings import QuantizeSweepConfig
from chop.base.notices import collected_assumptions, forget_notices
from chop.errors import ChopError, ConfigError
from chop.nn.packed import pack
from chop.nn.quantized import QuantLinear
from chop.pipelines import Pipeline
from chop.train import Metric, evaluate, find_task, fit, read_label_column, read_rows
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


def _with_classes(names):
    model = Net()
    model.config = SimpleNamespace(label2id={name: number for number, name in enumerate(names)})
    return model


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
    "other column": (lambda: read_rows({"x": X, "y": Y}), "Rename the column of labels"),
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
    "pair": (
        lambda: fit(Net(), X, Y),
        r"at most 2 arguments .* Rows are one argument: \(X",
    ),
    "no data": (lambda: chop.compress(Net()), "expected the argument 'data', which has no default"),
    "twice": (lambda: fit(Net(), (X, Y), model=Net()), "'model' is given twice"),
    "settings": (
        lambda: chop.passes.quantize_transform_pass(chop.MaseGraph(Net()), by="type"),
        r"one dictionary of settings, quantize_transform_pass\(mg, \{'by': ...\}\)",
    ),
    "settings by name": (
        lambda: chop.passes.quantize_transform_pass(chop.MaseGraph(Net()), config={"by": "type"}),
        r"'config': pass the settings as the second argument, .*, or as pass_args=settings",
    ),
    "share": (
        lambda: chop.passes.prune_transform_pass(chop.MaseGraph(Net()), {"weight": 0.5}),
        r"weight: expected WeightPruning or None, got 0.5 \(float\); write \{'sparsity': 0.5\}",
    ),
    "direction of a rate": (
        lambda: chop.search.Goal("wer"),
        r"pass the direction: Goal\('wer', 'min",
    ),
    "one value": (
        lambda: chop.pipelines.Pipeline([lambda mg: mg])(chop.MaseGraph(Net())),
        r"a pass that returns \(mg, results\), got MaseGraph.*; return mg, \{\}",
    ),
    "losses": (lambda: chop.quantize([0.5, 0.25]), "chop.train.fit trains the model itself"),
    "foreign": (lambda: chop.MaseGraph(Net()).export("m.onnx"), "leave .onnx out"),
    "folder": (lambda: chop.save(chop.quantize(Net(), data=X), "runs/"), "a path with a file name"),
    "score first": (
        lambda: evaluate(Net(), (X, Y), metric=Metric(r2_score, "r2")),
        "Metric.name: expected str, got the function 'r2_score'",
    ),
    "argument": (lambda: chop.MaseGraph(Net(), inputs=X), "MaseGraph: unknown argument 'inputs'"),
    "of": (lambda: Workload.of(Net(), X, Y, Y), r"of: expected at most 3 .*\(model, train, test\)"),
    "name": (lambda: Workload.of(Net(), (X, Y), name=3), "name: expected str or None, got 3"),
    "class of a teacher": (lambda: fit(Net(), (X, Y), distill=Net), "pass an instance, Net"),
    "result": (lambda: chop.save(Compressed(Net(), None, {}), "m"), "pass its attribute model"),
    "called result": (lambda: Compressed(Net(), None, {})(X), "cannot be called: use found.model"),
    "entry of a result": (lambda: Compressed(Net(), None, {})["saved"], "'saved': use found.model"),
    "numbers": (lambda: evaluate({"saved": None}, (X, Y)), "numbers of a result; use found.model"),
    "traced": (
        lambda: fit(torch.jit.trace(Net(), X[:4]), (X, Y)),
        r"TorchScript has .*; pass the original model, and trace the result \(torch.jit.trace\)",
    ),
    "gradients": (lambda: torch.no_grad()(fit)(Net(), (X, Y)), "outside of torch.no_grad"),
    "data sets": (
        lambda: evaluate(Net(), random_split(TensorDataset(X, Y), [20, 4])),
        "got a list of 2 with data sets; pass one of them, or name the splits",
    ),
    "mapping": (lambda: evaluate(Net(), {"X": X, "y": Y}), "Rename the column of labels; jobs"),
    "pipeline": (lambda: Pipeline(3), r"a list of passes, got 3; pass \[pass\]"),
    "codes": (
        lambda: pack(QuantLinear.from_float(nn.Linear(4, 2), {}), known=3),
        "known: expected a table that is extended",
    ),
    "no table": (lambda: read_label_column(FRAME), "chop.train.read_rows reads other forms"),
    "code": (lambda: Judge(len, "n", code=X), r"Judge.code: expected str, got a Tensor of shape"),
    "package": (
        lambda: chop.train(Net()),
        "is a package, which cannot be called; use chop.train.f",
    ),
    "teacher": (
        lambda: fit(_with_classes("abc"), (X, Y), distill=_with_classes("cab")),
        "classes of the teacher are c, a, b, those of the model a, b, c; expected one order",
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
    read = {key: read_rows(table) for key, table in with_numbered_texts(tables)[0].items()}
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


@pytest.mark.parametrize(
    "package, name, way_out",
    [
        ("chop", "fit", "; use chop.train.fit"),
        ("chop", "load", "; use chop.MaseGraph.from_checkpoint"),
        ("chop", "evalute", "; use chop.train.evaluate"),
        ("chop", "quantise", ": did you mean 'quantize'"),
        ("chop.workloads", "Workload", "; use chop.workloads.workload.Workload"),
        ("chop.train", "evalute", ": did you mean 'evaluate'"),
        ("chop.nn.quantized.modules", "LinearIntger", ": did you mean 'LinearInteger'"),
        ("chop.nn.quantized.modules.linear", "LinearIntger", ": did you mean 'LinearInteger'"),
    ],
)
def test_a_missing_name_is_named_where_it_is(package, name, way_out):
    with pytest.raises(ImportError, match=f"no attribute '{name}'{way_out}"):
        exec(f"from {package} import {name}")
    if package != "chop.train" and package != "chop.workloads":
        with pytest.raises(AttributeError, match=f"no attribute '{name}'{way_out}"):
            getattr(import_module(package), name)


def test_bound_operators_are_found_beside_the_others():
    assert chop.nn.quantized.LinearInteger is chop.nn.quantized.modules.linear.LinearInteger


def test_a_list_of_label_columns_is_several_columns():
    frame = FRAME.assign(rain=Y.numpy() % 2, snow=Y.numpy() // 2)
    listed, joined = (with_label_column(frame, x) for x in (["rain", "snow"], "rain,snow"))
    assert np.array_equal(listed[1], joined[1]) and listed[0].equals(joined[0])
    assert listed[1].shape == (24, 2)


@pytest.mark.parametrize("kind", [torch.int64, torch.float32])
def test_classes_in_place_of_hits_are_warned_of(kind):
    forget_notices()
    with pytest.warns(UserWarning, match="return predictions == labels instead"):
        Judge.of(lambda model: (Y + 0 * model(X).argmax(1)).to(kind)).score(Net())


def _precision(predictions, labels):
    return precision_score(labels, predictions, average="macro", zero_division=0)


@pytest.mark.parametrize(
    "metric",
    [
        Metric("own", _precision),
        Metric("own", partial(precision_score, average="macro", zero_division=0)),
        partial(precision_score, average="macro", zero_division=0),
    ],
)
def test_functions_of_scikit_learn_get_the_labels_first_and_classes(metric):
    model = Net()
    expected = precision_score(Y, model(X).argmax(1), average="macro", zero_division=0)
    assert expected != precision_score(model(X).argmax(1), Y, average="macro", zero_division=0)
    assert evaluate(model, (X, Y), metric=metric) == expected


def test_class_names_of_texts_are_recorded():
    names = np.array(["ant", "bee", "cat"])[Y]
    table = datasets.Dataset.from_dict({"x": X.tolist(), "label": names.tolist()})
    model = Net()
    model.config = SimpleNamespace(label2id={"cat": 0, "bee": 1, "ant": 2})
    for rows in ((X, names), table):
        workload = Workload.of(model, rows, (X, names) if rows is not table else table)
        assert workload.class_names == ("cat", "bee", "ant")
        assert torch.equal(workload.train.labels, 2 - Y)


def test_attributes_of_a_model_are_on_the_model_of_a_graph():
    mg = chop.MaseGraph(Net())
    for name, way_out in {"eval": "mg.model.eval", "save": "mg.export"}.items():
        with pytest.raises(AttributeError, match=f"no attribute '{name}'; use {way_out}"):
            getattr(mg, name)
    assert not hasattr(mg, "nothing") and copy.deepcopy(mg).nodes


class Filters(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv, self.head = nn.Conv2d(channels, 2, 3), nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.conv(x).mean((2, 3)))


def pixels(*shape):
    return (255 * torch.rand(6, *shape)).to(torch.uint8)


@pytest.mark.parametrize("call", [evaluate, fit, lambda net, rows: chop.quantize(net, data=rows)])
@pytest.mark.parametrize(
    ("channels", "x", "advice", "mend"),
    [
        (1, pixels(8, 8) / 255, r"reads 1 channel .* pass X\[:, None\]", lambda x: x[:, None]),
        (3, pixels(8, 8, 3) / 255, r"in dimension 1 .* X.movedim\(-1", lambda x: x.movedim(-1, 1)),
        (3, pixels(3, 8, 8), r"float32, .* X.float\(\).* Divide it", lambda x: x.float() / 255),
    ],
)
def test_images_of_another_layout_have_a_way_out(call, channels, x, advice, mend):
    labels = torch.arange(6) % 2
    with pytest.raises(ConfigError, match=advice):
        call(Filters(channels), (x, labels))
    call(Filters(channels), (mend(x), labels))


@pytest.mark.parametrize(
    ("metric", "advice"),
    [
        (roc_auc_score, "pass metric='roc_auc'"),
        (Metric("ll", log_loss), r"Metric\('ll', log_loss, .*is_better=F"),
    ],
)
def test_metrics_of_scores_do_not_get_classes(metric, advice):
    net, rows = nn.Linear(4, 2), (X, (X[:, 0] > 0).long())
    with pytest.raises(ConfigError, match=rf"needs scores and would get classes; .*{advice}"):
        evaluate(net, rows, metric=metric)
    own = Metric(
        "ll",
        log_loss,
        predict=lambda logits, labels: logits.double().softmax(-1),
        higher_is_better=False,
    )
    expected = nn.functional.cross_entropy(net(X), rows[1]).item()
    assert evaluate(net, rows, metric=own) == pytest.approx(expected, rel=1e-5)
