"""Mistakes in operators of one's own, each with a sentence that names it."""

import pytest
from torch import nn, randn

from chop.errors import ConfigError
from chop.ir.ops import OPS, Operator, register
from chop.nn.quantized import QuantizedOperator
from chop.testing import check_operator


class Same(nn.Module):
    """Identity."""

    def forward(self, input):
        return input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Same, "expected a row of the operator table, an Operator, got the class"),
        (lambda: Operator("same", "modul", (Same,)), "no mase_type 'modul': did you mean 'modul"),
        (
            lambda: Operator("same", "module", Same),
            "'same': expected a tuple of calls, got the",
        ),
        (lambda: Operator("same", "module", methods="tanh"), "a tuple of calls, got 'tanh'"),
    ],
)
def test_a_wrong_row_is_not_added(make, message):
    with pytest.raises(ConfigError, match=message):
        register(make())
    assert "same" not in OPS


def test_operands_are_those_that_configs_have():
    with pytest.raises(ConfigError, match="QuantSame.operands: .* weight, bias, got alpha, slope"):

        class QuantSame(QuantizedOperator, Same):
            """Has formats that no config can name."""

            operands = ("data_in", "slope", "alpha")


def test_the_check_takes_a_row():
    with pytest.raises(AssertionError, match=r"expected a row, such as OPS\['linear'\], got 'lin"):
        check_operator("linear", (nn.Linear(4, 2), randn(3, 4)))
