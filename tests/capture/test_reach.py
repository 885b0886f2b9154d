"""Packed sequences and fixed sizes that a capture takes, and messages of what it refuses."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from chop.capture.tracer import capture
from chop.captured.record import CaptureWarning
from chop.errors import CaptureError, GuardError
from tests.capture.following import assert_follows, example, silent_capture

# --- packed sequences --------------------------------------------------------------------------


class Packed(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], batch_first: bool, to_length: bool = False) -> None:
        super().__init__()
        self.layer = kind(8, 6, batch_first=batch_first, bidirectional=True, dropout=0.0)
        self.head = nn.Linear(12, 3)
        self.batch_first = batch_first
        self.to_length = to_length

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        whole = x.shape[1 if self.batch_first else 0]
        packed = pack_padded_sequence(x, lengths, self.batch_first, enforce_sorted=False)
        output, state = self.layer(packed)
        padded, found = pad_packed_sequence(
            output, self.batch_first, total_length=whole if self.to_length else None
        )
        last = state[0] if isinstance(state, tuple) else state
        return self.head(padded), last[-1].mul_(2), found


def sequences(batch: int, longest: int, batch_first: bool, spare: int = 0) -> dict[str, Tensor]:
    lengths = torch.tensor([max(1, longest - 3 * row) for row in range(batch)])[
        torch.arange(batch).roll(1)
    ]
    shape = (batch, longest + spare) if batch_first else (longest + spare, batch)
    return {"x": torch.randn(*shape, 8), "lengths": lengths}


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "time first"])
@pytest.mark.parametrize("to_length", [True, False], ids=["whole", "longest"])
@pytest.mark.sampled(1)
def test_packed_sequences_run_at_other_lengths(
    kind: type[nn.RNNBase], batch_first: bool, to_length: bool
) -> None:
    model = Packed(kind, batch_first, to_length)
    captured = silent_capture(model, sequences(3, 14, batch_first))
    others = [sequences(5, 14, batch_first), sequences(2, 7, batch_first, spare=4)]
    assert_follows(model, captured, sequences(3, 14, batch_first), *others)
    gradients = []
    for module in (model, captured):
        model.zero_grad()
        torch.stack([part.float().sum() for part in module(**others[1])]).sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


class PackedSorted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(8, 6, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True)
        assert isinstance(packed, PackedSequence)
        output, state = self.layer(packed)
        padded, _ = pad_packed_sequence(output, batch_first=True)
        return padded.sum(1), state.transpose(0, 1).reshape(x.shape[0], -1)


@pytest.mark.long
def test_sorted_packed_sequences_keep_their_batch() -> None:
    def inputs(batch: int, longest: int) -> dict[str, Tensor]:
        given = sequences(batch, longest, True)
        return {**given, "lengths": given["lengths"].sort(descending=True)[0]}

    model = PackedSorted()
    captured = silent_capture(model, inputs(3, 14))
    assert_follows(model, captured, inputs(3, 14), inputs(5, 8))


def test_results_of_recurrent_layers_can_be_changed_in_place() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(8, 6, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            output, _ = self.layer(x)
            output += 1
            return output

    model = InPlace()
    captured = silent_capture(model, example())
    expected = model(**(inputs := example(5, 9)))
    assert torch.equal(captured(**inputs), expected)


# --- before every size becomes fixed -----------------------------------------------------------


class NumpyOfSizes(nn.Module):
    """numpy's square root takes no symbolic size, and the branch is the data's."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * float(np.sqrt(x.shape[1]))
        return y if x.sum() > -1e9 else -y


@pytest.mark.parametrize("batch", [3, 1])
def test_the_batch_stays_free_when_other_sizes_cannot(batch: int) -> None:
    model = NumpyOfSizes()
    with pytest.warns(CaptureWarning, match="sizes other than the batch's") as caught:
        captured = capture(model, example(batch))
    assert "SymInt" not in str(caught[0].message)
    assert_follows(model, captured, example(batch), example(5))
    with pytest.raises(GuardError, match=r"x\.shape\[1\] == 14 \(fixed at capture\)"):
        captured(**example(5, 9))


class NumpyOfBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * float(np.sqrt(x.shape[0]))


@pytest.mark.parametrize("batch", [3, 1])
def test_fixed_sizes_are_those_of_the_example(batch: int) -> None:
    model = NumpyOfBatch()
    with pytest.warns(CaptureWarning, match="data-dependent decisions and sizes are those"):
        captured = capture(model, example(batch))
    assert_follows(model, captured, example(batch))
    with pytest.raises(GuardError, match=rf"x\.shape\[0\] == {batch} \(fixed at capture\)"):
        captured(**example(batch + 1))


# --- messages ----------------------------------------------------------------------------------

_INTERNAL = re.compile(r"\b[suz]u?f?\d+\b|Sym(Int|Float|Bool|Node)|FakeTensor|GuardOn|Exception\b")


class CountDecides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if (x > 0).nonzero().shape[0] > 3 else x


class ItemDecides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, : max(1, min(2, int(x.abs().sum().item())))]


class NumpyOfData(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.from_numpy(np.cumsum(x.detach().numpy(), 0))


class OpaqueInside(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1


@pytest.mark.parametrize(
    "model",
    [CountDecides(), ItemDecides(), NumpyOfData(), NumpyOfSizes(), NumpyOfBatch()],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "itself"])
@pytest.mark.sampled(3)
def test_messages_have_none_of_the_words_of_torch_inside(model: nn.Module, inside: bool) -> None:
    texts = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            capture(OpaqueInside(model) if inside else model, example())
        except CaptureError as error:
            texts.append(str(error))
    texts += [str(warning.message) for warning in caught]
    assert texts
    for text in texts:
        assert not _INTERNAL.search(text), text
        assert "test_reach.py:" in text


class Decides(nn.Module):
    """A layer with a branch on the values of its input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale if x.abs().sum() >= 0 else -x


def test_a_class_is_announced_once_with_its_count() -> None:
    model = nn.Sequential()
    for _ in range(4):
        model.extend([nn.Conv2d(3, 3, 3, padding=1), Decides(3)])
    with pytest.warns(CaptureWarning) as caught:
        captured = capture(model, {"input": torch.randn(3, 3, 8, 8)})
    assert len(caught) == 1
    text = str(caught[0].message)
    assert len(text.splitlines()) == 1
    assert re.search(r"1 \(.*Decides\) and 3 more of its class became a leaf that hides \d", text)
    assert_follows(model.eval(), captured.eval(), {"input": torch.randn(5, 3, 8, 8)})
