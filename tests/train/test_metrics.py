import pytest
import torch
from sklearn import metrics as sklearn_metrics

from chop.errors import ConfigError
from chop.train import METRICS, find_metric

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
