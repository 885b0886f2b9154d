"""Which rows of a value are padding, by the masks among the inputs."""

import pytest
import torch
from torch import fx, nn

from chop.ir.metadata import MaseMetadata, TensorInfo
from chop.ir.rows import counted_rows


def get_value(*names):
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
    found = counted_rows(get_value(*names), torch.zeros(*shape, 4), masks)
    if expected is None:
        assert found is None
    else:
        kept = expected.T if shape == (3, 2) else expected
        assert torch.equal(found, kept.reshape(-1))


SQUARE = torch.tensor([[False, True], [False, False]])


def noted(node, *shape):
    node.meta["mase"] = MaseMetadata(node)
    node.meta["mase"].common.results["data_out_0"] = TensorInfo(shape=shape)


@pytest.mark.parametrize("example", [(3, 5), (5, 3), None])
@pytest.mark.parametrize("orders", [(True,), (False,), (True, False), ()])
def test_a_square_mask_is_read_as_the_example_or_the_modules_say(example, orders):
    layers = [nn.MultiheadAttention(2, 1, batch_first=order) for order in orders]
    root, graph = nn.ModuleList(layers), fx.Graph()
    x, mask = graph.placeholder("x"), graph.placeholder("key_padding_mask")
    graph.output(x)
    model = fx.GraphModule(root, graph)
    for number, layer in enumerate(layers):
        model.add_module(str(number), layer)
    x, mask, _ = model.graph.nodes
    if example is not None:
        noted(x, *example, 4)
        noted(mask, 3, 5)
    found = counted_rows(x, torch.zeros(2, 2, 4), {"key_padding_mask": SQUARE})
    is_tokens_first = orders == (False,) if example is None else example == (5, 3)
    kept = ~SQUARE.T if is_tokens_first else ~SQUARE
    assert torch.equal(found, kept.reshape(-1))
