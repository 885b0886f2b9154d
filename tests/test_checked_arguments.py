"""Arguments of public functions are checked against their annotations."""

import enum
import functools
from collections.abc import Callable, Collection
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch.nn import Dropout

from chop import MaseGraph, passes
from chop.config import convert, with_checked_arguments
from chop.data import (
    class_names,
    get_dataset_info,
    label_column,
    num_labels,
    strided_windows,
    with_vectors,
)
from chop.errors import ConfigError, GraphError, describe
from chop.formats import FP8, Integer, MXInt, QuantSpec, even_sample, format_string, initial_scales
from chop.ir.huggingface.quantized_cache import QuantizedCache
from chop.ir.huggingface.quantizer import ChopConfig
from chop.models import ToyNet, function_of_file, get_tokenizer, read_config
from chop.nn.packed import pack
from chop.nn.quantized import QuantLinear, leaf_operators
from chop.search import Choice, Constraint, Goal, Search, SearchSpace
from chop.train import (
    GradualPruning,
    calibration_batches,
    default_dataset,
    find_task,
    fit,
    get_trainer,
    read_rows,
    seed_everything,
    split_rows,
)

MXINT = QuantSpec.parse({"weight": MXInt(8)}, ("weight",))


def _net():
    return torch.nn.Linear(3, 2)


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
    "keyword of a class": (
        lambda: QuantizedCache(None, key="mxint4"),
        "^QuantizedCache: unknown argument 'key': did you mean 'keys'",
    ),
    "file": (lambda: function_of_file(None, "loss"), "name: expected str, got nothing"),
    "tokenizer": (lambda: get_tokenizer(None), "name: expected str"),
    "config": (lambda: read_config(None), "name: expected str, got nothing"),
    "splits": (lambda: num_labels({"train": [1]}), "got a list as 'train'"),
    "no splits": (lambda: class_names(None), "DatasetDict, got None"),
    "task": (
        lambda: read_rows((X, Y), "classification"),
        "task: expected Task or None, got .classification. ",
    ),
    "part": (lambda: find_task({"a": 1, "b": "regression"}), "task of 'a': expected a Task"),
    "true rows": (lambda: fit(_net(), (X, Y), batch_size=True), "batch_size: .*, got True"),
    "true seed": (lambda: fit(_net(), (X, Y), seed=True), "seed: .*, got True"),
    "device": (lambda: fit(_net(), (X, Y), device=X), "device: expected .* got a Tensor of shape"),
    "no model": (lambda: [*calibration_batches(None, (X, Y))], "expected an nn.Module, got None"),
    "every": (
        lambda: GradualPruning(MaseGraph(_net()), {"weight": {"sparsity": 0.5}}, every="2"),
        "every: expected int",
    ),
    "format": (lambda: format_string("8.4"), "number_format: expected NumberFormat, got '8.4'"),
    "choice": (lambda: FP8(granularity=np.zeros(3)), r"granularity: got a ndarray of shape \[3\]"),
    "path": (lambda: MaseGraph(_net()).export(np.zeros(3)), "fname: expected str or Path"),
    "home": (lambda: MaseGraph(_net()).export("~nobody-here/x"), "~nobody-here is no home folder"),
    "fixed": (lambda: MaseGraph(_net(), cf_args=[1]), "cf_args: expected a table of names"),
    "inputs": (lambda: MaseGraph(_net(), hf_input_names=3), "hf_input_names: expected a list"),
    "strict": (lambda: MaseGraph(_net(), strict=1), "strict: expected bool, got 1"),
    "leaves": (lambda: MaseGraph(_net(), custom_ops=[3]), r"custom_ops\[0\]: expected type or str"),
    "no example": (lambda: MaseGraph(_net(), dummy_in={}), "forward has no default for 'input'"),
    "tensor": (
        lambda: passes.add_common_metadata_analysis_pass(MaseGraph(_net()), {"dummy_in": X}),
        "dummy_in: expected a table of names and values or None, got a Tensor of shape",
    ),
    "direction": (lambda: Goal("p", "min"), "Goal.direction: got 'min': did you mean 'minimize'"),
    "table of options": (
        lambda: SearchSpace({"heads": [2, 4]}),
        r"got a table; pass \(Choice\('heads', \{'2': 2, '4': 4\}\),\)",
    ),
    "bound": (lambda: Constraint("p", "4"), "Constraint.bound: expected float, got '4'"),
    "cost": (lambda: Choice("a", {"1": 1}, cost=3), "choice 'a': cost: expected a table of names"),
    "no settings": (
        lambda: passes.init_metadata_analysis_pass(MaseGraph(_net()), {"a": 1}),
        "takes no settings, got 'a'",
    ),
    "other graph": (
        lambda: passes.summarize_quantization_analysis_pass(
            MaseGraph(torch.nn.Sequential(_net())),
            {"original_graph": MaseGraph(torch.nn.ModuleDict({"b": _net()})["b"])},
        ),
        "got one without any layer of this graph",
    ),
    "layer": (lambda: QuantLinear(_net(), {}), r"the arguments of nn.Linear.*from_float\(layer"),
    "no layer": (
        lambda: QuantLinear.from_float(3, {}),
        "from_float: expected an nn.Module, got int",
    ),
    "formats": (lambda: QuantLinear.from_float(_net(), 3), "from_float: expected a mapping, got 3"),
    "columns": (lambda: label_column(None), "columns: expected a list, got nothing"),
    "classes": (lambda: ToyNet((3, 4, 4), "3"), "num_classes: expected int, got '3'"),
    "metric": (
        lambda: get_trainer(_net(), None, None, evaluate_metric=3),
        "evaluate_metric: expected str or a list of str, got 3",
    ),
    "sample": (lambda: even_sample(X, "3"), "count: expected int, got '3'"),
    "learned": (lambda: initial_scales(Integer(8, 4), X), "learnable scales .*, got integer 8.4"),
    "leaves of": (lambda: leaf_operators(None), "leaf_operators: expected an nn.Module, got None"),
    "method": (lambda: ChopConfig("mxint4", quant_method="gptq"), "expected 'chop', got 'gptq'"),
    "packed": (
        lambda: fit(pack(QuantLinear.from_float(torch.nn.Linear(3, 2, False), MXINT)), (X, Y)),
        "nothing to train: packed layers store their weights as codes; .* MaseGraph.from_check",
    ),
    "rows": (lambda: with_vectors((X, Y), ("x",)), "DatasetDict, got tuple"),
}


