"""Points that a journal remembers, and those whose results it has in a wrong form."""

import json

import pytest

from chop.actions.evaluate.rows import get_result
from chop.actions.sweep.points import Point, measure_all
from chop.errors import CheckpointError
from chop.runs import Journal
from chop.train.tasks import CLASSIFICATION

WRONG = (
    *({}, {"accuracy": "0.5"}, {"accuracy": [0.5]}, {"accuracy": None}, {"low": 0.5}),
    {"accuracy": 0.5, "low": {}},
)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_result_of_a_wrong_form_is_measured_again(wrong, tmp_path):
    path = tmp_path / "points.jsonl"
    path.write_text(json.dumps({"settings": {"width": 4}, "result": wrong}) + "\n")
    measured = []

    def measure():
        measured.append(1)
        return {"accuracy": 0.75}

    point = Point("a", {"width": 4}, measure, names=("accuracy",))
    for _ in range(2):
        assert measure_all("title", [point], Journal(path)) == [{"accuracy": 0.75}]
    assert measured == [1]


@pytest.mark.parametrize("wrong", ["x", None, {}, 10**30, [1]])
def test_answers_that_no_evaluation_writes_are_one_sentence(wrong):
    kept = [{"labels": [1], "own": [1]}, {"labels": [0], "own": [wrong]}]
    with pytest.raises(CheckpointError, match=r"answers.jsonl .* remove it"):
        get_result(kept, CLASSIFICATION)
