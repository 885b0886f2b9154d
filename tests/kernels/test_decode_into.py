"""Decoding into memory that is there already: without new pages to clear."""

import pytest
import torch

from chop.formats import MXFP, GroupAffine, GroupInteger, MXInt
from chop.kernels.cpu import packed
from tests.kernels.coded import parts

FORMATS = [
    *(MXInt(8), MXFP(4, 2), GroupInteger(4), GroupInteger(3), GroupInteger(2, group_size=16)),
    *(GroupAffine(2), GroupAffine(5), GroupAffine(4, group_size=7)),
    GroupAffine(4, group_size=400),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.label)
def test_it_writes_what_decoding_gives_and_leaves_what_does_not_fit(fmt, loops):
    dtype = torch.bfloat16 if fmt == MXFP(4, 2) else torch.float32
    x, y = torch.randn(320, 512).to(dtype), torch.full((320, 512), 7.0, dtype=dtype)
    x[5] = 0.0
    x[7] = (x[7].float() * 3e38).clamp(-3e38, 3e38)
    if isinstance(fmt, GroupAffine | GroupInteger):  # which saturate where others have NaN
        x[9, ::3] = torch.inf
    stored = parts(fmt.encode(x), fmt)
    assert packed.decode_into(stored, y)
    assert torch.equal(y, fmt.round(x))
    for wrong in (torch.ones(512, 320).t(), torch.ones(5, 69), torch.ones(320, 512).half()):
        assert not packed.decode_into(stored, wrong)
        assert (wrong == 1).all()
