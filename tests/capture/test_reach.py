"""What a capture takes without giving anything up: it equals eager wherever it does not refuse."""

from __future__ import annotations

import copy
import math
import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from chop.capture.captured import CapturedModule
from chop.capture.leaves import tensors_in
from chop.capture.size_functions import size_arithmetic
from chop.capture.tracer import CaptureWarning, capture
from chop.errors import CaptureError, GuardError

TABLE = np.linspace(0, 1, 8, dtype=np.float32)


def example(batch: int = 3, length: int = 14) -> dict[str, Tensor]:
    return {"x": torch.randn(batch, length, 8)}


def silent_capture(model: nn.Module, inputs: dict[str, Any]) -> CapturedModule:
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureWarning)
        return capture(model, inputs)


def assert_follows(
    model: nn.Module, captured: CapturedModule, *inputs: dict[str, Any], pickles: bool = True
) -> None:
    """The capture, a copy and a pickle of it equal the model in `eval()` and in `train()`."""
    twins = [captured, copy.deepcopy(captured)]
    if pickles:
        twins.append(pickle.loads(pickle.dumps(captured)))
    for training in (False, True):
        for given in inputs:
            outputs = []
            for module in (model.train(training), *(twin.train(training) for twin in twins)):
                torch.manual_seed(0)
                outputs.append(tensors_in(module(**copy.deepcopy(given))))
            assert outputs[0]
            for found in outputs[1:]:
                torch.testing.assert_close(found, outputs[0], rtol=0, atol=0)


# --- arithmetic on sizes -------------------------------------------------------------------------


class Takes(nn.Module):
    """Cuts its length to a number computed from it."""

    def __init__(self, length: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.3)
        self.length = length

    def forward(self, x: Tensor) -> Tensor:
        count = self.length(x.shape[1])
        return self.dropout(self.layer(x))[:, :count] * count


def half(t: Any) -> int:
    return int(t * 0.5)


def rounded(t: Any) -> int:
    return round(t * 0.3)


def rounded_quotient(t: Any) -> int:
    return round(t / 3)


def floored(t: Any) -> int:
    return math.floor(t * 0.3 + 0.2)


def ceiled(t: Any) -> int:
    return math.ceil(t / 4)


def root(t: Any) -> int:
    return math.floor(math.sqrt(t))


def logarithm(t: Any) -> int:
    return math.ceil(math.log(t))


def logarithm_of_base(t: Any) -> int:
    return math.ceil(math.log(t, 2))


FREE = [rounded, rounded_quotient, floored, ceiled, root, logarithm, logarithm_of_base]


@pytest.mark.parametrize("length", FREE, ids=lambda function: function.__name__)
def test_functions_of_sizes_stay_free(length: Callable[[Any], Any]) -> None:
    model = Takes(length)
    captured = silent_capture(model, example())
    assert_follows(model, captured, example(), example(5, 14), example(2, 9), example(4, 29))


