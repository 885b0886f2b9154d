"""Messages have an end, however much they are about."""

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.base.notices import assume, collected_assumptions, forget_notices, warn_once
from chop.errors import (
    MOST_CHARACTERS,
    ChopError,
    ConfigError,
    bounded,
    did_you_mean,
    options_in_messages,
)
from chop.report.report import Note
from tests.subcases import subcases


def test_the_middle_of_a_long_message_is_left_out():
    text = "expected " + "x" * 200_000 + "; give fewer."
    found = bounded(text)
    assert len(found) <= MOST_CHARACTERS
    assert found.startswith("expected xx") and found.endswith("xx; give fewer.")
    assert "shortened" in found and bounded(found) == found


@subcases("error", [ChopError, *ChopError.__subclasses__()])
def test_every_error_is_bounded(error):
    assert len(str(error("y" * 10_000))) <= MOST_CHARACTERS
    assert str(error("short")) == "short"


def test_warnings_are_bounded():
    forget_notices()
    with pytest.warns(UserWarning) as told:
        warn_once("z" * 10_000)
    assert len(str(told[0].message)) <= MOST_CHARACTERS


@pytest.fixture(scope="module")
def large():
    layers = [layer for _ in range(80) for layer in (nn.Linear(2, 2), nn.Hardshrink())]
    return MaseGraph(nn.Sequential(*layers).eval(), dummy_in={"input": torch.ones(1, 2)})


@pytest.mark.parametrize(
    "call",
    [
        lambda mg: passes.quantize_transform_pass(mg, {"by": "name", "q" * 9999: {"config": {}}}),
        lambda mg: passes.quantize_transform_pass(
            mg, {"by": "type", "linear": {"config": {"name": "integer", "width": "9" * 99_999}}}
        ),
        lambda mg: passes.prune_transform_pass(mg, {"weight": {"sparsity": "8" * 99_999}}),
        lambda mg: passes.lower_to_integer_transform_pass(mg, {"batches": [torch.ones(1, 2)]}),
    ],
)
@pytest.mark.long
def test_errors_of_passes_on_a_large_graph_are_bounded(large, call):
    with pytest.raises(ConfigError) as raised:
        call(large)
    assert len(str(raised.value)) <= MOST_CHARACTERS


def test_choices_after_an_uncertain_suggestion_are_few_and_short():
    assert did_you_mean("bayes", ["gp", "cmaes"]).endswith("All choices: cmaes, gp.")
    assert did_you_mean("params", ["pearson", "bits", "bytes"]) == "did you mean 'bits' or 'bytes'?"
    assert did_you_mean("flops", ["loss", "bit_operations"]) == "did you mean 'bit_operations'?"
    for others in ([f"other{k}" for k in range(40)], ["a long choice " * 30], ["x" * 301]):
        assert did_you_mean("bayes", ["cmaes", *others]) == "did you mean 'cmaes'?"


@pytest.mark.parametrize(
    ("message", "in_python"),
    [
        (
            "train it (--train-epochs); --force continues.",
            "train it (train_epochs); force continues.",
        ),
        ("write it without one (--no-tokenizer).", "write it without one (tokenizer=False)."),
        (
            "use --seed 1. Run chop export RUN --to pt2.",
            "use seed 1. Run chop export RUN --to pt2.",
        ),
        ("pip install --upgrade gguf", "pip install --upgrade gguf"),
        ("run torchrun --nproc-per-node 2 prog.py.", "run torchrun --nproc-per-node 2 prog.py."),
        ("apt-get install --no-install-recommends x", "apt-get install --no-install-recommends x"),
        ("a line --- and a -- b", "a line --- and a -- b"),
    ],
)
def test_messages_name_settings_as_the_caller_writes_them(message, in_python):
    with options_in_messages(False):
        assert str(ConfigError(message)) == in_python
        assert Note(message).text == in_python
        with collected_assumptions() as assumed:
            assume(message)
        assert [each.text for each in assumed] == [in_python]
        with options_in_messages(True):
            raised = ConfigError(message)
    assert str(raised) == message
