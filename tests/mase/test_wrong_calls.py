"""Wrong arguments of MASE's tools, layers and searches: one sentence of chop each."""

from dataclasses import dataclass

import numpy as np
import optuna
import pytest
import torch
from torch import nn

import chop.tools as tools
from chop import MaseGraph, passes
from chop.base.files import atomic_file
from chop.dataset import MaseDataModule
from chop.distributed import ShardingPlan
from chop.errors import ChopError, ConfigError
from chop.formats import REGISTRY, Integer, NumberFormat, QuantSpec, Ternary, parse_format
from chop.hardware.check.project import read_project
from chop.hardware.integer_form import integer_form
from chop.models import get_model_info
from chop.nn.quantized import QuantLinear
from chop.nn.quantized.modules import LinearInteger
from chop.nn.quantizers import ternary_quantizer
from chop.passes.base import graph_pass
from chop.pipelines import Pipeline
from chop.search import Choice, Goal, Search, SearchSpace
from tests.subcases import subcases

INTEGER = {"name": "integer", "width": 8, "frac_width": 4}
CHOICES = (Choice("heads", {"2": 2, "4": 4}), Choice("size", {"32": 32}))
PLAIN = {key: value for key, value in INTEGER.items() if key != "name"}


def search(measure=lambda config, report: {"score": 1.0}, **settings):
    """Runs a search over two configurations."""
    rules = {name: settings.pop(name) for name in ("infeasible", "active") if name in settings}
    settings = {"sampler": "grid", "storage": "memory", **settings}
    found = Search(SearchSpace(CHOICES, **rules), measure, Goal("score"), **settings)
    return found.run(until=2, progress=False)


def quantize(config):
    """Quantizes a small graph."""
    return passes.quantize_transform_pass(MaseGraph(nn.Sequential(nn.Linear(4, 2))), config)


def nested_lists():
    """Calls a space with lists of options."""
    return Choice("heads", [2, 4])