class ScaledByLength(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / math.sqrt(x.shape[1]) * math.log(x.shape[1] + 1)


def test_a_root_of_a_size_scales_at_every_length() -> None:
    model = ScaledByLength()
    captured = silent_capture(model, example())
    assert captured.record.guards == []
    assert_follows(model, captured, example(), example(2, 31))


def test_int_of_a_size_holds_where_it_gives_the_same_number() -> None:
    model = Takes(half)
    captured = silent_capture(model, example())
    assert_follows(model, captured, example(5, 14), example(2, 15))
    with pytest.raises(GuardError, match=r"int\(0\.5\*float\(x\.shape\[1\]\)\) == 7 \(tested by"):
        captured(**example(5, 16))


def regrouped_product(t: Any) -> int:
    return math.floor(t * 0.01 * 100)


def regrouped_sum(t: Any) -> int:
    return math.floor(t * 0.1 + 0.2 + 0.3) + 1


def merged_terms(t: Any) -> int:
    return math.floor(t * 0.7 - t * 0.1) + 1


def distributed(t: Any) -> int:
    return math.floor((t + 0.1) * 0.3) + 1


def floor_division(t: Any) -> int:
    return int(t // 0.1) // 20


@pytest.mark.parametrize(
    "length",
    [regrouped_product, regrouped_sum, merged_terms, distributed, floor_division],
    ids=lambda function: function.__name__,
)
def test_rounding_that_sympy_would_change_is_not_free(length: Callable[[Any], Any]) -> None:
    model = Takes(length)
    captured = silent_capture(model, example())
    assert_follows(model, captured, example(5, 14))
    model.eval()
    captured.eval()
    for other in range(2, 60):
        inputs = example(2, other)
        try:
            found = captured(**inputs)
        except GuardError:
            continue
        assert torch.equal(found, model(**inputs))


def test_math_is_put_back() -> None:
    before = math.sqrt, math.log, torch.SymFloat.__floordiv__
    with pytest.raises(ZeroDivisionError), size_arithmetic():
        assert math.sqrt is not before[0]
        assert (math.sqrt(4), math.log(8, 2)) == (2.0, 3.0)
        raise ZeroDivisionError
    assert (math.sqrt, math.log, torch.SymFloat.__floordiv__) == before


# --- what a numpy array, an operator or a module of another kind brings ---------------------------


class FromArray(nn.Module):
    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.make = make

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y + self.make(y)


def shared(x: Tensor) -> Tensor:
    return torch.as_tensor(TABLE)


def converted(x: Tensor) -> Tensor:
    return torch.as_tensor(TABLE.astype(np.float64), dtype=x.dtype, device=x.device)


def by_keyword(x: Tensor) -> Tensor:
    return torch.tensor(data=TABLE, dtype=x.dtype)


def from_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(TABLE)


def copied(x: Tensor) -> Tensor:
    return torch.tensor(TABLE).mul_(2)


def as_array(x: Tensor) -> Tensor:
    return torch.asarray(TABLE)


def like_input(x: Tensor) -> Tensor:
    return x.new_tensor(TABLE.astype(np.float64))


@pytest.mark.parametrize(
    "make",
    [shared, converted, by_keyword, from_numpy, copied, as_array, like_input],
    ids=lambda function: function.__name__,
)
def test_arrays_become_constants(make: Callable[[Tensor], Tensor]) -> None:
    model = FromArray(make)
    before = TABLE.copy()
    captured = silent_capture(model, example())
    # Twice: a copy that is changed in place must not change the constant.
    assert_follows(model, captured, example(), example(5, 9), example(5, 9))
    assert np.array_equal(TABLE, before)


@torch.library.custom_op("chop_tests::scaled", mutates_args=())
def scaled(x: Tensor, factor: float) -> Tensor:
    return x * factor


def _keep_factor(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.factor = inputs[1]


scaled.register_fake(lambda x, factor: torch.empty_like(x))
scaled.register_autograd(
    lambda ctx, gradient: (gradient * ctx.factor, None), setup_context=_keep_factor
)


@torch.library.custom_op("chop_tests::doubled_width", mutates_args=())
def doubled_width(x: Tensor) -> Tensor:
    return torch.cat([x, x], -1)


@torch.library.custom_op("chop_tests::clamp_below", mutates_args=("x",))
def clamp_below(x: Tensor, least: float) -> None:
    x.clamp_(min=least)


_LIBRARY = torch.library.Library("chop_tests", "FRAGMENT")
_LIBRARY.define("shift(Tensor x, float by) -> Tensor")
_LIBRARY.impl("shift", lambda x, by: x + by, "CompositeImplicitAutograd")


class Custom(nn.Module):
    def __init__(self, operator: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.operator = operator

    def forward(self, x: Tensor) -> Tensor:
        y = self.operator(self.layer(x))
        return y.reshape(x.shape[0], -1) + 1


def with_a_fake(x: Tensor) -> Tensor:
    return scaled(x, 3.0)


def by_namespace(x: Tensor) -> Tensor:
    return torch.ops.chop_tests.scaled(x, 3.0)


def composite(x: Tensor) -> Tensor:
    return torch.ops.chop_tests.shift(x, 0.5)


def without_a_fake(x: Tensor) -> Tensor:
    return doubled_width(x.detach())


def in_place(x: Tensor) -> Tensor:
    y = x.detach().clone()
    clamp_below(y, 0.1)
    return y


@pytest.mark.parametrize(
    "operator",
    [with_a_fake, by_namespace, composite, without_a_fake, in_place],
    ids=lambda function: function.__name__,
)
def test_custom_operators_are_nodes(operator: Callable[[Tensor], Tensor]) -> None:
    model = Custom(operator)
    captured = silent_capture(model, example())
    targets = [str(node.target) for node in captured.graph.nodes]
    assert any(target.startswith("chop_tests.") for target in targets)
    assert_follows(model, captured, example(), example(5, 9))


def test_the_gradient_of_a_custom_operator_is_its_own() -> None:
    model = Custom(with_a_fake)
    captured = silent_capture(model, example())
    gradients = []
    inputs = example(5, 9)
    for module in (model, captured):
        model.zero_grad()
        module(**inputs).square().sum().backward()
        gradients.append(model.layer.weight.grad.clone())
    assert torch.equal(*gradients)


class WidensInTraining(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return doubled_width(x.detach()) if self.training else torch.cat([x, x], -1)


def test_an_operator_that_only_training_calls_leaves_a_graph_of_the_rest() -> None:
    model = WidensInTraining()
    with pytest.warns(CaptureWarning, match=r"eval\(\) only: the operator .*register_fake"):
        captured = capture(model, example())
    given = example(5, 9)
    assert torch.equal(captured.eval()(**given), model.eval()(**given))
    with pytest.raises(GuardError, match="only"):
        captured.train()(**given)


def test_a_list_operator_without_a_result_is_recorded() -> None:
    class AddsToAll(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            parts = [x * 1, x * 2]
            torch._foreach_add_(parts, 1.0)
            return parts[0] * parts[1]

    model = AddsToAll()
    assert_follows(model, silent_capture(model, example()), example(), example(5, 9))


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if y.shape[0] > 100:
            y = -y
        return torch.relu(y)


class HoldsScripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.inner = torch.jit.script(Scripted())
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(self.first(x)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_child_is_a_leaf() -> None:
    model = HoldsScripted()
    with pytest.warns(CaptureWarning, match=r"inner .*TorchScript has compiled it") as caught:
        captured = capture(model, example())
    assert len(caught) == 1
    assert [str(node.target) for node in captured.graph.nodes if node.op == "call_module"] == [
        "first",
        "inner",
        "last",
    ]
    # torch itself does not pickle compiled modules.
    assert_follows(model, captured, example(), example(5, 9), pickles=False)
    with pytest.raises(CaptureError, match=r"inner .*TorchScript"):
        capture(model, example(), strict=True)
    with pytest.raises(CaptureError, match=r"got Scripted compiled by TorchScript; pass"):
        capture(torch.jit.script(Scripted()), example())


GRADIENTS: list[tuple[int, ...]] = []


def keep_shape(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
    GRADIENTS.append(tuple(grad_output[0].shape))


def halve(module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
    return (grad_input[0] / 2,)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x)) * 2


class Hooked(nn.Module):
    def __init__(self, hooked: str) -> None:
        super().__init__()
        self.first = Twice()
        self.second = Twice()
        self.last = nn.Linear(8, 3)
        self.get_submodule(hooked).register_full_backward_hook(halve)
        self.get_submodule(hooked).register_full_backward_hook(keep_shape)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x)))


@pytest.mark.parametrize("hooked", ["second", "last", ""], ids=["block", "layer", "model"])
def test_hooks_on_gradients_are_kept(hooked: str) -> None:
    model = Hooked(hooked)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        captured = capture(model, example())
    assert [
        re.search("second.*hooks on gradients", str(w.message)) is not None for w in caught
    ] == ([True] if hooked == "second" else [])
    called = [str(node.target) for node in captured.graph.nodes if node.op == "call_module"]
    assert "first.layer" in called
    assert ("second" in called) == (hooked == "second")
    assert_follows(model, captured, example(), example(5, 9))
    for module in (captured, copy.deepcopy(captured)):
        gradients = []
        x = example(5, 9)["x"]
        for one in (model, module):
            GRADIENTS.clear()
            given = x.clone().requires_grad_()
            one(given).square().sum().backward()
            gradients.append((given.grad, list(GRADIENTS)))
        assert torch.equal(gradients[0][0], gradients[1][0])
        assert gradients[0][1] == gradients[1][1]
        assert len(gradients[0][1]) == 1


# --- packed sequences ----------------------------------------------------------------------------


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


# --- before every size becomes fixed -------------------------------------------------------------


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
    with pytest.warns(CaptureWarning, match="decisions on data and sizes are those"):
        captured = capture(model, example(batch))
    assert_follows(model, captured, example(batch))
    with pytest.raises(GuardError, match=rf"x\.shape\[0\] == {batch} \(fixed at capture\)"):
        captured(**example(batch + 1))


# --- messages ------------------------------------------------------------------------------------

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


class NormAct(nn.BatchNorm2d):
    """A normalization with an activation, written as timm writes it."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.num_batches_tracked.add_(1)
        x = F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training,
            self.momentum if self.training else 0.0,
            self.eps,
        )
        return self.act(x)


def test_a_class_is_announced_once_with_its_count() -> None:
    model = nn.Sequential()
    for _ in range(4):
        model.extend([nn.Conv2d(3, 3, 3, padding=1), NormAct(3)])
    with pytest.warns(CaptureWarning) as caught:
        captured = capture(model, {"input": torch.randn(3, 3, 8, 8)})
    assert len(caught) == 1
    text = str(caught[0].message)
    assert len(text.splitlines()) == 1
    assert re.search(r"1 \(.*NormAct\), like 3 more of its class, is one node that hides \d", text)
    assert_follows(model.eval(), captured.eval(), {"input": torch.randn(5, 3, 8, 8)})
