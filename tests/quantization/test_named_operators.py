"""Operators that settings name, and those of them that a model's results can depend on."""

from torch import nn

from chop.quantization.named_operators import relevant_operators, weighted_operators
from tests.experts import mixture, with_layers


def test_experts_are_relevant_where_a_model_has_some():
    names = weighted_operators()
    assert "expert_linear" in names
    assert relevant_operators(mixture("Mixtral"), names) == names
    assert relevant_operators(with_layers(mixture("Mixtral")), names) == names
    others = tuple(name for name in names if name != "expert_linear")
    assert relevant_operators(nn.Linear(2, 2), names) == others
    assert relevant_operators(nn.Linear(2, 2), ("relu", "linear")) == ("relu", "linear")
