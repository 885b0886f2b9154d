"""Classes, numbers, tokens and text: each is trained and judged by what it is."""

import dataclasses
import math

import datasets
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as sklearn_metrics
from torch import nn
from transformers import BertConfig, BertForTokenClassification, GPT2Config, GPT2LMHeadModel

from chop import MaseGraph
from chop.base.notices import collected_assumptions
from chop.errors import ConfigError
from chop.train import TASKS, Metric, Task, evaluate, find_task, fit, read_rows
from chop.train import rows as row_module
from chop.train.calibration import calibration_batches
from chop.train.rows import rows_per_batch
from chop.train.tasks import CLASSIFICATION, infer_task
from tests.export.decoders import decoder


def numbers(outputs=1):
    x = torch.randn(60, 4)
    y = x @ torch.randn(4, outputs) + 0.3 * torch.randn(60, outputs)
    return {"x": x, "labels": y[:, 0] if outputs == 1 else y}


def texts(count=7):
    rows = [torch.randint(1, 50, (3 + i % 4,)) for i in range(count)]
    return [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in rows]


def gpt2():
    config = GPT2Config(
        n_layer=1, n_head=2, n_embd=16, vocab_size=50, n_positions=16, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


# --- regression ----------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 3])
def test_numbers_are_regression_with_the_usual_metrics(outputs):
    rows, model = numbers(outputs), nn.Linear(4, outputs)
    with torch.no_grad():
        told = model(rows["x"]).numpy().reshape(60, -1)
    labels = rows["labels"].numpy().reshape(60, -1)
    expected = {
        "r2": sklearn_metrics.r2_score(labels, told),
        "mse": sklearn_metrics.mean_squared_error(labels, told),
        "mae": sklearn_metrics.mean_absolute_error(labels, told),
        "pearson": np.mean(
            [np.corrcoef(a, b)[0, 1] for a, b in zip(labels.T, told.T, strict=True)]
        ),
    }
    for name, value in expected.items():
        assert evaluate(model, rows, metric=name, batch_size=7) == pytest.approx(value, abs=1e-6)
    assert evaluate(model, rows) == pytest.approx(expected["r2"], abs=1e-6)


def test_a_model_learns_numbers_by_their_mean_squared_error():
    rows, model = numbers(), nn.Linear(4, 1)
    with torch.no_grad():
        before = F.mse_loss(model(rows["x"])[:, 0], rows["labels"]).item()
    losses = fit(model, rows, epochs=1, lr=0.0, batch_size=60)
    assert losses == [pytest.approx(before)]
    fit(model, rows, epochs=60, lr=0.05)
    assert evaluate(model, rows) > 0.9


def test_the_loss_of_numbers_is_not_that_of_a_model_that_takes_them_for_several_classes():
    class OwnLoss(nn.Linear):
        def forward(self, x, labels=None):
            logits = super().forward(x)
            return {"logits": logits, "loss": None if labels is None else logits.sum() * 0 + 99.0}

    assert fit(OwnLoss(4, 3), numbers(3), lr=0.0)[0] < 90


# --- tokens --------------------------------------------------------------------------------------


def by_hand(model, rows):
    """exp of the mean surprise of every token but the first of each text."""
    told = []
    with torch.no_grad():
        for row in rows:
            ids = row["input_ids"]
            logits = model(input_ids=ids[None]).logits[0, :-1]
            told.append(F.cross_entropy(logits, ids[1:], reduction="none"))
    return torch.cat(told).double().mean().exp().item()


def test_a_language_model_is_judged_by_the_perplexity_of_the_next_token():
    model, rows = gpt2(), texts()
    expected = by_hand(model, rows)
    labeled = [{**row, "labels": row["input_ids"]} for row in rows]
    assert evaluate(model, labeled) == pytest.approx(expected, rel=1e-5)
    assert evaluate(model, labeled, batch_size=2) == pytest.approx(expected, rel=1e-5)
    assert evaluate(model, rows, task="causal-lm") == pytest.approx(expected, rel=1e-5)
    assert evaluate(model, labeled, metric="accuracy") < 0.3
    mg = MaseGraph(model, dummy_in=rows[3] | {k: v[None] for k, v in rows[3].items()})
    assert evaluate(mg.model, labeled) == pytest.approx(expected, rel=1e-5)


def test_batches_are_smaller_where_the_vocabulary_is_large(monkeypatch):
    model, given = gpt2(), texts()
    rows = read_rows(given, TASKS["causal-lm"])
    longest = max(len(row) for row in rows.labels)
    monkeypatch.setattr(row_module, "LOGIT_BYTES", 2 * longest * 4 * model.config.vocab_size)
    assert rows_per_batch(model, rows, TASKS["causal-lm"], 256) == 2
    assert rows_per_batch(model, rows, TASKS["classification"], 256) == 256
    assert rows_per_batch(nn.Linear(2, 2), rows, TASKS["causal-lm"], 7) == 7
    expected = by_hand(model, given)
    assert evaluate(model, rows, task="causal-lm") == pytest.approx(expected, rel=1e-5)
    sizes = [len(batch["input_ids"]) for batch in calibration_batches(model, rows)]
    assert max(sizes) == 2 and sum(sizes) == len(rows)


def test_a_language_model_trains_on_its_own_tokens():
    model, rows = gpt2(), texts()
    own = fit(model, rows, task="causal-lm", lr=0.0, batch_size=7)[0]
    assert own == pytest.approx(math.log(by_hand(model, rows)), rel=1e-4)
    before = evaluate(model, rows, task="causal-lm")
    fit(model, rows, task="causal-lm", epochs=20, lr=1e-2)
    assert evaluate(model, rows, task="causal-lm") < before / 2


def rolled(ids):
    labels = ids.roll(-1, 1)
    labels[:, -1] = -100
    return {"input_ids": ids, "labels": labels}


SHIFTED = {
    "cut": lambda ids: {"input_ids": ids[:, :-1], "labels": ids[:, 1:]},
    "rolled": rolled,
    "a pair": lambda ids: (ids[:, :-1], ids[:, 1:]),
    "of several lengths": lambda ids: [
        {"input_ids": ids[i, :end], "labels": ids[i, 1 : end + 1]}
        for i, end in enumerate((5, 9, 7))
    ],
}


@pytest.mark.parametrize("settings", [{}, {"task": "causal-lm"}])
@pytest.mark.parametrize("call", [fit, evaluate])
@pytest.mark.parametrize("kind", SHIFTED)
def test_labels_that_are_the_next_tokens_are_refused(kind, call, settings):
    ids = torch.arange(40).view(4, 10) % 13
    if kind == "a pair":  # of a model that may compare its outputs without a shift
        settings = {"task": "causal-lm"}
    with pytest.raises(ConfigError, match="shifts them itself: pass labels=input_ids"):
        call(gpt2(), SHIFTED[kind](ids), **settings)


def test_labels_that_are_not_the_next_tokens_are_not_refused():
    ids = torch.arange(40).view(4, 10) % 13
    prompts = ids.clone()
    prompts[:, :6] = -100
    last = torch.full_like(ids, -100)
    last[:, -1] = 1
    for labels in (ids, prompts, last):
        evaluate(gpt2(), {"input_ids": ids, "labels": labels}, task="causal-lm")
    evaluate(gpt2(), {"input_ids": ids.new_ones(3, 5), "labels": ids.new_ones(3, 5)})
    evaluate(gpt2(), SHIFTED["cut"](ids), task="token-classification")


def test_padding_is_no_label_of_a_text():
    ids, mask = torch.tensor([[5, 6, 0]]), torch.tensor([[1, 1, 0]])
    rows = read_rows({"input_ids": ids, "attention_mask": mask, "label": [1]}, TASKS["causal-lm"])
    assert rows.labels.tolist() == [[5, 6, -100]]
    assert rows.task.name == "causal-lm" and set(rows.columns) == {"input_ids", "attention_mask"}


def test_the_class_of_each_token_leaves_ignored_ones_out():
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, num_labels=3,
    )  # fmt: skip
    model, rows = BertForTokenClassification(config).eval(), texts()
    for row in rows:
        row["labels"] = torch.randint(0, 3, row["input_ids"].shape)
        row["labels"][0] = -100
    right = []
    with torch.no_grad():
        for row in rows:
            told = model(input_ids=row["input_ids"][None]).logits[0].argmax(-1)
            right.append((told == row["labels"])[1:])
    assert read_rows(rows).task.name == "token-classification"
    expected = torch.cat(right).double().mean().item()
    assert evaluate(model, rows, batch_size=3) == pytest.approx(expected)
    assert fit(model, rows, epochs=3, lr=1e-2)[-1] < math.log(3)


