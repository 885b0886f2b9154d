"""Mistakes in passes of one's own."""

import pytest
from torch import nn, ones

from chop import MaseGraph
from chop.errors import ConfigError
from chop.passes.base import PASSES, NoConfig, graph_pass


@pytest.fixture(autouse=True)
def _registry():
    before = set(PASSES)
    yield
    for name in set(PASSES) - before:
        del PASSES[name]


def count_layers_analysis_pass(mg, config):
    return {"layers": len(mg.modules)}


@pytest.mark.parametrize("config", [count_layers_analysis_pass, NoConfig(), "settings", None])
def test_settings_are_a_class_or_a_function(config):
    """The first one is `@graph_pass` without a call."""
    with pytest.raises(ConfigError, match=r"expected @graph_pass\(config=SomeDataclass\) above"):
        graph_pass(config)


def test_a_name_says_what_the_pass_does():
    def count_layers(mg, config):
        return {}

    with pytest.raises(ConfigError, match="'count_layers': expected a name that ends in _analysis"):
        graph_pass(NoConfig)(count_layers)


def test_a_misspelled_requirement_is_not_a_pass_to_run():
    run = graph_pass(NoConfig, requires=["quantise_transform_pass"])(count_layers_analysis_pass)
    with pytest.raises(ConfigError, match="did you mean 'quantize_transform_pass'"):
        run(MaseGraph(nn.Linear(4, 2), dummy_in={"input": ones(1, 4)}))


@pytest.mark.parametrize("info", [None, [1], ("graph", {})])
def test_results_are_a_dictionary(info):
    def find_nothing_analysis_pass(mg, config):
        return info

    run = graph_pass(NoConfig)(find_nothing_analysis_pass)
    with pytest.raises(ConfigError, match="find_nothing_analysis_pass: .* returns a dictionary"):
        run(MaseGraph(nn.Linear(4, 2), dummy_in={"input": ones(1, 4)}))
