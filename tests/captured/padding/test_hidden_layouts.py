"""Views of hidden elements: the same elements of a memory, whatever the layout that reads them."""

import pytest
import torch

from chop.captured.padding.hidden import following, hidden_elements, visible

BATCH, TOKENS, WIDTH = 3, 5, 8
LAYOUTS = {
    "rows": lambda x: x.view(BATCH * TOKENS, WIDTH),
    "heads": lambda x: x.view(BATCH, TOKENS, 2, 4),
    "heads first": lambda x: x.view(BATCH, TOKENS, 2, 4).transpose(1, 2),
    "keys": lambda x: x.view(BATCH, TOKENS, 2, 4).permute(0, 2, 3, 1),
    "tokens first": lambda x: x.transpose(0, 1),
    "channels first": lambda x: x.mT,
    "flat": lambda x: x.flatten(),
    "halves of tokens": lambda x: x.view(BATCH, TOKENS * 2, 4),
    "tokens joined": lambda x: x.view(BATCH, TOKENS * WIDTH),
    "one more dimension": lambda x: x[:, None].transpose(1, 3),
    "a part": lambda x: x[:, 1:],
    "some channels": lambda x: x[..., ::2],
    "one token": lambda x: x[:, -1],
    "expanded": lambda x: x[:, :, None].expand(-1, -1, 2, -1),
    "one channel": lambda x: x[..., :1].transpose(0, 1),
    "bits": lambda x: x.view(torch.int32),
}
MASK = (torch.arange(TOKENS) < torch.tensor([5, 3, 1])[:, None]).long()


@pytest.mark.parametrize("name", LAYOUTS)
def test_views_and_what_is_written_into_them(name):
    view, x = LAYOUTS[name], torch.randn(BATCH, TOKENS, WIDTH)
    ones = torch.ones(BATCH, TOKENS, WIDTH)
    expected = view((MASK == 0)[..., None] * ones) != 0
    with following(None, {"x": x, "attention_mask": MASK}) as given:
        x = given["x"]
        seen = hidden_elements(view(x))
        assert torch.equal(expected, torch.zeros_like(expected) if seen is None else seen)
        assert torch.equal(visible(view(x)).sort().values, view(x)[~expected].sort().values)
        again = hidden_elements(x)
        assert torch.equal(again, (MASK == 0)[..., None].expand(x.shape))
        if name not in ("expanded", "bits"):
            view(x).copy_(torch.zeros(()))  # as new: no element of it is hidden
            found, written = hidden_elements(x), torch.zeros(BATCH, TOKENS, WIDTH)
            view(written).fill_(1)
            left = (MASK == 0)[..., None] & (written == 0)
            assert torch.equal(left, torch.zeros_like(left) if found is None else found)


@pytest.mark.parametrize("name", ["heads first", "channels first", "tokens joined"])
def test_numbers_written_by_a_view_hide_what_they_hide(name):
    """Hidden numbers that are copied into a whole memory by another layout of it."""
    view = LAYOUTS[name]
    with following(None, {"x": torch.randn(BATCH, TOKENS, WIDTH), "attention_mask": MASK}) as given:
        x, target = given["x"], torch.zeros(BATCH, TOKENS, WIDTH)
        target.add_(1)
        view(target).copy_(view(x))
        expected = (MASK == 0)[..., None].expand(x.shape)
        assert torch.equal(hidden_elements(target), expected)
        doubled = view(target) * 2
        assert torch.equal(hidden_elements(doubled), view(expected.contiguous()))


def test_one_hidden_number_is_hidden_without_dimensions():
    with following(None, {"x": torch.randn(BATCH, TOKENS, WIDTH), "attention_mask": MASK}) as given:
        hidden, shown = (given["x"][2:, token, :1] * 2 for token in (4, 0))
        assert hidden_elements(hidden.view(())).item()
        seen = hidden_elements(shown.view(()))
        assert seen is None or not seen
