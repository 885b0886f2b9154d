"""Conformance tests of `chop.testing`: they pass what is right, and name the law that is broken."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.formats import REGISTRY, Integer, NumberFormat
from chop.passes import PASSES, graph_pass
from chop.passes.base import NoConfig
from chop.search.registry import SAMPLERS
from chop.search.samplers import SensitivitySampler
from chop.testing import check_format, check_pass, check_sampler

INPUTS = {"input": torch.randn(2, 4, generator=torch.Generator().manual_seed(0))}


@pytest.fixture
def mg():
    torch.manual_seed(0)
    return MaseGraph(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), dummy_in=INPUTS)


@pytest.fixture(autouse=True)
def registries():
    before = [(registry, set(registry)) for registry in (REGISTRY, PASSES, SAMPLERS)]
    yield
    for registry, names in before:
        for name in set(registry) - names:
            del registry[name]


def test_a_right_format_passes():
    check_format(Integer, [Integer(8, 4), Integer(4, 2)])


def test_examples_are_of_the_format():
    with pytest.raises(AssertionError, match="expected examples of this class"):
        check_format(Integer, [])


@pytest.mark.parametrize(
    ("rounded", "law"),
    [
        (
            lambda x: x.round() / 2,
            r"rounding is idempotent.: round.round.x..: got \S+, expected \S+, for ",
        ),
        (lambda x: x.round().abs(), "rounding is monotone"),
        (lambda x: x.round().clamp(-8, 7), "rounding mirrors signs"),
    ],
)
def test_a_wrong_rounding_is_named(rounded, law):
    @dataclass(frozen=True)
    class Wrong(NumberFormat):
        name: ClassVar[str] = "wrong"

        def round(self, x):
            return rounded(x)

        def bits(self, shape=None):
            return 9.0

    with pytest.raises(AssertionError, match=f"wrong.* breaks the law .{law}"):
        check_format(Wrong, [Wrong()])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("quantize_transform_pass", {"by": "type", "linear": {"config": {"name": "mxint"}}}),
        ("prune_transform_pass", {"weight": {"sparsity": 0.5}, "activation": {"sparsity": 0.0}}),
        ("add_common_metadata_analysis_pass", {}),
        ("report_node_type_analysis_pass", {}),
    ],
)
def test_passes_of_chop_obey(name, settings, mg):
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    check_pass(name, mg, INPUTS, settings)


def test_a_pass_that_changes_the_given_graph_is_named(mg):
    first = mg.modules["0"]

    @graph_pass(config=NoConfig)
    def shift_bias_transform_pass(graph, config):
        """Changes a bias of the graph that it is called on."""
        with torch.no_grad():
            first.bias += 1
        return {}

    with pytest.raises(AssertionError, match="law 'the given graph stays .* parameters or buffers"):
        check_pass("shift_bias_transform_pass", mg, INPUTS)


@pytest.mark.parametrize(
    ("law", "change"),
    [
        ("an analysis changes no output", lambda mg: mg.model.get_parameter("0.bias").data.add_(1)),
        ("it returns a graph and findings': ZeroDivisionError", lambda mg: 1 / 0),
    ],
)
def test_an_analysis_that_breaks_a_law_is_named(law, change, mg):
    @graph_pass(config=NoConfig)
    def breaking_analysis_pass(mg, config):
        change(mg)
        return {}

    with pytest.raises(AssertionError, match=f"breaking_analysis_pass breaks the law '{law}"):
        check_pass("breaking_analysis_pass", mg, INPUTS)


def test_a_pass_that_takes_unknown_keys_is_named(mg):
    @graph_pass(config=dict)
    def lax_analysis_pass(graph, config):
        """Takes any settings."""
        return {}

    with pytest.raises(AssertionError, match="law 'an unknown key is refused'"):
        check_pass("lax_analysis_pass", mg, INPUTS)


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        (passes.quantize_transform_pass, INPUTS, "expected the name of a pass, got <function"),
        ("count_analysis_pass", {"x": 1}, "law 'the graph takes the inputs': GuardError"),
    ],
)
def test_a_wrong_call_of_the_check_does_not_accuse_the_pass(name, inputs, message, mg):
    @graph_pass(config=NoConfig)
    def count_analysis_pass(graph, config):
        return {}

    try:
        with pytest.raises(AssertionError, match=message):
            check_pass(name, mg, inputs)
    finally:
        del PASSES["count_analysis_pass"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["random", "grid", "sensitivity", "tpe", "nsga2"])
def test_samplers_of_chop_obey(name):
    check_sampler(name)


def test_a_sampler_with_a_memory_of_its_own_is_named():
    calls = []

    class Remembering(SensitivitySampler):
        def __init__(self, space, seed):
            calls.append(seed)
            super().__init__(space, len(calls))

    SAMPLERS["remembering"] = Remembering
    with pytest.raises(
        AssertionError, match="remembering breaks the law 'a seed gives one search'"
    ):
        check_sampler("remembering")