WRONG = {
    "epochs": (
        lambda: tools.get_trainer(nn.Linear(4, 2), {}, num_train_epochs="3"),
        "num_train_epochs: expected float, got '3'",
    ),
    "batch": (
        lambda: tools.get_trainer(nn.Linear(4, 2), {}, train_batch_size=0),
        "train_batch_size: got 0, expected 1",
    ),
    "trainer's seed": (
        lambda: tools.get_trainer(nn.Linear(4, 2), {}, seed=-1),
        "seed: got -1, expected 0",
    ),
    "config file": (lambda: tools.load_config(None), "config file: expected a str or Path"),
    "class": (lambda: tools.load_model("w.pt", "pt", nn.Linear), "got the class Linear"),
    "path": (lambda: tools.deepsetattr(nn.Linear(2, 2), "wieght", None), "did you mean 'weight'"),
    "value": (lambda: tools.deepsetattr(nn.Linear(2, 2), "weight", 3), "cannot assign 'int'"),
    "tensor": (lambda: tools.to_numpy([1.0]), "x: expected Tensor, got"),
    "array": (lambda: tools.to_tensor([1.0]), "expected np.ndarray"),
    "device": (lambda: tools.to_tensor(np.ones(2), "gpu"), "device 'gpu' is not available"),
    "shapes": (lambda: tools.copy_weights(torch.ones(3), torch.ones(2)), r"shape \[3\] into \[2\]"),
    "logger": (lambda: tools.get_logger(3), "name of a logger: expected a str, got 3"),
    "level": (lambda: tools.set_logging_verbosity(None), "unknown logging level 'None'"),
    "rows of a batch": (lambda: MaseDataModule("toy", "8"), "batch_size: expected int, got '8'"),
    "loaders": (
        lambda: tools.InputGenerator(get_model_info("toy"), "toy", "cls", "train"),
        "data_module: expected a MaseDataModule",
    ),
    "dummy": (lambda: tools.get_hf_dummy_in("bert"), "model: expected a module, got 'bert'"),
    "file": (lambda: atomic_file(".").__enter__(), "is a folder: expected the name of a file"),
    "plan": (lambda: ShardingPlan(mesh=None), "mesh: expected the processes per axis"),
    "no name": (
        lambda: quantize({"linear": {"config": PLAIN}}),
        "'width' has no number format: expected the key 'name'",
    ),
    "result": (lambda: quantize({}) and None, "nothing to quantize"),
    "module": (
        lambda: passes.quantize_transform_pass(nn.Linear(2, 2), {}),
        r"got Linear; capture it: MaseGraph\(model\)",
    ),
    "pair": (
        lambda: passes.quantize_transform_pass((MaseGraph(nn.Sequential(nn.Linear(4, 2))), {}), {}),
        "got tuple; unpack what a pass returns",
    ),
    "in place": (
        lambda: passes.pack_transform_pass(MaseGraph(nn.Sequential(nn.Linear(4, 2))), inplace="no"),
        "inplace: expected bool, got 'no'",
    ),
    "two graphs": (
        lambda: passes.init_metadata_analysis_pass(
            MaseGraph(nn.Sequential(nn.Linear(4, 2))), graph=MaseGraph(nn.Linear(4, 2))
        ),
        "two names of one argument",
    ),
    "two inputs": (
        lambda: MaseGraph(nn.Sequential(nn.Linear(4, 2))).model(torch.ones(2, 4), torch.ones(2)),
        "captured with input, got 2 by position",
    ),
    "needed pass": (
        lambda: graph_pass(config=dict, requires="prune_transform_pass"),
        "requires: expected a list of names, got 'prune",
    ),
    "rows as batches": (
        lambda: passes.prune_transform_pass(
            MaseGraph(nn.Sequential(nn.Linear(4, 2))),
            {"weight": {"method": "wanda", "sparsity": 0.5}, "batches": torch.ones(2, 4)},
        ),
        r"expected a list of batches, got a tensor of shape \(2, 4\).* pass \[x\]",
    ),
    "one stage": (
        lambda: Pipeline("report_graph_analysis_pass"),
        r"list of passes, got 'report_graph_.* pass \[pass\]",
    ),
    "one stage with settings": (
        lambda: Pipeline(("prune_transform_pass", {"weight": {"sparsity": 0.5}})),
        r"expected a list of passes, .* or \[\(pass, settings\)\]",
    ),
    "stage without its pair": (
        lambda: Pipeline(["quantize_transform_pass", {"by": "type"}]),
        r"expected a pass, its name, or \(pass, settings\), got \{'by': 'type'\}",
    ),
    "stage of three": (
        lambda: Pipeline([("quantize_transform_pass", {}, True)]),
        r"expected a pass, its name, or \(pass, settings\), got .*True",
    ),
    "circuit of a module": (
        lambda: integer_form(nn.Linear(4, 2)),
        "mg: expected MaseGraph, got Linear",
    ),
    "folder": (lambda: read_project("nothing"), "'nothing' has no design.json"),
    "name of a number": (lambda: parse_format("int8"), "did you mean 'integer'"),
    "other layer": (
        lambda: QuantLinear.from_float(nn.Conv2d(1, 1, 1), QuantSpec()),
        "expected a Linear, got a Conv2d",
    ),
    "argument": (lambda: LinearInteger(4, 2, q_config={}), "unexpected keyword argument"),
    "config as bias": (
        lambda: LinearInteger(4, 2, INTEGER),
        r"LinearInteger: pass the formats by name, config=\{...\}",
    ),
    "config as bias of any format": (
        lambda: QuantLinear(4, 2, {"name": "mxint", "width": 4}),
        "QuantLinear: pass the formats by name",
    ),
    "size": (lambda: LinearInteger(-4, 2, config=INTEGER), "negative dimension"),
    "threshold": (lambda: ternary_quantizer(torch.ones(2), "8"), "threshold: expected float"),
    "text": (
        lambda: search(lambda config, report: {"score": config["heads"] * 2}),
        r"the text '\d\d' for 'score', expected a number; .* space.values",
    ),
    "several": (
        lambda: search(lambda config, report: {"score": torch.ones(3)}),
        r"a Tensor of shape \[3\] .* for 'score', expected a number",
    ),
    "step": (
        lambda: search(lambda config, report: report(-1, 0.5), pruner="median"),
        "report: step: got -1, expected 0",
    ),
    "callback": (lambda: search(callbacks=[lambda trial: None]), "callbacks: expected functions"),
    "options": (nested_lists, r"write Choice\('heads', \{'2': 2, '4': 4\}\)\.$"),
    "rule": (lambda: search(infeasible="heads > 2"), "infeasible: expected a function"),
    "reason": (lambda: search(infeasible=lambda values: 1), "expected the reason as a str"),
    "active": (lambda: search(active=lambda values: ["head"]), "did you mean 'heads'"),
    "number as text": (
        lambda: SearchSpace(CHOICES).values({"heads": 2, "size": "32"}),
        "unknown option 2: did you mean '2'",
    ),
    "trial": (lambda: SearchSpace(CHOICES).suggest(3), "suggest: expected a trial of Optuna"),
    "grid": (
        lambda: search(sampler=optuna.samplers.GridSampler({"heads": [2]})),
        "GridSampler stops studies itself; use sampler='grid'",
    ),
    "fixed": (
        lambda: search(
            sampler=optuna.samplers.PartialFixedSampler(
                {"heads": 2}, optuna.samplers.RandomSampler()
            )
        ),
        "PartialFixedSampler: .* texts of the options: {'heads': ",
    ),
    "keyword": (lambda: search(direction="maximize"), "^Search: unknown argument 'direction'"),
}


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@subcases("call, message", WRONG.values(), ids=list(WRONG))
def test_wrong_arguments_are_one_sentence(call, message):
    with pytest.raises(ChopError, match=message):
        call()


