"""Arguments of public functions are checked against their annotations."""

import pytest
import torch

from chop.config import with_checked_arguments
from chop.data import class_names, get_dataset_info, num_labels, strided_windows, with_vectors
from chop.errors import ConfigError
from chop.models import function_of_file, get_tokenizer, read_config
from chop.train import calibration_batches, default_dataset, fit, seed_everything, split_rows

X, Y = torch.randn(6, 3), torch.arange(6) % 2
CALLS = {
    "share": (lambda: split_rows((X, Y), "0.2"), "share: expected float, got '0.2'"),
    "seed": (lambda: split_rows((X, Y), seed="a"), "seed: expected int, got 'a'"),
    "large seed": (lambda: seed_everything(2**40), "seed: got 1099511627776, expected 0 to"),
    "seed of fit": (lambda: fit(torch.nn.Linear(3, 2), (X, Y), seed=2**70), "seed: expected a"),
    "schedule": (lambda: fit(torch.nn.Linear(3, 2), (X, Y), schedule=["cosine"]), "schedule"),
    "batch": (
        lambda: [*calibration_batches(torch.nn.Linear(3, 2), (X, Y), batch_size=0)],
        "batch_size: got 0, expected 1",
    ),
    "name": (lambda: default_dataset(None), "name: expected str, got nothing"),
    "info": (lambda: get_dataset_info(3), "name: expected str, got 3"),
    "window": (lambda: [*strided_windows([1, 2], "2", 1)], "length: expected int, got '2'"),
    "keyword": (lambda: split_rows((X, Y), sead=1), "split_rows: unknown argument 'sead': did you"),
    "file": (lambda: function_of_file(None, "loss"), "name: expected str, got nothing"),
    "tokenizer": (lambda: get_tokenizer(None), "name: expected str"),
    "config": (lambda: read_config(None), "name: expected str, got nothing"),
    "splits": (lambda: num_labels({"train": [1]}), "got a list as 'train'"),
    "no splits": (lambda: class_names(None), "DatasetDict, got None"),
    "rows": (lambda: with_vectors((X, Y), ("x",)), "DatasetDict, got tuple"),
}


@pytest.mark.parametrize(("call", "message"), CALLS.values(), ids=CALLS)
def test_an_argument_of_another_type_is_one_sentence(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_other_annotations_and_missing_arguments_are_left_to_python():
    @with_checked_arguments
    def scaled(x: "Missing", times: int = 2, *rest: int, **named: float) -> float:  # noqa: F821
        return x * times + sum(rest) + sum(named.values())

    assert scaled(1.5) == 3.0
    assert scaled(1, 3, 4, more=0.5) == 7.5
    with pytest.raises(TypeError, match="missing 1 required"):
        scaled()
    with pytest.raises(ConfigError, match="times: expected int, got 'a'"):
        scaled(1, "a")
