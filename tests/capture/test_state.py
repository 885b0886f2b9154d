"""State of a model in attributes and inputs: kept by a leaf, refused or told."""

from __future__ import annotations

import copy
import functools
import random
import sysconfig
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from chop.capture.tracer import capture
from chop.captured.record import CaptureWarning
from chop.captured.state.code_search import is_own_file
from chop.errors import CaptureError
from tests.capture.stateful import Forward, Made, assert_same_calls, draws, within

# --- attributes --------------------------------------------------------------------------------


def counts(self: Any, x: Tensor) -> Tensor:
    self.pos += 1
    return x * self.weight + self.pos


def caches(self: Any, x: Tensor) -> Tensor:
    before, self.cache = self.cache, x.detach().sum(0)
    return x if before is None else x + before


def recurs(self: Any, x: Tensor) -> Tensor:
    self.hidden = torch.tanh(self.hidden + (x @ torch.diag(self.weight)).detach().mean(0))
    return x + self.hidden


def fills_a_list(self: Any, x: Tensor) -> Tensor:
    self.seen.append(x.detach().mean())
    return x * torch.stack(self.seen).sum()


def fills_a_dict(self: Any, x: Tensor) -> Tensor:
    self.seen["n"] = self.seen.get("n", 0) + 1
    return x * self.seen["n"]


