"""The fast selection against sorting, with the inputs that break selections."""

import math

import pytest
import torch

from chop.nn.sparsity.selection import lowest, lowest_by_sorting

CASES = {
    "normal": lambda: [torch.randn(300, 7), torch.randn(11), torch.randn(1)],
    "ties": lambda: [torch.randint(0, 3, (500,)).float(), torch.randint(0, 3, (40, 3)).float()],
    "all equal": lambda: [torch.full((1000,), 0.25), torch.full((3, 3), 0.25)],
    "signed zeros": lambda: [torch.tensor([-0.0, 0.0, 1.0, -0.0] * 50)],
    "special": lambda: [torch.tensor([math.nan, math.inf, -math.inf, 0.0, 1.0] * 40)],
    "mixed dtypes": lambda: [torch.randn(90).bfloat16(), torch.randn(90).double()],
    "empty tensor": lambda: [torch.randn(0, 3), torch.randn(60)],
    "not contiguous": lambda: [torch.randn(20, 30).t(), torch.randn(4, 4)],
}


@pytest.mark.parametrize("name", CASES)
def test_selection_equals_sorting(name):
    scores = CASES[name]()
    before = [x.clone() for x in scores]
    total = sum(x.numel() for x in scores)
    for count in (0, 1, total // 3, total // 2, total - 1, total):
        chosen, expected = lowest(scores, count), lowest_by_sorting(scores, count)
        assert all(map(torch.equal, chosen, expected)), count
        assert sum(int(mask.sum()) for mask in chosen) == count
    torch.testing.assert_close(scores, before, rtol=0, atol=0, equal_nan=True)


def test_ordinary_tools_agree():
    x = torch.randn(999)
    assert torch.equal(lowest([x], 400)[0], x < x.kthvalue(401).values)
    halves = lowest([x[:500], x[500:]], 400)
    assert torch.equal(torch.cat(halves), lowest([x], 400)[0])
    nan = torch.tensor([math.nan, math.inf, math.nan, 1.0])
    assert lowest([nan], 3)[0].tolist() == [True, True, False, True]
