import itertools

import pytest
import torch
import torch.nn.functional as F

from chop.bench import roofline
from chop.studies.attention import BenchAttentionConfig, bench_attention
from chop.studies.attention_implementations import (
    MASKS,
    Case,
    attention_in_three_kernels,
    implementations,
    naive_attention,
    random_inputs,
    visible_pairs,
)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", ["1x1x1x1", "3x2x7x5", "2x4x16x8"])
def test_all_ways_agree_with_torch(shape, mask):
    case = Case.parse(shape, "float32", mask)
    q, k, v = random_inputs(case, 0, "cpu")
    visible = visible_pairs(case, "cpu")
    expected = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), visible)
    for way in implementations(case, visible).values():
        torch.testing.assert_close(way(q, k, v).double(), expected, atol=1e-5, rtol=0)


def test_masks_leave_every_query_a_key():
    padding = visible_pairs(Case.parse("4x2x8x4", "float32", "padding"), "cpu")
    assert padding.flatten(1).sum(1).tolist() == [7, 6, 5, 4]
    assert visible_pairs(Case.parse("3x1x1x4", "float32", "padding"), "cpu").all()
    causal = visible_pairs(Case.parse("1x1x3x4", "float32", "causal"), "cpu")
    assert causal.tolist() == [[True, False, False], [True, True, False], [True, True, True]]


def test_counted_bytes_are_those_that_the_operations_read_and_write():
    """Against the sizes of the tensors that operators of the two written-out ones take and give."""
    for mask in ("none", "causal"):
        case = Case.parse("2x3x8x4", "float32", mask)
        moved = {"naive": naive_attention, "three kernels": attention_in_three_kernels}
        added = torch.zeros(8, 8) if mask == "causal" else None
        for name, way in moved.items():
            counted = _bytes_of_operators(way, random_inputs(case, 0, "cpu"), added)
            copies = 2 * 2 * 3 * 8 * 8 * 4 if (mask, name) == ("causal", "three kernels") else 0
            assert case.moved_bytes(name) == counted + copies
    numbers = 2 * 3 * 8 * 4
    assert Case.parse("2x3x8x4", "float16", "none").moved_bytes("fused") == 4 * numbers * 2
    assert Case.parse("2x3x8x4", "float16", "padding").moved_bytes("fused") == 8 * numbers + 2 * 8
    assert Case.parse("2x3x8x4", "float32", "causal").needed_flops == 4 * 2 * 3 * 36 * 4


def _bytes_of_operators(way, inputs, added):
    from torch.utils._python_dispatch import TorchDispatchMode

    moved = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if func.overloadpacket.__name__ in ("bmm", "baddbmm", "div", "add", "_softmax"):
                tensors = [x for x in (*args, out) if isinstance(x, torch.Tensor) and x.dim()]
                moved.extend(x.numel() * x.element_size() for x in tensors)
            return out

    with torch.no_grad(), Count():
        way(*inputs, added=added)
    return sum(moved)


@pytest.fixture(scope="module")
def found():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(roofline.COPIED_BYTES, "cpu", 2**20)
        patch.setitem(roofline.PRODUCT_SIZE, "cpu", 128)
        return bench_attention(BenchAttentionConfig(quick=True))


def test_every_case_has_its_three_rows(found):
    names = [(row.case.dtype, row.case.mask, row.way) for row in found.rows]
    dtypes = ("float32", "bfloat16", "float16")
    expected = itertools.product(dtypes, MASKS, ("naive", "three kernels", "fused"))
    assert names == [*expected]
    assert {row.backend for row in found.rows} == {None, "flash_attention"}
    assert all(0 < row.share_of_roofline < 2 for row in found.rows)
    errors = {(row.case.dtype, row.way): row.error for row in found.rows}
    assert errors["float32", "fused"] < 1e-5 < errors["bfloat16", "fused"] < 0.1
    assert errors["bfloat16", "fused"] <= errors["bfloat16", "naive"]


def test_tables_are_for_people(found):
    (title, speeds), (short_runs_title, course), (_, ceilings) = found.tables().items()
    assert "2x3x32x16" in title and "interleaved" in title
    assert speeds[0]["times as fast"] == "1" and speeds[0]["dtype"] == "float32"
    assert speeds[2]["way"] == "fused (flash)" and speeds[2]["of ceiling"].endswith("compute")
    assert [row["dtype"] for row in ceilings] == ["float32", "bfloat16", "float16"]
    assert [row["iterations"] for row in course[::4]] == [5, 50, 200]
    assert {"naive", "fused", "times as fast", "run"} < course[0].keys()
    assert "naive and fused, float32, mask none" in short_runs_title