SEARCHES = {
    "goals": ("p", r"a list of Goal or Constraint, got 'p' \(str\)\.$"),
    "space": (None, "space: expected a SearchSpace"),
    "sampler": (3, "sampler: expected a name or Optuna's BaseSampler, got 3"),
    "pruner": (X, "pruner: expected a name or Optuna's BasePruner, got a Tensor"),
    "storage": (3, "storage: expected str or None, got 3"),
    "out": (3, "out: expected str or Path"),
    "name": (None, "name: expected str"),
    "keep": ("2", "keep: expected int"),
    "seed": (None, "seed: expected int"),
    "start": ([1], r"start\[0\]: expected a table of names"),
    "catch": (ValueError, "catch: expected a list of a class of Exception"),
    "callbacks": (["f"], r"callbacks\[0\]: expected a function, got 'f'"),
    "save": (3, "save: expected a function or None, got 3"),
    "save of a class": (torch.nn.ReLU, "save: expected a function of a configuration and a folder"),
}


def _search(**given):
    space = SearchSpace((Choice("a", {"1": 1, "2": 2}),))
    settings = {"space": space, "measure": lambda config, report: {"p": 1.0}, "goals": Goal("p")}
    return Search(**{**settings, "storage": "memory", **given})


@pytest.mark.parametrize("name", SEARCHES)
def test_a_wrong_setting_of_a_search_is_one_sentence(name, tmp_path):
    value, message = SEARCHES[name]
    with pytest.raises(ConfigError, match=message):
        _search(**{name.partition(" ")[0]: value, **({"out": tmp_path} if "class" in name else {})})


