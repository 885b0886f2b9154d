"""Which rows of a value are padding, by the masks among the inputs."""

import pytest
import torch
from torch import fx

from chop.ir.rows import counted_rows


def value_of(*names):
    """A node that is computed from inputs of these names."""
    graph = fx.Graph()
    return graph.call_function(torch.cat, ([graph.placeholder(name) for name in names],))


HIDDEN = torch.tensor([[False, False, True], [False, True, True]])
OTHER = torch.tensor([[False, True, False, True], [False, False, False, True]])
SAME = torch.tensor([[True, False, False], [False, False, True]])
ADDED = torch.zeros(2, 3).masked_fill(HIDDEN, float("-inf"))

CASES = {
    "ones": ({"attention_mask": (~HIDDEN).long()}, ["input_ids"], (2, 3), ~HIDDEN),
    "hidden": ({"src_key_padding_mask": HIDDEN}, ["src"], (2, 3), ~HIDDEN),
    "added": ({"key_padding_mask": ADDED}, ["x"], (2, 3), ~HIDDEN),
    "tokens first": ({"key_padding_mask": HIDDEN}, ["x"], (3, 2), ~HIDDEN),
    "in one": ({"key_padding_mask": HIDDEN}, ["x"], (6,), ~HIDDEN),
    "another length": (
        {"src_key_padding_mask": HIDDEN, "tgt_key_padding_mask": OTHER},
        ["src", "tgt"],
        (2, 4),
        ~OTHER,
    ),
    "encoder": (
        {"tgt_key_padding_mask": SAME, "src_key_padding_mask": HIDDEN},
        ["src"],
        (2, 3),
        ~HIDDEN,
    ),
    "decoder": (
        {"memory_key_padding_mask": HIDDEN, "tgt_key_padding_mask": SAME},
        ["src", "tgt"],
        (2, 3),
        ~SAME,
    ),
    "decoder of transformers": (
        {"attention_mask": (~HIDDEN).long(), "decoder_attention_mask": (~SAME).long()},
        ["input_ids", "decoder_input_ids"],
        (2, 3),
        ~SAME,
    ),
    "biases": ({"key_padding_mask": ADDED + 0.5}, ["x"], (2, 3), None),
    "everything": ({"key_padding_mask": HIDDEN | True}, ["x"], (2, 3), None),
    "another name": ({"mask": HIDDEN}, ["x"], (2, 3), None),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_that_count(case):
    masks, names, shape, expected = CASES[case]
    found = counted_rows(value_of(*names), torch.zeros(*shape, 4), masks)
    if expected is None:
        assert found is None
    else:
        kept = expected.T if shape == (3, 2) else expected
        assert torch.equal(found, kept.reshape(-1))
