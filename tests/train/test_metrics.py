import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics

from chop.errors import ConfigError
from chop.train import METRICS, find_metric
from chop.train.metrics import REGRESSION_METRICS

ORACLES = {
    "accuracy": sklearn_metrics.accuracy_score,
    "precision": lambda y, p: sklearn_metrics.precision_score(
        y, p, average="macro", zero_division=0
    ),
    "recall": lambda y, p: sklearn_metrics.recall_score(y, p, average="macro", zero_division=0),
    "f1": lambda y, p: sklearn_metrics.f1_score(y, p, average="macro", zero_division=0),
    "matthews_correlation": sklearn_metrics.matthews_corrcoef,
}


def test_every_metric_has_an_oracle():
    assert ORACLES.keys() == METRICS.keys()


@pytest.mark.filterwarnings("ignore:A single label was found:UserWarning")
@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("name", METRICS)
def test_equal_to_scikit_learn(name, classes):
    for n in (1, 2, 7, 200):
        predictions, labels = torch.randint(0, classes, (2, n))
        expected = ORACLES[name](labels.numpy(), predictions.numpy())
        assert METRICS[name](predictions, labels) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", METRICS)
def test_constant_and_perfect_predictions(name):
    labels = torch.tensor([0, 1, 1, 2])
    constant = torch.zeros(4, dtype=torch.long)
    expected = ORACLES[name](labels.numpy(), constant.numpy())
    assert METRICS[name](constant, labels) == pytest.approx(expected)
    assert METRICS[name](labels, labels) == pytest.approx(1.0)


def test_a_misspelt_metric_names_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown metric 'acuracy': did you mean 'accuracy'\?"):
        find_metric("acuracy")
    assert find_metric("f1") is METRICS["f1"]


@pytest.mark.parametrize("name", METRICS)
def test_metrics_take_arrays_and_lists_and_check_their_shapes(name):
    p, t = [0, 1, 1, 2], [0, 1, 0, 2]
    expected = METRICS[name](torch.tensor(p), torch.tensor(t))
    assert METRICS[name](np.array(p), t) == METRICS[name](p, np.array(t)[:, None]) == expected
    for wrong in (torch.eye(4), [0, 1], ["a"] * 4, 3, [[]] * 4, [0.2, 0.9, 0.9, 0.1]):
        with pytest.raises(ConfigError, match=f"metric '{name}': expected"):
            METRICS[name](wrong, t)


@pytest.mark.parametrize("name", REGRESSION_METRICS)
def test_errors_of_columns_are_not_broadcast(name):
    p, t = torch.tensor([0.0, 1.0, 4.0]), torch.tensor([0.0, 2.0, 3.0])
    assert REGRESSION_METRICS[name](p[:, None], t) == REGRESSION_METRICS[name](p, t.numpy())
    for wrong in ([0.0], [], torch.ones(3, 2)):
        with pytest.raises(ConfigError, match=f"metric '{name}': expected predictions and labels"):
            REGRESSION_METRICS[name](wrong, t)
