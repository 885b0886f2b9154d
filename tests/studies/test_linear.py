import torch
from torch import nn

from chop.studies.linear import Case, bench_linear, build_variants, naive_linear_relu
from chop.studies.settings import BenchLinearConfig
from tests.studies.test_softmax import Counting


def test_all_ways_agree_with_torch():
    """Also where oneDNN computes the fused one: from 2^20 products on."""
    layer, x = nn.Linear(64, 256).eval(), torch.randn(96, 64)
    expected = torch.relu(x.double() @ layer.weight.double().T + layer.bias.double())
    with torch.inference_mode():
        for variant in build_variants(layer, x):
            result = (variant.call or variant.prepare())()
            torch.testing.assert_close(result.double(), expected, atol=1e-5, rtol=0)
    assert "activation" not in vars(layer)


def test_counted_bytes_are_those_that_the_operations_read_and_write():
    m, k, n = 3, 5, 7
    given = torch.randn(m, k), torch.randn(n, k), torch.randn(n)
    with Counting() as counted:
        naive_linear_relu(*given)
    case = Case(m, k, n)
    assert 4 * (counted.read + counted.written) == case.moved_bytes("naive")
    saved = case.moved_bytes("naive") - case.moved_bytes("fused")
    assert (saved, case.moved_bytes("naive") - case.moved_bytes("linear, relu")) == (
        4 * 4 * m * n,
        4 * 2 * m * n,
    )


def test_tables_are_for_people():
    found = bench_linear(BenchLinearConfig(quick=True))
    (title, ways), (short_runs_title, course) = found.tables().items()
    assert "Linear and ReLU" in title and "interleaved" in title
    assert [row["way"] for row in ways] == ["naive", "linear, relu", "fused"]
    assert ways[0]["times as fast"] == "1" and all(row.error < 1e-5 for row in found.rows)
    assert [row["iterations"] for row in course[::4]] == [5, 50, 200]
    assert "Why it misleads" in short_runs_title and course[0]["case"] == "32x64x128"