# --- anything else -------------------------------------------------------------------------------


def test_any_loss_and_metric():
    def near(predictions, labels):
        return ((predictions[:, 0] - labels).abs() < 1).double().mean().item()

    rows, model = numbers(), nn.Linear(4, 1)
    with torch.no_grad():
        expected = near(model(rows["x"]), rows["labels"])
    assert evaluate(model, rows, task=Task("near", Metric("near", near), F.l1_loss)) == expected
    l1 = Task("l1", Metric("near", near), lambda told, labels: F.l1_loss(told[:, 0], labels))
    with torch.no_grad():
        loss = F.l1_loss(model(rows["x"])[:, 0], rows["labels"]).item()
    assert fit(model, rows, task=l1, lr=0.0, batch_size=60) == [pytest.approx(loss)]

    def misses(predictions, labels):
        return float((predictions != labels).sum())

    two = nn.Linear(4, 2)
    classes = {"x": rows["x"], "labels": torch.arange(60) % 2}
    assert evaluate(two, classes, metric=misses) == pytest.approx(60 * (1 - evaluate(two, classes)))


def test_a_drop_is_absolute_for_scores_and_a_share_for_errors():
    accuracy, perplexity = CLASSIFICATION.metric, TASKS["causal-lm"].metric
    assert accuracy.within(0.89, 0.90, 0.01 + 1e-12) and not accuracy.within(0.88, 0.90, 0.01)
    assert perplexity.within(20.2, 20.0, 0.01) and not perplexity.within(20.3, 20.0, 0.01)
    assert not perplexity.within(math.nan, 20.0, 1.0) and not accuracy.within(math.nan, 0.1, 1.0)
    assert sorted([3.0, math.nan, 2.0], key=perplexity.key)[-1] == 2.0
    assert accuracy.gain(0.9, 0.8) > 0 > perplexity.gain(30.0, 20.0)
    assert (
        accuracy.format_value(0.5) == "50.00%" and perplexity.format_value(12.3456789) == "12.346"
    )