def test_a_report_of_another_type_is_one_sentence():
    def measure(config, report):
        report(0, "0.5")

    with pytest.raises(ConfigError, match="report: value: expected float, got '0.5'"):
        _search(measure=measure).run(1, progress=False)


def test_a_search_takes_settings_of_every_kind():
    search = _search(catch=[ValueError], callbacks=[print], start=[{"a": "2"}], sampler="random")
    assert search.catch == (ValueError,)
    assert search.start == {search.space.key({"a": "2"}): {"a": "2"}}
    with pytest.raises(ConfigError, match="until: expected int, got '3'"):
        search.run("3")


class _Place:
    def __fspath__(self):
        return "a/b"


class _Names(enum.StrEnum):
    A = "a"


# Value, annotation and the value that a function receives.
ACCEPTED = [
    (np.int64(3), int, 3),
    (np.array(3), int | None, 3),
    (torch.tensor(3), int, 3),
    (torch.tensor(0.5), float, 0.5),
    (torch.tensor(0.5), torch.Tensor | float, torch.tensor(0.5)),
    (np.True_, bool, True),
    (np.str_("a"), Literal["a", "b"], "a"),
    (_Names.A, Literal["a"], "a"),
    (np.int64(4), Literal[4, 8], 4),
    (_Place(), str | Path, Path("a/b")),
    (range(3), tuple[int, ...], (0, 1, 2)),
    (MappingProxyType({"a": 1}), dict[str, int], {"a": 1}),
    ({"a": 1}.keys(), Collection[str], {"a"}),
    (functools.partial(print), Callable[[int], None], None),
    (dict, Callable[..., Any], dict),
]


@pytest.mark.parametrize(("value", "hint", "expected"), ACCEPTED)
def test_values_that_stand_for_others_are_accepted(value, hint, expected):
    found = convert(value, hint, "x")
    assert found is value if expected is None else found == expected
    assert expected is None or isinstance(found, type(expected) | type({}.keys()))


@pytest.mark.parametrize(
    ("value", "hint"), [(True, Literal[1]), (1, Literal[True]), (torch.tensor(True), int)]
)
def test_booleans_are_no_numbers(value, hint):
    with pytest.raises(ConfigError, match="x: "):
        convert(value, hint, "x")


def test_a_long_value_is_not_written_out_to_try_a_union():
    class Rows(list):
        def __repr__(self):
            raise AssertionError

    rows = Rows(range(100))
    assert convert(rows, str | Dropout | list, "x") is rows
    assert describe(Rows(range(1000))) == "a Rows of 1000"


def test_a_node_of_another_graph_is_not_erased():
    mg, other = MaseGraph(_net()), MaseGraph(_net())
    with pytest.raises(GraphError, match=r"'input_1' is of another graph; mg.node\('input_1'\)"):
        mg.erase(other.nodes[0])


def test_inputs_may_be_named_by_the_keys_of_an_example():
    mg = MaseGraph(_net(), hf_input_names={"input": X}.keys())
    assert mg.model(X).shape == (6, 2)


@pytest.mark.parametrize(("call", "message"), CALLS.values(), ids=CALLS)
def test_an_argument_of_another_type_is_one_sentence(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_other_annotations_are_left_to_python():
    @with_checked_arguments
    def scaled(x: "Missing", times: int = 2, *rest: int, **named: float) -> float:  # noqa: F821
        return x * times + sum(rest) + sum(named.values())

    assert scaled(1.5) == 3.0
    assert scaled(1, 3, 4, more=0.5) == 7.5
    with pytest.raises(
        ConfigError, match="scaled: expected the argument .x., which has no default"
    ):
        scaled()
    with pytest.raises(ConfigError, match="times: expected int, got 'a'"):
        scaled(1, "a")
