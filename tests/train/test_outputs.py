"""Models with several outputs, each with labels and a task of its own."""

import collections
import dataclasses

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as oracle
from torch import nn
from torch.utils.data import DataLoader

from chop.errors import ConfigError
from chop.train import TASKS, Rows, evaluate, find_task, fit, predict, read_rows
from chop.train.evaluator import Evaluator
from chop.train.intervals import compute_interval, constant_score
from tests.networks import Made

NAMED = {"kind": "classification", "age": "regression"}


@dataclasses.dataclass
class Output:
    kind: torch.Tensor
    age: torch.Tensor


Pair = collections.namedtuple("Pair", ["kind", "age"])
WRAPS = {
    "dict": lambda kind, age: {"kind": kind, "age": age},
    "other order": lambda kind, age: {"age": age, "extra": kind, "kind": kind},
    "nested": lambda kind, age: {"heads": {"kind": kind, "age": age.squeeze(-1)}, "hidden": [age]},
    "tuple": lambda kind, age: (kind, age),
    "list": lambda kind, age: [kind, age],
    "named tuple": Pair,
    "dataclass": Output,
    "with a loss": lambda kind, age: {"loss": kind.mean(), "kind": kind, "age": age},
}


class Net(nn.Module):
    """Its outputs are parts of what it is given: three logits and a number."""

    def __init__(self, wrap="dict"):
        super().__init__()
        self.wrap, self.scale = wrap, nn.Parameter(torch.ones(()))

    def forward(self, x):
        return WRAPS[self.wrap](x[:, :3] * self.scale, x[:, 3:4] * self.scale)


def drawn(count=40):
    draw = torch.Generator().manual_seed(0)
    kind = torch.randint(0, 3, (count,), generator=draw)
    x = torch.randn(count, 4, generator=draw)
    x[:, :3] += F.one_hot(kind, 3)
    age = x[:, 3] + 0.5 * torch.randn(count, generator=draw)
    return x, kind, age


def scores(x, kind, age):
    found = oracle.accuracy_score(kind, x[:, :3].argmax(1)), oracle.r2_score(age, x[:, 3])
    return [float(value) for value in found]


@pytest.mark.parametrize("wrap", WRAPS)
def test_outputs_are_found_by_name_or_position(wrap):
    x, kind, age = drawn()
    found = evaluate(Net(wrap), (x, {"kind": kind, "age": age}), batch_size=7)
    assert found == pytest.approx(sum(scores(x, kind, age)) / 2, abs=1e-6)


@pytest.mark.parametrize("batch_size", [1, 13, 40])
def test_metrics_are_those_of_scikit_learn(batch_size):
    x, kind, age = drawn()
    rows, (accuracy, r2) = (x, {"kind": kind, "age": age}), scores(x, kind, age)
    wanted = {
        "mean_score": (accuracy + r2) / 2, "worst_score": min(accuracy, r2),
        "kind_accuracy": accuracy, "age_r2": r2,
        "kind_f1": oracle.f1_score(kind, x[:, :3].argmax(1), average="macro"),
        "age_mae": oracle.mean_absolute_error(age, x[:, 3]),
    }  # fmt: skip
    for name, value in wanted.items():
        found = evaluate(Net(), rows, task=NAMED, metric=name, batch_size=batch_size)
        assert found == pytest.approx(value, abs=1e-6), name
    metric, predictions, labels = predict(Net(), rows)
    low, high = compute_interval(metric, predictions, labels)
    assert low < metric.score(predictions, labels) < high
    assert metric.parts(predictions, labels) == pytest.approx(
        {"kind_accuracy": accuracy, "age_r2": r2}, abs=1e-6
    )
    common = kind.bincount().max().item() / len(kind)
    assert constant_score(metric, labels) == pytest.approx(common / 2, abs=1e-6)


def loaders(x, kind, age):
    items = [{"x": a, "kind": b, "age": c} for a, b, c in zip(x, kind, age, strict=True)]
    frame = pd.DataFrame(x.numpy(), columns=list("abcd")).assign(kind=kind.numpy(), age=age.numpy())
    return {
        "mapping of labels": (x, {"kind": kind, "age": age}),
        "tuple of labels": (x, (kind, age)),
        "arrays": (x.numpy(), (kind.numpy(), age.numpy())),
        "loader of rows": DataLoader(items, batch_size=2),
        "loader of tuples": DataLoader(
            [(a, (b, c)) for a, (b, c) in zip(x, zip(kind, age, strict=True), strict=True)],
            batch_size=19,
        ),
        "columns": {"x": x, "kind": kind, "age": age},
        "frame": frame,
        "matrix": (x, torch.stack([kind.double(), age.double()], 1)),
    }


@pytest.mark.parametrize("given", sorted(loaders(*drawn(2))))
def test_rows_of_many_kinds(given):
    x, kind, age = drawn()
    rows = read_rows(loaders(x, kind, age)[given], find_task(NAMED))
    assert [(part.name, part.shape) for part in rows.parts] == [("kind", ()), ("age", ())]
    assert torch.equal(rows.labels[:, 0], kind.double())
    assert torch.equal(rows.labels[:, 1].float(), age)
    found = evaluate(Net(), rows, task=NAMED)
    assert found == pytest.approx(sum(scores(x, kind, age)) / 2, abs=1e-6)