@pytest.mark.parametrize(
    "labels, task",
    [
        (torch.tensor([0, 1]), "classification"),
        (torch.tensor([0.5, 1.0]), "regression"),
        (torch.rand(2, 3), "regression"),
        (torch.tensor([[0, 1], [1, 0]]), "token-classification"),
        (torch.tensor([[5, 6], [7, -100]]), "causal-lm"),
    ],
)
def test_labels_tell_their_task(labels, task):
    ids = torch.tensor([[5, 6], [7, 8]])
    assert infer_task({"input_ids": ids}, labels) is TASKS[task]


def test_whole_floats_are_classes_where_every_class_occurs():
    x = torch.zeros(4, 2)
    assert read_rows((x, np.array([0.0, 1.0, 2.0, 1.0]))).labels.dtype == torch.int64
    assert read_rows((x, np.array([12.0, 40.0, 7.0, 7.0]))).labels.dtype == torch.float32
    assert read_rows((x, torch.tensor([[0], [1], [1], [0]]))).labels.tolist() == [0, 1, 1, 0]


def test_whole_floats_are_classes_where_the_task_says_so():
    rows = {"x": torch.randn(4, 4), "labels": torch.tensor([1.0, 1.0, 3.0, 1.0])}
    model, whole = nn.Linear(4, 4), {**rows, "labels": rows["labels"].long()}
    assert evaluate(model, rows, task="classification") == evaluate(model, whole)


