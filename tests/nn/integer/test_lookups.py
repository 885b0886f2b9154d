"""Tables of functions, embeddings and constants."""

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from chop.errors import ConfigError
from chop.formats import Integer, MXInt, QuantSpec, ScaleInteger
from chop.nn import quantized as q
from chop.nn.integer import Constant, Edge, Grid, IntegerEmbedding, Table
from tests.nn.integer import oracles as o

EIGHT = Integer(8, 6)
KINDS = [q.QuantGELU, q.QuantSiLU, q.QuantTanh, q.QuantSigmoid, q.QuantSoftplus, q.QuantSELU]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None)
@given(o.integers(widest=12), o.integers())
def test_a_table_has_the_readers_code_for_every_input(kind, data_in, reader):
    module = kind(config=QuantSpec(data_in))
    edge, grid = o.read(data_in), Grid.of(reader)
    table = Table.of(module, edge, grid)
    codes = torch.arange(edge.low, edge.high + 1)
    expected = grid.codes(module(edge.decode(codes).float()))
    assert torch.equal(table(codes), expected)
    assert (table.out.low, table.out.high) == (expected.min(), expected.max())
    assert table.out.scalar_step == grid.step


def test_a_table_of_the_widest_inputs():
    table = Table.of(
        torch.tanh, Edge.of(2.0**-13, -(2**15), 2**15 - 1), Grid(2.0**-15, -(2**15), 0)
    )
    codes = torch.arange(-(2**15), 2**15)
    expected = (torch.tanh(codes * 2.0**-13) * 2**15).round().clamp(max=0).long()
    assert torch.equal(table(codes), expected)


def test_a_table_of_a_function_that_writes_in_place():
    table = Table.of(nn.SiLU(inplace=True), Edge.of(0.5, -8, 7), Grid(0.25, -128, 127))
    assert table(torch.tensor([[-8, 7]])).tolist() == [[0, 14]]


def test_wide_inputs_are_refused():
    with pytest.raises(ConfigError, match="exceed the 2\\^16 entries"):
        Table.of(torch.tanh, Edge.of(1.0, -1, 2**16 - 1), Grid(1.0, -1, 1))


@pytest.mark.parametrize("weight", [EIGHT, ScaleInteger(8), MXInt(8, block_size=8)], ids=str)
def test_an_embedding_looks_up_codes(weight):
    torch.manual_seed(0)
    module = q.QuantEmbedding(20, 16, config=QuantSpec(weight=weight))
    operator = IntegerEmbedding.from_quantized(module, [], o.SMALL)
    indices = torch.tensor([[0, 19], [3, 3]])
    assert torch.equal(operator.out.decode(operator(indices)).float(), module(indices))
    assert operator.out.high == operator.codes.max()


@settings(deadline=None)
@given(o.integers(), st.integers(0, 99))
def test_an_embedding_of_any_width_is_what_its_format_rounds_to(weight, seed):
    torch.manual_seed(seed)
    module = q.QuantEmbedding(5, 3, config=QuantSpec(weight=weight))
    operator = IntegerEmbedding.from_quantized(module, [], o.SMALL)
    found = operator(torch.arange(5))
    step = Fraction(operator.out.scalar_step)
    rounded = weight.round(module.weight.detach()).double().flatten().tolist()
    assert [step * code for code in found.flatten().tolist()] == [Fraction(v) for v in rounded]
    assert operator.out.low <= found.min() and found.max() <= operator.out.high


def test_embeddings_with_scales_of_rows_are_refused():
    spec = QuantSpec(weight=ScaleInteger(8, granularity="channel"))
    with pytest.raises(ConfigError, match="one scale for the whole table"):
        IntegerEmbedding.from_quantized(q.QuantEmbedding(20, 16, config=spec), [], o.SMALL)


@settings(deadline=None)
@given(o.integers(), st.integers(0, 9))
def test_a_constant_has_the_codes_of_what_reads_it(reader, seed):
    values = nn.Parameter(o.randn(1, 3, 4, seed=seed))
    constant = Constant.of(values, Grid.of(reader))
    assert torch.equal(constant.out.decode(constant()).float(), reader.round(values.detach()) + 0.0)
    assert constant.out.low == constant().min()


def test_functions_with_parameters_as_arguments_are_refused():
    module = q.QuantCall(F.embedding, {"input": None, "weight": "weight"}, QuantSpec(weight=EIGHT))
    with pytest.raises(ConfigError, match="is an argument of a function call"):
        IntegerEmbedding.from_quantized(module, [], o.SMALL)
