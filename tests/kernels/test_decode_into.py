"""Decoding into memory that is there already: without new pages to clear."""

import torch

from chop.formats import MXFP, MXInt
from chop.kernels.codes import Packed
from chop.kernels.cpu import packed


def test_it_writes_what_decoding_gives_and_leaves_what_does_not_fit():
    for fmt, dtype in ((MXInt(8), torch.float32), (MXFP(4, 2), torch.bfloat16)):
        x, y = torch.randn(320, 512).to(dtype), torch.full((320, 512), 7.0, dtype=dtype)
        encoded = fmt.encode(x)
        stored = Packed(encoded.codes, encoded.scales, None, [320, 512], fmt.key)
        assert packed.decode_into(stored, y)
        assert torch.equal(y, fmt.round(x))
        for wrong in (torch.ones(512, 320).t(), torch.ones(5, 69), torch.ones(320, 512).half()):
            assert not packed.decode_into(stored, wrong)
            assert (wrong == 1).all()
