"""Evaluation on cached batches gives what the plain loop gives."""

import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset, DatasetDict
from torch import nn

from chop.errors import ConfigError
from chop.kernels.matmul_precision import allows_bfloat16, matmul_precision
from chop.train import Rows, evaluate, fit, get_trainer
from chop.train.evaluator import Evaluator, kl_divergence
from tests.workloads import graph, rows


class Reader(nn.Module):
    """Classifies texts by their tokens, padding left out."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 3)
        self.shapes = []

    def forward(self, input_ids, attention_mask):
        self.shapes.append(tuple(input_ids.shape))
        return (self.table(input_ids) * attention_mask[..., None]).sum(1)


class Watched(nn.Module):
    """Notes whether products may be made in bfloat16 while it runs."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.allowed = []

    def forward(self, x):
        self.allowed.append(allows_bfloat16())
        return self.fc(x)


def texts(count=37):
    lengths = torch.randint(1, 40, (count,)).tolist()
    ids = [torch.randint(0, 20, (n,)) for n in lengths]
    ones = [torch.ones(n, dtype=torch.long) for n in lengths]
    return Rows({"input_ids": ids, "attention_mask": ones}, torch.randint(0, 3, (count,)))


def test_scores_are_those_of_the_loop():
    model, test = graph().model, rows()[1]
    model.train()
    evaluator = Evaluator(model, test, batch_size=33)
    scores = evaluator.scores(evaluator.logits())
    assert scores["accuracy"] == evaluate(model, test)
    logits = evaluator.logits()
    assert logits.shape == (len(test), 5) and len(evaluator) == len(test)
    with torch.no_grad():
        expected = model.eval()(test.columns["x"])
    torch.testing.assert_close(logits.clone(), expected)
    assert scores["loss"] == pytest.approx(F.cross_entropy(expected, test.labels).item(), rel=1e-5)
    assert scores == evaluator.scores(evaluator.logits())


def test_texts_of_like_length_share_batches_that_are_made_once(monkeypatch):
    model, table = Reader(), texts()
    evaluator = Evaluator(model, table, batch_size=8)
    monkeypatch.setattr(Rows, "batches", None)
    first, again = evaluator.scores(evaluator.logits()), evaluator.scores(evaluator.logits())
    assert first == again and len(model.shapes) == 10
    padded = sum(b * t for b, t in model.shapes[:5])
    lengths = sorted(len(x) for x in table.columns["input_ids"])
    assert padded == sum(
        len(part) * part[-1] for part in (lengths[i : i + 8] for i in range(0, 37, 8))
    )
    one_by_one = [
        model(ids[None], torch.ones_like(ids)[None]).argmax(-1).item()
        for ids in table.columns["input_ids"]
    ]
    right = sum(int(p == y) for p, y in zip(one_by_one, table.labels.tolist(), strict=True))
    assert first["accuracy"] == right / 37


@pytest.mark.parametrize(("length", "rows_of_a_batch"), [(10, 64), (256, 16), (9000, 1)])
def test_long_texts_come_in_small_batches(length, rows_of_a_batch):
    ids = [torch.zeros(length, dtype=torch.long)] * 70
    table = Rows({"input_ids": ids, "attention_mask": ids}, torch.zeros(70, dtype=torch.long))
    batches = Evaluator(Reader(), table).batches
    assert len(batches[0][1]) == rows_of_a_batch and sum(len(y) for _, y in batches) == 70


def test_modes_come_back_after_an_error_and_progress_is_told():
    model = nn.Sequential(nn.Linear(16, 5), nn.Dropout(0.5))
    model[1].eval()
    evaluator = Evaluator(model, rows()[1], batch_size=100)
    seen = []
    evaluator.logits(lambda answers: seen.append(evaluator.scores(torch.cat(answers))["accuracy"]))
    assert len(seen) == 4 and seen[-1] == evaluator.scores(evaluator.logits())["accuracy"]

    def stop(answers):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        evaluator.logits(stop)
    assert model[0].training and not model[1].training
    with pytest.raises(ConfigError, match="batch_size: expected a whole number, 1 or more"):
        Evaluator(model, rows()[1], batch_size=0)


def test_divergence():
    p, q = torch.randn(50, 7), torch.randn(50, 7)
    expected = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=p.double()),
        torch.distributions.Categorical(logits=q.double()),
    ).mean()
    assert kl_divergence(p, q) == pytest.approx(expected.item())
    assert kl_divergence(p, p + 3) == pytest.approx(0, abs=1e-12)
    assert kl_divergence(p, torch.full_like(p, torch.nan)) == float("inf")
    assert kl_divergence(p, torch.full_like(p, torch.inf)) == float("inf")


def test_answers_that_are_no_numbers_are_as_bad_as_can_be():
    model = nn.Linear(16, 5)
    nn.init.constant_(model.weight, float("nan"))
    evaluator = Evaluator(model, rows()[1].take(torch.arange(6)))
    assert evaluator.scores(evaluator.logits())["loss"] == float("inf")
    assert kl_divergence(torch.zeros(6, 5), evaluator.logits()) == float("inf")


@pytest.mark.parametrize("setting", ["highest", "high", "medium"])
def test_what_is_judged_is_multiplied_in_float32(setting):
    table = Rows({"x": torch.randn(9, 3)}, torch.randint(0, 2, (9,)))
    splits = DatasetDict({"train": _dataset(table), "test": _dataset(table)})
    ways = {
        "evaluate": lambda model: evaluate(model, table),
        "evaluator": lambda model: Evaluator(model, table).logits(),
        "trainer": lambda model: get_trainer(model, splits, disable_tqdm=True).evaluate(),
    }
    for way in ways.values():
        model = Watched()
        with matmul_precision(setting):
            way(model)
            assert allows_bfloat16() == (setting == "medium")
            assert model.allowed and not any(model.allowed)
            fit(model, table)
            assert model.allowed[-1] == (setting == "medium")


def _dataset(table):
    return Dataset.from_dict({"x": table.columns["x"].tolist(), "label": table.labels.tolist()})