class Slots:
    """A cache as a plain object."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []

    def update(self, x: Tensor) -> Tensor:
        self.rows.append(x.detach().sum(0))
        return torch.stack(self.rows).mean(0)


def updates_an_object(self: Any, x: Tensor) -> Tensor:
    return x - self.cache.update(x)


def updates_a_namespace(self: Any, x: Tensor) -> Tensor:
    self.state.scale = self.state.scale * 0.5
    return x * self.state.scale


def starts_from_data(self: Any, x: Tensor) -> Tensor:
    if not self.ready:
        self.center, self.ready = x.detach().mean(0), True
    return x - self.center


def keeps_the_first(reduce: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """A forward that keeps a number of its first batch, which no order of the batch changes."""

    def forward(self: Any, x: Tensor) -> Tensor:
        if "first" not in self.kept:
            self.kept["first"] = reduce(x.detach())
        return x - self.kept["first"]

    return forward


def alternates(self: Any, x: Tensor) -> Tensor:
    self.even = not self.even
    return x if self.even else -x


def steps_a_generator(self: Any, x: Tensor) -> Tensor:
    return x * float(self.draws.random())


def swaps_a_parameter(self: Any, x: Tensor) -> Tensor:
    self.weight = nn.Parameter(self.weight.detach() * 0.5)
    return x * self.weight


def grows(self: Any, x: Tensor) -> Tensor:
    if not hasattr(self, "layer"):
        self.layer = nn.Linear(4, 4)
    return self.layer(x)


STATEFUL: dict[str, tuple[Forward, dict[str, Any], str]] = {
    "counter": (counts, {"pos": 0}, "pos"),
    "cache": (caches, {"cache": None}, "cache"),
    "recurrent": (recurs, {"hidden": 0.0}, "hidden"),
    "list": (fills_a_list, {"seen": []}, "seen"),
    "dict": (fills_a_dict, {"seen": {}}, "seen"),
    "object": (updates_an_object, {"cache": Slots()}, "cache"),
    "namespace": (updates_a_namespace, {"state": types.SimpleNamespace(scale=1.0)}, "state"),
    "first_batch": (starts_from_data, {"ready": False, "center": None}, "ready"),
    "first_mean": (keeps_the_first(torch.mean), {"kept": {}}, "kept"),
    "first_largest": (keeps_the_first(torch.max), {"kept": {}}, "kept"),
    "first_norm": (keeps_the_first(torch.linalg.vector_norm), {"kept": {}}, "kept"),
    "switch": (alternates, {"even": False}, "even"),
    "generator": (steps_a_generator, {"draws": np.random.default_rng(0)}, "draws"),
    "own_generator": (steps_a_generator, {"draws": random.Random(0)}, "draws"),
}


def plain(value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, random.Random):
        return value.getstate()
    return vars(value) if isinstance(value, Slots | types.SimpleNamespace) else value


@pytest.mark.parametrize("kind", STATEFUL)
@pytest.mark.sampled(3)
def test_a_submodule_that_keeps_state_stays_one_node_and_keeps_it(kind: str) -> None:
    forward, attributes, name = STATEFUL[kind]
    model = within(Made(forward, **copy.deepcopy(attributes)))
    with pytest.warns(CaptureWarning, match=rf"keeps state .*1\.{name} \(.*state\w*\.py:\d+\)"):
        captured = capture(model, {"input": draws()})
    assert [report.path for report in captured.auto_leaves] == ["1"]
    for key, value in attributes.items():
        assert plain(getattr(model[1], key)) == plain(value)
    assert_same_calls(model, captured)
    with pytest.raises(CaptureError, match=f"keeps state .*{name}"):
        capture(model, {"input": draws()}, strict=True)


@pytest.mark.parametrize("kind", STATEFUL)
@pytest.mark.sampled(3)
def test_a_model_that_keeps_state_itself_is_refused_by_name(kind: str) -> None:
    forward, attributes, name = STATEFUL[kind]
    model = Made(forward, **copy.deepcopy(attributes))
    with pytest.raises(CaptureError, match=rf"{name} \(.*state\w*\.py:\d+\).*register_buffer"):
        capture(model, {"x": draws()})
    for key, value in attributes.items():
        assert plain(getattr(model, key)) == plain(value)


@pytest.mark.parametrize("forward", [swaps_a_parameter, grows])
def test_parameters_and_layers_made_in_forward_are_refused(forward: Forward) -> None:
    model = Made(forward)
    before = dict(model.named_parameters())
    with pytest.raises(CaptureError, match="keeps state"):
        capture(model, {"x": draws()})
    assert dict(model.named_parameters()).keys() == before.keys()
    assert model.weight is before["weight"]


def test_state_that_only_training_changes_is_found_too() -> None:
    def warms_up(self: Any, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return x * min(self.steps, 5)

    model = within(Made(warms_up, steps=0))
    with pytest.warns(CaptureWarning, match=r"keeps state .*1\.steps"):
        captured = capture(model, {"input": draws()})
    assert model[1].steps == 0
    assert_same_calls(model, captured, training=True, calls=7)
    assert_same_calls(model, captured)


class Warm(nn.Module):
    """Counts the calls in `train()`, and reads the counter as given.

    Args:
        read: the factor at a value of the counter.
        counts_first: whether it counts before it reads.
        step: the counter.
    """

    def __init__(
        self, read: Callable[[float], float], counts_first: bool = True, step: float = 0
    ) -> None:
        super().__init__()
        self.read, self.counts_first, self.step = read, counts_first, step

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.counts_first:
            self.step += 1
        y = x * self.read(self.step)
        if self.training and not self.counts_first:
            self.step += 1
        return y


READS_LATER: dict[str, Callable[[float], float]] = {
    "threshold": lambda step: 1 if step < 3 else 2,
    "far": lambda step: 1 if step < 100_000 else 2,
    "window": lambda step: 2 if 500 <= step < 2_000 else 1,
    "every": lambda step: 2 if step > 2 and step % 300 == 0 else 1,
    "before": lambda step: 2 if step % 7 == 6 else 1,
}


@pytest.mark.parametrize("counts_first", [False, True])
@pytest.mark.parametrize("kind", READS_LATER)
@pytest.mark.sampled(1)
def test_a_counter_that_only_a_later_call_reads_is_state(kind: str, counts_first: bool) -> None:
    model = within(Warm(READS_LATER[kind], counts_first))
    with pytest.warns(CaptureWarning, match=r"keeps state .*1\.step \(.*state\w*\.py") as caught:
        captured = capture(model, {"input": draws()})
    assert len(caught) == 1
    assert [report.path for report in captured.auto_leaves] == ["1"]
    assert model[1].step == 0 and type(model[1].step) is int
    assert_same_calls(model, captured, training=True, calls=8)
    with pytest.raises(CaptureError, match=r"keeps state .*in step .*register_buffer"):
        capture(Warm(READS_LATER[kind], counts_first), {"x": draws()})


@pytest.mark.parametrize(
    "warm",
    [
        Warm(lambda step: 2 if step == 5 else 1),
        # The calls of the warm-up are over.
        Warm(lambda step: 1 if step < 100 else 2, step=5_000),
        # A pointer that would fail further ahead.
        Warm(lambda step: 1 / (step < 50)),
    ],
    ids=["equal", "over", "bounded"],
)
def test_a_counter_that_altered_nothing_is_told_as_no_more_than_that(warm: Warm) -> None:
    with pytest.warns(CaptureWarning) as caught:
        captured = capture(within(warm), {"input": draws()})
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "forward also sets Warm.step" in text and "further calls gave the same results" in text
    assert "make it a buffer" in text and "leaves=[...]" in text
    assert captured.auto_leaves == ()


def test_what_a_closure_holds_is_put_back_and_kept_by_a_leaf() -> None:
    seen, total = [0], 0

    def scale(x: Tensor) -> Tensor:
        nonlocal total
        seen[0] += 1
        total += 2
        return x * seen[0] + total

    model = within(Made(lambda self, x: self.scale(x), scale=scale))
    with pytest.warns(CaptureWarning, match=r"keeps state .*1\.scale"):
        captured = capture(model, {"input": draws()})
    assert (seen, total) == ([0], 0)
    assert [report.path for report in captured.auto_leaves] == ["1"]
    x = draws()
    found = [captured(x), captured(x)]
    seen[0] = total = 0
    torch.testing.assert_close([model(x), model(x)], found, rtol=0, atol=0)


def test_state_set_by_the_module_around_makes_that_one_a_leaf() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Made(lambda self, x: x * self.factor, factor=1.0)

        def forward(self, x: Tensor) -> Tensor:
            y = self.inner(x)
            self.inner.factor += 1
            return y

    model = within(Outer())
    with pytest.warns(CaptureWarning, match=r"keeps state .*1\.inner\.factor"):
        captured = capture(model, {"input": draws()})
    assert [report.path for report in captured.auto_leaves] == ["1"]
    assert_same_calls(model, captured)


def test_fixed_arguments_stay_the_same_while_state_is_looked_for() -> None:
    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Made(counts, pos=0)

        def forward(self, x: Tensor, bias: Tensor) -> Tensor:
            return self.inner(x) + bias

    model, bias = Adds(), torch.arange(4.0)
    with pytest.warns(CaptureWarning, match=r"keeps state .*inner\.pos"):
        captured = capture(model, {"x": draws()}, concrete_args={"bias": bias})
    x = draws()
    expected = copy.deepcopy(model)(x, bias)
    assert torch.equal(captured(x), expected)


def test_state_that_two_modules_share_follows_the_model_or_is_refused() -> None:
    shared = Slots()
    model = nn.Sequential(*(Made(updates_an_object, cache=shared) for _ in range(2)))
    with pytest.warns(CaptureWarning, match="keeps state"):
        captured = capture(model, {"input": draws()})
    assert len(shared.rows) == 0
    assert_same_calls(model, captured)


# --- attributes that alter nothing -------------------------------------------------------------


def keeps_attention(self: Any, x: Tensor) -> Tensor:
    self.last = torch.softmax(x * self.weight, -1)
    self.calls += 1
    return self.last * x


def test_what_no_call_reads_is_told_once() -> None:
    model = nn.Sequential(*(Made(keeps_attention, last=None, calls=0) for _ in range(3)))
    with pytest.warns(CaptureWarning) as caught:
        captured = capture(model, {"input": draws()}, strict=True)
    assert len(caught) == 1
    text = str(caught[0].message)
    assert text.count("Made.last") == text.count("Made.calls") == 1
    assert "test_state.py:" in text
    assert captured.auto_leaves == ()
    assert [layer.calls for layer in model] == [0, 0, 0]
    assert_same_calls(model, captured)


def test_tables_built_in_the_first_call_are_no_state() -> None:
    def positions(self: Any, x: Tensor) -> Tensor:
        if self.table is None or len(self.table) != x.shape[1]:
            self.table = torch.arange(x.shape[1], device=x.device) * 0.5
        return x + self.table

    model = Made(positions, table=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured = capture(model, {"x": draws()}, strict=True)
    assert model.table is None
    assert_same_calls(model, captured)


@functools.lru_cache
def table(device: torch.device) -> Tensor:
    return torch.arange(4.0, device=device)


def test_tables_of_functions_hold_real_tensors_after_a_capture() -> None:
    table.cache_clear()
    model = Made(lambda self, x: x + table(x.device))
    x = draws()
    captured = capture(model, {"x": x}, strict=True)
    assert table.cache_info().currsize == 1
    assert not isinstance(table(x.device), FakeTensor)
    assert torch.equal(model(x), x + torch.arange(4.0))
    assert_same_calls(model, captured)


# --- inputs ------------------------------------------------------------------------------------


class Batch:
    """An input with attributes."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


@pytest.mark.parametrize("make", [Batch, lambda x: types.SimpleNamespace(x=x)])
def test_objects_whose_attributes_would_be_stale_are_refused(make: Callable[..., Any]) -> None:
    class Reads(nn.Module):
        def forward(self, batch: Any) -> Tensor:
            return batch.x * 2

    with pytest.raises(CaptureError, match="input batch, got a .*dataclass"):
        capture(Reads(), {"batch": make(draws())})


def test_code_of_a_library_is_known_behind_a_link(tmp_path: Path) -> None:
    """A virtual environment may be reached by a link; its code keeps no state of a model."""
    link = tmp_path / "packages"
    link.symlink_to(sysconfig.get_path("purelib"))
    assert not is_own_file(str(link / "torch" / "_tensor.py"))
    assert is_own_file(str(tmp_path / "net.py"))