CLASSES = {"x": torch.randn(6, 4), "labels": torch.tensor([0, 1, 2, 3, 4, 5])}
SOFT = {**CLASSES, "labels": torch.rand(6, 3).softmax(1).round(decimals=2)}
TEXTS = datasets.Dataset.from_dict({"x": [[1.0] * 4] * 2, "label": ["cat", "dog"]})
OVERFLOWN = {"x": torch.randn(150, 4), "labels": torch.arange(150).to(torch.int8)}
FEW = {**CLASSES, "labels": [0, 1, 2] * 2}


@pytest.mark.parametrize(
    "rows, settings, message",
    [
        (CLASSES, {}, "got the label 5, and the model returns 3 numbers, .* 0 to 2"),
        (numbers(), {"task": "classification"}, "the labels have fractions; .* 'regression'"),
        (CLASSES, {"task": "regression"}, "expected logits of the shape of the labels, got"),
        (
            {**CLASSES, "labels": [0, 1, 2] * 2},
            {"task": "causal-lm"},
            r"\(B, T, C\) and labels of \(B, T\), got \(6, 3\)",
        ),
        (CLASSES, {"task": "classificaton"}, "did you mean 'classification'"),
        (numbers(3), {"metric": "accuracy"}, "unknown metric 'accuracy': choose from: mae, mse"),
        ({"x": torch.zeros(2, 4), "labels": [0.5, math.nan]}, {}, "1 of 2 rows have no label"),
        (SOFT, {}, r"3 numbers a row that sum to 1, .*labels.argmax\(1\)\. --task regression"),
        (SOFT, {"task": "classification"}, r"the labels have fractions; pass .*argmax\(1\)"),
        ({**CLASSES, "labels": [10, 20, 30] * 2}, {}, "3 classes are numbered up to 30: .*unique"),
        (
            {**CLASSES, "labels": [[0, 1], [2], []] * 2},
            {},
            "numbers of classes. Pass 0",
        ),
        (TEXTS, {}, "label column 'label': expected numbers, got 'cat'; number the classes"),
        (OVERFLOWN, {}, "128 .*-128 to 127, as classes beyond 127 in int8 are: use int64"),
    ],
)
def test_labels_that_do_not_fit_are_one_sentence(rows, settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        evaluate(nn.Linear(4, 3), rows, **settings)
    assert "\n" not in str(caught.value)


def test_probabilities_are_numbers_if_the_task_says_so():
    assert math.isfinite(evaluate(nn.Linear(4, 3), SOFT, task="regression"))


def test_labels_of_one_logit_are_compared_with_the_classes_and_not_with_the_batch():
    rows = torch.randn(80, 4), torch.arange(80) % 2
    with pytest.raises(ConfigError, match=r"classes 0 to 0; .* of task 'binary'"):
        fit(nn.Linear(4, 1), rows)


def test_scores_at_each_position_of_a_row_have_a_way_out():
    rows = torch.randn(6, 5, 4), torch.arange(6) % 3
    with pytest.raises(ConfigError, match=r"scores at 5 positions .* output\[:, -1\]"):
        evaluate(nn.Linear(4, 3), rows)


def test_signs_that_are_read_as_numbers_are_an_assumption():
    with collected_assumptions() as found:
        evaluate(nn.Linear(4, 1), (torch.randn(6, 4), torch.tensor([-1.0, 1.0] * 3)))
    assert ["labels are -1 and 1" in each.text for each in found] == [True]


UNLABELED = {**CLASSES, "labels": [0, 1, -1, 2, -1, 0]}
REFUSED = "row 2 has the label -1, one of 2 negative .* Remove rows without a label"


@pytest.mark.parametrize("call", [evaluate, fit])
@pytest.mark.parametrize(
    "labels, message",
    [
        (UNLABELED["labels"], f"task 'classification': {REFUSED}"),
        ([-100] * 6, "every label is -100"),
        (torch.tensor([[0, 1], [2, -100], [1, 1], [0, 0], [0, -7], [-1, 0]]), "row 4 .* label -7"),
    ],
)
def test_labels_that_are_missing_are_refused_before_the_model_runs(call, labels, message):
    model = nn.Linear(4, 3)
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))
    with pytest.raises(ConfigError, match=message) as caught:
        call(model, {"x": CLASSES["x"], "labels": labels})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "rows",
    [
        {"input_ids": torch.ones(4, 1, dtype=torch.long)},
        {"input_ids": torch.ones(4, 3).long(), "attention_mask": torch.zeros(4, 3).long()},
    ],
)
def test_texts_without_a_token_to_predict_are_refused(rows):
    with pytest.raises(ConfigError, match="at least two tokens, .* one token, or an att"):
        evaluate(decoder("Llama"), rows, task="causal-lm")


