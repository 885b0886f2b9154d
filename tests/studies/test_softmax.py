import importlib.util

import pytest
import torch

from chop.bench.subprocess import in_subprocess
from chop.studies.attention_implementations import DTYPES
from chop.studies.softmax import (
    COPY,
    IN_PLACE,
    NAIVE,
    TORCH,
    BenchSoftmaxConfig,
    Case,
    bench_softmax,
    interpreted_errors,
    naive_softmax,
)

HAS_TRITON = importlib.util.find_spec("triton") is not None


class Counting(torch.utils._python_dispatch.TorchDispatchMode):
    """Numbers that operations read and write; a number that is read by several rows counts once."""

    def __init__(self):
        super().__init__()
        self.read = self.written = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.is_view:
            return out
        outputs = [y for y in (out if isinstance(out, tuple) else (out,)) if y.is_floating_point()]
        self.read += sum(x.numel() for x in args if isinstance(x, torch.Tensor))
        self.written += sum(y.numel() for y in outputs)
        return out


def test_the_naive_form_moves_what_the_formula_counts():
    m, n = 30, 50
    x = torch.randn(m, n)
    with Counting() as counted:
        y = naive_softmax(x)
    assert (counted.read, counted.written) == (5 * m * n + 2 * m, 3 * m * n + 2 * m)
    assert 4 * (counted.read + counted.written) == Case(m, n, "float32").moved_bytes(NAIVE)
    torch.testing.assert_close(y, x.softmax(-1))
    assert Case(m, n, "float16").moved_bytes(TORCH) == 2 * 2 * m * n


@pytest.mark.long
def test_rows_say_what_was_measured():
    found = bench_softmax(BenchSoftmaxConfig(quick=True))
    assert list(found.comparisons) == ["64x100-float32"]
    rows = {row.measured.name: row for row in found.rows}
    assert {NAIVE, TORCH, IN_PLACE, COPY} <= rows.keys()
    assert rows[COPY].share_of_copy == 1 and rows[COPY].error is None
    assert all(row.share_of_copy > 0 for row in rows.values())
    assert all(0 < row.error < 1e-6 for name, row in rows.items() if name != COPY)
    needed = 2 * 64 * 100 * 4
    seconds = found.comparisons["64x100-float32"].decisive_seconds(TORCH)
    assert rows[TORCH].bytes_per_second == pytest.approx(needed / seconds)
    assert len(found.interpreted) == (3 if HAS_TRITON else 0)
    assert len(found.tables()) == 1 + HAS_TRITON


@pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")
@pytest.mark.long
def test_the_kernel_is_as_precise_as_torch_in_the_interpreter():
    rows = in_subprocess(interpreted_errors, ["6x300", "1x20000"], TRITON_INTERPRET="1")
    assert [row["dtype"] for row in rows] == 2 * ["float32", "bfloat16", "float16"]
    for row in rows:
        unit = torch.finfo(DTYPES[row["dtype"]]).eps
        assert row["error of Triton"] <= 1.5 * row["error of torch"] + unit / 16
    assert all(row["error of torch"] > 0 for row in rows)
