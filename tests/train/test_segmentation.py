"""Segmentation beside scikit-learn, torch and transformers."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as oracle
from torch import nn

from chop.errors import ConfigError
from chop.train import TASKS, evaluate, fit, predict
from chop.train.evaluator import Evaluator
from chop.train.intervals import compute_interval, constant_score

TASK = TASKS["segmentation"]
SCORES = {
    "mean_iou": lambda y, x: oracle.jaccard_score(y, x, average="macro"),
    "pixel_accuracy": oracle.accuracy_score,
    "balanced_accuracy": lambda y, x: oracle.recall_score(
        y, x, labels=sorted({*y}), average="macro"
    ),
    "f1": lambda y, x: oracle.f1_score(y, x, average="macro"),
}


class Fixed(nn.Module):
    """Answers with what it is given."""

    def __init__(self, wrap=lambda x: x):
        super().__init__()
        self.scale, self.wrap = nn.Parameter(torch.ones(())), wrap

    def forward(self, x):
        return self.wrap(x * self.scale)


@dataclasses.dataclass
class Output:
    logits: torch.Tensor


def pictures(classes=4, count=13, size=(6, 5), shares=None):
    """Logits that are often right, and masks with both kinds of pixels that do not count."""
    draw = torch.Generator().manual_seed(0)
    weights = torch.ones(classes) if shares is None else torch.tensor(shares)
    y = torch.multinomial(weights, count * size[0] * size[1], True, generator=draw)
    y = y.view(count, *size)
    x = torch.randn(count, classes, *size, generator=draw) + F.one_hot(y, classes).movedim(3, 1)
    y[torch.rand(y.shape, generator=draw) < 0.1] = 255
    y[torch.rand(y.shape, generator=draw) < 0.1] = -100
    return x, y


def counted(x, y):
    counts = (y >= 0) & (y != 255)
    return y[counts].numpy(), x.argmax(1)[counts].numpy()


@pytest.mark.parametrize("batch_size", [1, 4, None])
@pytest.mark.parametrize("name", sorted(TASK.metrics))
def test_metrics_are_those_of_scikit_learn(name, batch_size):
    x, y = pictures()
    found = evaluate(Fixed(), (x, y), metric=name, batch_size=batch_size)
    assert found == pytest.approx(SCORES[name](*counted(x, y)), abs=1e-12)


@pytest.mark.parametrize("name", sorted(TASK.metrics))
def test_rare_classes_and_pictures_that_do_not_count(name):
    x, y = pictures(shares=[1.0, 0.01, 0.2, 0.0])
    y[3], y[7] = 255, -100
    found = evaluate(Fixed(), (x, y), metric=name, batch_size=1)
    assert found == pytest.approx(SCORES[name](*counted(x, y)), abs=1e-12)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: {"out": x, "aux": x[:, :1]},
        lambda x: {"logits": x},
        lambda x: (x, x.mean()),
        Output,
    ],
)
def test_outputs_as_torchvision_and_transformers_have_them(wrap):
    x, y = pictures()
    assert evaluate(Fixed(wrap), (x, y)) == evaluate(Fixed(), (x, y))


@pytest.mark.parametrize("shape", ["B1HW", "BHW"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32])
def test_masks_of_other_kinds(shape, dtype):
    x, y = pictures()
    y[y == -100] = 255
    given = y.to(dtype) if shape == "BHW" else y[:, None].to(dtype)
    assert evaluate(Fixed(), (x, given), task="segmentation") == evaluate(Fixed(), (x, y))


def test_smaller_outputs_are_scaled_as_transformers_does():
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    torch.manual_seed(0)
    sizes = {"hidden_sizes": [8] * 4, "depths": [1] * 4, "num_attention_heads": [1] * 4}
    config = SegformerConfig(decoder_hidden_size=8, num_labels=3, **sizes)
    model = SegformerForSemanticSegmentation(config).eval()
    x = torch.randn(5, 3, 32, 32)
    y = torch.randint(0, 3, (5, 32, 32))
    y[:, :9] = 255
    with torch.no_grad():
        answer = model(x, labels=y)
    logits = F.interpolate(answer.logits, (32, 32), mode="bilinear", align_corners=False)
    assert answer.logits.shape == (5, 3, 8, 8)
    assert evaluate(model, {"pixel_values": x, "labels": y}) == pytest.approx(
        SCORES["mean_iou"](*counted(logits, y)), abs=1e-12
    )
    found = Evaluator(model, {"pixel_values": x, "labels": y})
    assert found.scores(found.logits())["loss"] == pytest.approx(answer.loss.item(), rel=1e-5)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    rows = {"pixel_values": x, "labels": y}
    (loss,) = fit(model, rows, lr=0.0, batch_size=5)
    with torch.no_grad():
        assert loss == pytest.approx(model.train()(x, labels=y).loss.item(), rel=1e-4)


def test_one_logit_tells_foreground_from_background():
    x, y = pictures(2)
    one = x[:, 1:] - x[:, :1]
    model = Fixed()
    for given in (one, one[:, 0]):
        assert evaluate(model, (given, y)) == evaluate(model, (x, y))
    (loss,) = fit(model, (one, y), lr=0.0, batch_size=len(y))
    counts = (y >= 0) & (y != 255)
    wanted = F.binary_cross_entropy_with_logits(one[:, 0][counts], y[counts].float())
    assert loss == pytest.approx(wanted.item(), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_training_minimizes_the_cross_entropy_of_pixels_that_count(dtype):
    x, y = pictures()
    y[2] = 255
    model = Fixed().to(dtype)
    (loss,) = fit(model, (x.to(dtype), y), lr=0.0, batch_size=len(y))
    wanted = F.cross_entropy(x.to(dtype).float(), y.where(y >= 0, 255), ignore_index=255)
    assert loss == pytest.approx(wanted.item(), rel=1e-5 if dtype == torch.float32 else 2e-2)


def test_training_passes_over_pictures_that_do_not_count():
    torch.manual_seed(0)
    learner = nn.Conv2d(1, 2, 3, padding=1)
    inputs = torch.randn(40, 1, 6, 6)
    target = (inputs[:, 0] > 0).long()
    target[::4] = 255
    fit(learner, (inputs, target), epochs=8, lr=0.05, batch_size=1)
    assert evaluate(learner, (inputs, target)) > 0.9


def test_intervals_draw_pictures_and_constants_are_the_commonest_class():
    x, y = pictures(shares=[1.0, 5.0, 1.0, 1.0])
    metric, predictions, expected = predict(Fixed(), (x, y))
    assert len(predictions) == len(expected) == len(y)
    low, high = compute_interval(metric, predictions, expected)
    assert low < metric.score(predictions, expected) < high
    real, _ = counted(x, y)
    wanted = oracle.jaccard_score(real, real * 0 + 1, average="macro")
    assert constant_score(metric, expected) == pytest.approx(wanted, abs=1e-12)
    assert not TASK.is_one_class(expected)
    same = predict(Fixed(), (x, torch.full_like(y, 2)))[2]
    assert TASK.is_one_class(same)


def test_more_classes_than_255_count_that_one_too():
    y = torch.tensor([[[255, 3]], [[255, 255]]])
    x = F.one_hot(y, 256).movedim(3, 1).float()
    assert evaluate(Fixed(), (x, y), metric="pixel_accuracy") == 1.0
    x[0, 3] = 9.0
    assert evaluate(Fixed(), (x, y), metric="pixel_accuracy") == 0.75


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (
            torch.randn(4, 3, 5, 5),
            torch.full((4, 5, 5), 3),
            "label 3, and the model returns 3",
        ),
        (torch.randn(4, 3, 5, 5), torch.full((4, 5, 5), 255), "every label is -100 or 255"),
        (torch.randn(4, 3, 5, 5), torch.full((4, 5, 5), -3), "row 0 has the label -3"),
        (torch.randn(4, 3), torch.zeros(4, 5, 5).long(), r"expected logits of \(B, C, H, W\)"),
        (torch.randn(4, 1, 5, 5), torch.full((4, 1, 5, 5), 9), "of task 'regression': --task"),
        (
            torch.randn(2, 3, 5, 5),
            F.one_hot(torch.arange(50).view(2, 5, 5) % 3).movedim(3, 1),
            r"one-hot along dimension 1: pass their classes, labels\.argmax\(1\)",
        ),
        (
            torch.randn(2, 3, 5, 5),
            F.one_hot(torch.arange(50).view(2, 5, 5) % 3).movedim(3, 1).float(),
            r"one-hot along dimension 1. For classes, pass labels\.argmax\(1\)",
        ),
        (torch.randn(4, 1, 5, 5), torch.ones(4, 1, 5, 5), "--task segmentation treats them as a"),
        (
            torch.randn(2, 2, 5, 5),
            [torch.zeros(5, 5).long(), torch.zeros(4, 4).long()],
            r"shape \(4, 4\), and row 0 has an array of shape \(5, 5\); bring",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(x, y, message):
    with pytest.raises(ConfigError, match=message):
        evaluate(Fixed(), (x, y))


def test_a_label_beyond_the_classes_is_not_sent_to_the_task_that_it_has():
    with pytest.raises(ConfigError, match="got the label 3, and the model returns 2") as told:
        TASKS["segmentation"].check(torch.zeros(1, 2, 4, 4), torch.full((1, 4, 4), 3))
    assert "are of task 'segmentation'" not in str(told.value)


def test_masks_of_0_and_255_are_reported(caplog):
    model, x = nn.Conv2d(1, 2, 1), torch.randn(4, 1, 8, 8)
    mask = (x[:, 0] > 0).long()
    evaluate(model, (x, mask))
    assert "do not count" not in caplog.text
    evaluate(model, (x, 255 * mask))
    assert "the labels are 0 and -100 or 255, and the latter do not count" in caplog.text
    assert "save the foreground as 1" in caplog.text
