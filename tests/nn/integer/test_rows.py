"""Integer forms in the operator table."""

import re

import pytest
import torch
from torch import nn

from chop.errors import ConfigError
from chop.formats import Integer, QuantSpec
from chop.ir.ops import OPS
from chop.nn.integer import Call, IntegerOperator, Table
from chop.nn.quantized import QuantCall
from tests.nn.integer import oracles as o
from tests.subcases import subcases

EIGHT = Integer(8, 5)
ROWS = [row for row in OPS.values() if row.integer is not None]
QUANTIZED = {
    "linear": (nn.Linear(8, 4), (3, 8)),
    "conv1d": (nn.Conv1d(4, 6, 3), (2, 4, 8)),
    "conv2d": (nn.Conv2d(4, 6, 3), (2, 4, 8, 8)),
    "relu": (nn.ReLU(), (3, 8)),
    "softmax": (nn.Softmax(-1), (3, 8)),
    "layer_norm": (nn.LayerNorm(8), (3, 8)),
    "rms_norm": (nn.RMSNorm(8), (3, 8)),
    "max_pool1d": (nn.MaxPool1d(2), (2, 4, 8)),
    "max_pool2d": (nn.MaxPool2d(2), (2, 4, 8, 8)),
    "avg_pool1d": (nn.AvgPool1d(3), (2, 4, 8)),
    "avg_pool2d": (nn.AvgPool2d(2), (2, 4, 8, 8)),
    "adaptive_avg_pool1d": (nn.AdaptiveAvgPool1d(3), (2, 4, 8)),
    "adaptive_avg_pool2d": (nn.AdaptiveAvgPool2d(3), (2, 4, 8, 8)),
}


@subcases("row", ROWS, ids=lambda row: row.name)
def test_an_integer_form_states_its_width(row):
    assert issubclass(row.integer, IntegerOperator)
    docs = [cls.__doc__ or "" for cls in row.integer.__mro__ if issubclass(cls, IntegerOperator)]
    assert any(re.search(r"\n\s*Width: ", doc) for doc in docs[:-1])


@subcases("name", QUANTIZED)
def test_the_integer_form_of_a_row_computes_its_quantized_module(name):
    module, shape = QUANTIZED[name]
    row = OPS[name]
    quantized = row.quantized.from_float(module.eval(), QuantSpec.uniform(EIGHT))
    operator = row.integer.from_quantized(quantized, [o.read(EIGHT)], o.EXACT, Call([shape]))
    x = o.randn(*shape, scale=2)
    found = operator.out.decode(operator(o.get_codes(x, EIGHT)))
    expected = quantized(x).detach()
    torch.testing.assert_close(found.float(), expected, rtol=1e-5, atol=1e-5)


def test_rows_without_a_module_or_with_a_reader_are_known():
    others = {row.name for row in ROWS if row.integer is not Table} - QUANTIZED.keys()
    norms = {"batch_norm1d", "batch_norm2d", "sync_batch_norm"}  # see tests/integer/test_norms.py
    readers = {"embedding", "add", "sub", "mul", "neg", "matmul", "bmm", "mean", "sum"}
    # Those of tests/hardware/design/test_orders.py, in whole models.
    readers |= {"abs", "amax", "group_norm", "interpolate", "pad", "pow", "prelu", "square"}
    assert others == norms | readers | {"conv_transpose2d"}


@pytest.mark.parametrize("name", ["linear", "conv2d", "layer_norm", "rms_norm"])
def test_functions_with_weights_as_arguments_are_refused(name):
    row = OPS[name]
    call = QuantCall(row.functions[0], row.arguments, QuantSpec.uniform(EIGHT))
    with pytest.raises(ConfigError, match="function call"):
        row.integer.from_quantized(call, [o.read(EIGHT)], o.SMALL)