def test_the_row_of_a_missing_label_is_told_of_texts_that_differ_in_length():
    rows = [{**row, "labels": torch.ones_like(row["input_ids"])} for row in texts()]
    rows[5]["labels"][-1] = -1
    with pytest.raises(ConfigError, match="row 5 has the label -1"):
        evaluate(gpt2(), rows)


def test_ignored_rows_count_neither_in_the_loss_nor_in_the_metric():
    model = nn.Linear(4, 3)
    labels = model(CLASSES["x"]).argmax(-1)
    labels[0], labels[2], labels[4] = (labels[0] + 1) % 3, -100, -100
    rows = {**CLASSES, "labels": labels}
    kept = rows["labels"] != -100
    left = {"x": rows["x"][kept], "labels": rows["labels"][kept]}
    assert evaluate(model, rows) == 0.75
    for metric in ("accuracy", "f1"):
        assert evaluate(model, rows, metric=metric) == evaluate(model, left, metric=metric)
    losses = fit(model, rows, lr=0.0, batch_size=6), fit(model, left, lr=0.0, batch_size=6)
    assert losses[0] == pytest.approx(losses[1])
    assert math.isfinite(fit(model, rows, batch_size=1)[0]) and model.weight.isfinite().all()


def test_a_loss_where_float_makes_no_error_is_told_as_it_is():
    mse, accuracy = TASKS["regression"].metrics["mse"], CLASSIFICATION.metric
    told = mse.format_loss(3e-5, 0.0)
    assert told == "3e-05 in absolute terms, as the float model's mse is 0"
    assert mse.format_loss(1.5, 1.0) == "50.00%"
    assert accuracy.format_loss(0.5, 0.75) == "25.00 percentage points"
    assert accuracy.format_drop(0.00001) == "0.001 percentage points"


def test_labels_beyond_a_models_own_loss_are_refused():
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, num_labels=2,
    )  # fmt: skip
    rows = [{**row, "labels": torch.full_like(row["input_ids"], 7)} for row in texts()]
    with pytest.raises(ConfigError, match="own loss rejects the labels: Target 7"):
        fit(BertForTokenClassification(config), rows)


def test_tasks_are_found_by_name_and_kept_as_they_are():
    assert find_task("regression") is TASKS["regression"]
    mine = dataclasses.replace(CLASSIFICATION, name="mine")
    assert find_task(mine) is mine
    assert mine.with_metric("f1").metric.name == "f1" and mine.metric.name == "accuracy"


def test_class_numbers_instead_of_logits_are_named():
    class Numbers(nn.Module):
        def forward(self, x):
            return x.argmax(1)

    with pytest.raises(ConfigError, match=r"class numbers, as argmax does\. Return the scores"):
        evaluate(Numbers(), (torch.eye(4), torch.arange(4)))


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("text-classification", "classification"),
        ("Sequence_Classification", "classification"),
        ("multiclass", "classification"),
        ("text-generation", "causal-lm"),
        ("image-segmentation", "segmentation"),
        ("multilabel-indicator", "multilabel"),
    ],
)
def test_names_of_other_libraries_name_the_task(name, own):
    for task in (name, f"first={name},second=regression"):
        with pytest.raises(ConfigError, match=f"'{name}': its name in chop is '{own}'"):
            find_task(task)
    assert own in TASKS