def test_labels_without_names_are_of_outputs_by_position():
    x, kind, age = drawn()
    pairs = [(a, (b, c)) for a, b, c in zip(x, kind, age, strict=True)]
    for rows in ((x, (kind, age)), DataLoader(pairs, batch_size=19)):
        read = read_rows(rows)
        assert [part.name for part in read.parts] == ["output_0", "output_1"]
        found = evaluate(Net("tuple"), rows, task="multioutput", metric="worst_score")
        assert found == pytest.approx(min(scores(x, kind, age)), abs=1e-6)
    assert not read_rows((x, list(torch.randint(0, 2, (40, 3))))).parts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_minimizes_the_sum_of_losses(dtype):
    x, kind, age = drawn()
    rows = (x.to(dtype), {"kind": kind, "age": age})
    (loss,) = fit(Net().to(dtype), rows, lr=0.0, batch_size=40)
    wanted = F.cross_entropy(x[:, :3], kind) + F.mse_loss(x[:, 3], age)
    assert loss == pytest.approx(wanted.item(), rel=1e-5 if dtype == torch.float32 else 2e-2)
    found = Evaluator(Net().to(dtype), rows)
    assert found.scores(found.logits())["loss"] == pytest.approx(loss, rel=2e-2)

    def distance(output, labels):
        return (output["age"][:, 0] - labels["age"]).abs().mean()

    task = dataclasses.replace(find_task(NAMED), output_loss=distance)
    (loss,) = fit(Net(), (x, {"kind": kind, "age": age}), task=task, lr=0.0, batch_size=40)
    assert loss == pytest.approx((x[:, 3] - age).abs().mean().item(), rel=1e-5)


def test_pictures_and_classes_together():
    torch.manual_seed(0)
    x = torch.randn(60, 1, 4, 4)
    labels = {"mask": (x[:, 0] > 0).long(), "kind": (x.mean((1, 2, 3)) > 0).long()}
    labels["mask"][:, 0] = 255
    parts = {"mask": nn.Conv2d(1, 2, 1), "kind": nn.Linear(16, 2)}
    model = Made(lambda m, x: {"mask": m.mask(x), "kind": m.kind(x.flatten(1))}, **parts)
    fit(model, (x, labels), epochs=60, lr=5e-2)
    metric, predictions, expected = predict(model, (x, labels))
    parts = metric.parts(predictions, expected)
    assert set(parts) == {"mask_mean_iou", "kind_accuracy"} and min(parts.values()) > 0.85
    assert metric.is_share


def test_rows_keep_their_outputs(tmp_path):
    x, kind, age = drawn()
    rows = read_rows((x, {"kind": kind, "age": age}))
    assert isinstance(rows, Rows) and rows.task.name == "kind=classification,age=regression"
    few = rows.take(torch.tensor([3, 1]))
    assert few.parts == rows.parts and torch.equal(few.labels[:, 0], kind[[3, 1]].double())


@pytest.mark.parametrize(
    ("labels", "wrap", "task", "message"),
    [
        ({"sort": "kind", "years": "age"}, "dict", None, "labels of the outputs sort, years, but"),
        ({"kind": "kind", "age": "age"}, "tuple", {"kind": "classification", "size": "regression"},
         "no numeric label column 'size'"),
        ({"kind": "kind", "age": "zeros"}, "dict", None, "output 'age': .* --task says which"),
        ({"kind": "age", "age": "kind"}, "dict", None, "output '(kind|age)': task"),
        ({"kind": "kind", "age": "age"}, "dict", {"kind": "classification"}, "several outputs"),
        ({"kind": "kind", "age": "age"}, "dict", "kind=classification,age", "expected OUTPUT=TASK"),
        ({"kind": "kind", "age": "age"}, "dict", "kind=classes,age=regression", "of 'kind'"),
        ({"kind": "kind", "age": "age"}, "dict", "kind=causal-lm,age=regression", "one output"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence(labels, wrap, task, message):
    x, kind, age = drawn()
    values = {"kind": kind, "age": age, "zeros": (age > 0).long()}
    with pytest.raises(ConfigError, match=message):
        evaluate(Net(wrap), (x, {k: values[v] for k, v in labels.items()}), task=task)


def test_labels_of_fewer_rows_are_told():
    x, kind, age = drawn()
    with pytest.raises(ConfigError, match="equally many rows, got input 0 40, .* 40, .* 9"):
        evaluate(Net("tuple"), (x, (kind, age[:9])))


def test_one_tensor_has_no_several_outputs():
    x, kind, age = drawn()
    with pytest.raises(ConfigError, match=r"returns one tensor \(2, 4\); pass one array of labels"):
        evaluate(nn.Linear(4, 4), (x, {"kind": kind, "age": age}))
    assert "multioutput" in TASKS