@pytest.mark.long  # imports Hugging Face's trainer
@subcases(
    "settings, message",
    [
        ({"tokenizer": 3}, "tokenizer: expected a name, a folder"),
        ({"lr_scheduler_type": "cosin"}, "get_trainer: cosin is not a valid"),
        ({"fp16": "yes"}, "fp16: expected bool, got 'yes'"),
        ({"batch_size": 8}, "did you mean 'eval_batch_size'"),
    ],
)
def test_wrong_arguments_of_the_trainer(settings, message):
    from datasets import Dataset, DatasetDict

    rows = Dataset.from_dict({"x": [[0.0] * 4] * 4, "labels": [0, 1] * 2})
    with pytest.raises(ConfigError, match=message):
        tools.get_trainer(nn.Linear(4, 2), DatasetDict(train=rows, test=rows), **settings)


def test_a_measure_cannot_change_the_recorded_configuration():
    def measure(config, report):
        config["heads"] = "9"
        return {"score": torch.tensor(1.0, requires_grad=True)}

    found = search(measure)
    assert {trial.config["heads"] for trial in found.trials} == {"2", "4"}


def test_a_rule_may_return_a_bool_and_optuna_may_prune():
    def measure(config, report):
        raise optuna.TrialPruned

    found = search(measure, infeasible=lambda values: values["heads"] == 2)
    assert found.counts["pruned"] == 1 and set(found.counts) == {"infeasible", "pruned"}


@pytest.mark.parametrize("given", [Integer(8, 4), "8.4"])
def test_a_rule_may_name_one_format_for_all_operands(given):
    mg, _ = quantize({"linear": {"config": given}, "default": None})
    (layer,) = (x for x in mg.modules.values() if isinstance(x, QuantLinear))
    assert layer.spec == QuantSpec.uniform(Integer(8, 4))


def test_a_single_format_is_meant_for_all_operands():
    layer = QuantLinear.from_float(nn.Linear(4, 2), Integer(8, 4))
    assert layer.spec == QuantSpec.uniform(Integer(8, 4))
    assert torch.equal(
        ternary_quantizer(torch.tensor([1.0, 3.0]), 2),
        Ternary(threshold=2.0)(torch.tensor([1.0, 3.0])),
    )


def test_a_wrong_format_class_does_not_break_the_others():
    try:

        class Bare(NumberFormat):
            name = "bare"

        assert LinearInteger(4, 2, config=INTEGER).spec.weight == Integer(8, 4)
        with pytest.raises(ConfigError, match="expected a frozen dataclass"):
            parse_format("bare")
    finally:
        REGISTRY.pop("bare", None)
    with pytest.raises(ConfigError, match="expected a name of letters.*got 3"):

        @dataclass(frozen=True)
        class Three(NumberFormat):
            name = 3
