"""Binary and multi-label tasks, and metrics of rare classes, beside scikit-learn and torch."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as oracle
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from chop.errors import ConfigError
from chop.train import TASKS, evaluate, fit
from chop.train.intervals import constant_score

IN_SKLEARN = {
    "accuracy": oracle.accuracy_score,
    "balanced_accuracy": oracle.balanced_accuracy_score,
    "precision": oracle.precision_score,
    "recall": oracle.recall_score,
    "f1": oracle.f1_score,
    "matthews_correlation": oracle.matthews_corrcoef,
    "hamming_loss": oracle.hamming_loss,
}


class Fixed(nn.Module):
    """Answers with what it is given."""

    def __init__(self, shape=()):
        super().__init__()
        self.shape, self.scale = shape, nn.Parameter(torch.ones(()))

    def forward(self, x):
        return (x * self.scale).reshape(len(x), *self.shape)


def drawn(labels_each=None, share=0.2, count=150):
    draw = torch.Generator().manual_seed(0)
    shape = (count,) if labels_each is None else (count, labels_each)
    y = (torch.rand(shape, generator=draw) < share).long()
    return torch.randn(shape, generator=draw) + y, y


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("name", sorted(TASKS["binary"].metrics))
def test_one_logit_is_judged_as_scikit_learn_does(name, shape, dtype):
    x, y = drawn()
    found = evaluate(Fixed(shape), (x, y.to(dtype)), task="binary", metric=name, batch_size=32)
    if name in IN_SKLEARN:
        expected = IN_SKLEARN[name](y.numpy(), (x > 0).numpy())
    else:
        of_ranks = {"roc_auc": "roc_auc_score", "average_precision": "average_precision_score"}
        expected = getattr(oracle, of_ranks[name])(y.numpy(), x.numpy())
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", sorted(TASKS["multilabel"].metrics))
def test_several_logits_are_judged_as_scikit_learn_does(name):
    x, y = drawn(3, 0.4)
    found = evaluate(Fixed((3,)), (x, y), task="multilabel", metric=name, batch_size=32)
    decided = (x > 0).long().numpy()
    if name == "f1_micro":
        expected = oracle.f1_score(y.numpy(), decided, average="micro")
    elif name in ("f1", "precision", "recall"):
        expected = IN_SKLEARN[name](y.numpy(), decided, average="macro")
    elif name in IN_SKLEARN:
        expected = IN_SKLEARN[name](y.numpy(), decided)
    else:
        of_ranks = {"roc_auc": "roc_auc_score", "average_precision": "average_precision_score"}
        expected = getattr(oracle, of_ranks[name])(y.numpy(), x.numpy())
    assert found == pytest.approx(expected, abs=1e-9)


def test_two_logits_may_be_a_yes_or_no_too():
    x, y = drawn()
    pair = torch.stack([-x / 2, x / 2], 1)
    model = Fixed((2,))
    assert evaluate(model, (pair, y), task="binary", metric="roc_auc") == pytest.approx(
        oracle.roc_auc_score(y.numpy(), x.numpy())
    )
    assert evaluate(model, (pair, y), metric="roc_auc") == pytest.approx(
        oracle.roc_auc_score(y.numpy(), x.numpy())
    )
    assert fit(model, (pair, y), task="binary", lr=0.0, batch_size=150)[0] == pytest.approx(
        nn.functional.cross_entropy(pair, y).item()
    )


def test_classes_have_metrics_of_rare_ones():
    draw = torch.Generator().manual_seed(1)
    y = torch.randint(0, 3, (90,), generator=draw)
    x = torch.randn(90, 3, generator=draw) + nn.functional.one_hot(y, 3)
    found = evaluate(Fixed((3,)), (x, y), metric="balanced_accuracy")
    assert found == pytest.approx(oracle.balanced_accuracy_score(y.numpy(), x.argmax(1).numpy()))
    ones = np.eye(3)[y.numpy()]
    found = evaluate(Fixed((3,)), (x, y), metric="roc_auc")
    assert found == pytest.approx(oracle.roc_auc_score(ones, x.numpy(), average="macro"))


@pytest.mark.parametrize("each", [None, 3])
def test_training_minimizes_binary_cross_entropy(each):
    x, y = drawn(each)
    task = "binary" if each is None else "multilabel"
    model = Fixed(() if each is None else (3,))
    (loss,) = fit(model, (x, y), task=task, lr=0.0, batch_size=150)
    assert loss == pytest.approx(bce(x, y.float()).item(), rel=1e-5)
    torch.manual_seed(0)
    inputs = torch.randn(150, 4)
    target = (inputs[:, : each or 1] > 0).long()
    learner = nn.Linear(4, each or 1)
    fit(learner, (inputs, target), task=task, epochs=40, lr=0.1)
    assert evaluate(learner, (inputs, target), task=task) > 0.9


def test_rows_that_do_not_count_are_left_out():
    x, y = drawn()
    y[:10] = -100
    found = evaluate(Fixed(), (x, y), task="binary", metric="f1")
    assert found == pytest.approx(oracle.f1_score(y[10:].numpy(), (x[10:] > 0).numpy()))


def test_answers_that_are_no_numbers_are_worst_and_infinite_ones_rank():
    auc = TASKS["binary"].metrics["roc_auc"]
    y = torch.tensor([0, 0, 1, 1])
    assert math.isnan(auc.score(torch.tensor([0.0, math.nan, 1.0, 2.0]), y))
    assert auc.score(torch.tensor([-math.inf, 0.0, 1.0, math.inf]), y) == 1.0
    assert auc.score(torch.tensor([0.1, 0.2, 0.3, 0.4]).bfloat16(), y) == 1.0


def test_a_class_without_rows_is_one_sentence():
    with pytest.raises(ConfigError, match="^metric 'roc_auc': a class has no rows, or"):
        evaluate(Fixed(), (torch.randn(4), torch.ones(4).long()), task="binary", metric="roc_auc")


@pytest.mark.parametrize(
    ("x", "y", "suggested"),
    [
        (torch.randn(9, 1), torch.tensor([0, 1, 0] * 3), "task 'binary' or 'regression': --task"),
        (torch.randn(9), torch.tensor([0, 1, 0] * 3), "task 'binary' or 'regression': --task"),
        (torch.randn(9, 3), torch.tensor([[0, 1, 0]] * 9), "'multilabel' or 'regression': --task"),
        (torch.randn(9, 1), torch.tensor([0, 1, 2] * 3), "task 'regression': --task says which"),
    ],
)
def test_which_task_is_meant_is_asked_for(x, y, suggested):
    with pytest.raises(ConfigError) as told:
        evaluate(Fixed(x.shape[1:]), (x, y))
    assert suggested in str(told.value)


def test_zeros_and_ones_of_several_are_no_regression_unasked():
    x, y = drawn(3)
    with pytest.raises(ConfigError, match="3 numbers a row, all 0 or 1: --task multilabel treats"):
        evaluate(Fixed((3,)), (x, y.float()))
    assert evaluate(Fixed((3,)), (x, y.float()), task="regression", metric="mse") > 0


@pytest.mark.parametrize(
    ("task", "y", "wrong"), [("binary", [0, 1, 2], "2"), ("multilabel", [[0, 1], [0, 3]], "3")]
)
def test_other_labels_are_refused(task, y, wrong):
    y = torch.tensor(y)
    with pytest.raises(ConfigError, match=f"^task '{task}': got the label {wrong}, expected 0 or"):
        evaluate(Fixed(y.shape[1:]), (torch.randn(y.shape), y), task=task)


def test_constant_answers():
    _, y = drawn()
    metrics = TASKS["binary"].metrics
    share = y.double().mean().item()
    constants = {name: constant_score(metric, y) for name, metric in metrics.items()}
    assert constants["accuracy"] == pytest.approx(1 - share)
    assert (constants["roc_auc"], constants["balanced_accuracy"], constants["f1"]) == (0.5, 0.5, 0)
    assert constants["average_precision"] == pytest.approx(share)
