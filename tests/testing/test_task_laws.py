"""Laws of tasks: chop's own obey, and a broken one is named."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from chop.testing import check_task
from chop.train import TASKS

ANSWERS, LABELS = 4 * torch.eye(3) - 2, torch.arange(3)


@pytest.mark.parametrize(
    ("name", "answers", "labels"),
    [
        ("classification", ANSWERS, LABELS),
        ("regression", torch.tensor([0.1, 2.0, -3.0]), torch.tensor([0.0, 2.0, -3.0])),
        ("binary", torch.tensor([[4.0], [-4.0], [-4.0]]), torch.tensor([1, 0, 0])),
        ("multilabel", ANSWERS, torch.eye(3)),
    ],
)
def test_tasks_of_chop_obey(name, answers, labels):
    check_task(name, answers, labels)


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({"loss": lambda a, b: 1 / 0}, "the loss is a scalar.*: ZeroDivisionError: division"),
        ({"loss": lambda a, b: torch.tensor(0.0)}, "the loss is a scalar.*: RuntimeError"),
        ({"compare": lambda answers, labels: (answers[:1], labels)}, "labels fit the answers"),
        ({"loss": lambda a, b: F.cross_entropy(a, b, reduction="none")}, "the loss is a scalar"),
        ({"loss": lambda a, b: -F.cross_entropy(a, b)}, "right answers have the smaller loss"),
        (None, "right answers score better"),
    ],
)
def test_a_task_that_breaks_a_law_is_named(changes, law):
    own = dataclasses.replace(TASKS["classification"], name="odd")
    if changes is None:
        changes = {"metric": dataclasses.replace(own.metric, higher_is_better=False)}
    TASKS["odd"] = dataclasses.replace(own, **changes)
    try:
        with pytest.raises(AssertionError, match=f"odd breaks the law '{law}"):
            check_task("odd", ANSWERS, LABELS)
    finally:
        del TASKS["odd"]
