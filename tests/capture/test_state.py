"""State of a model outside its inputs: kept by a leaf, checked at run time, refused or told."""

from __future__ import annotations

import copy
import functools
import random
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from chop.capture.captured import CapturedModule
from chop.capture.leaves import tensors_in
from chop.capture.tracer import CaptureWarning, capture
from chop.errors import CaptureError, GuardError

Forward = Callable[[Any, Tensor], Any]


class Made(nn.Module):
    """A layer of width 4, attributes and a forward that are given."""

    def __init__(self, forward: Forward, **attributes: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2.5, 4))
        for name, value in attributes.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)
        self.call = forward

    def forward(self, x: Tensor) -> Any:
        return self.call(self, x)


def within(model: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), model)


def draws(batch: int = 3) -> Tensor:
    return torch.randn(batch, 4)


def assert_same_calls(
    model: nn.Module, captured: nn.Module, training: bool = False, calls: int = 3
) -> None:
    """The same calls in a row give the same results, from the state of now."""
    ours, theirs = copy.deepcopy(captured), copy.deepcopy(model)
    for seed in range(calls):
        x = draws(3 + seed)
        torch.manual_seed(seed)
        expected = theirs.train(training)(x)
        torch.manual_seed(seed)
        found = ours.train(training)(x)
        torch.testing.assert_close(tensors_in(found), tensors_in(expected), rtol=0, atol=0)


# --- attributes ---------------------------------------------------------------------------------


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
def test_a_submodule_that_keeps_state_stays_one_node_and_keeps_it(kind: str) -> None:
    forward, attributes, name = STATEFUL[kind]
    model = within(Made(forward, **copy.deepcopy(attributes)))
    with pytest.warns(CaptureWarning, match=rf"keeps state .*1\.{name} \(.*state\.py:\d+\)"):
        captured = capture(model, {"input": draws()})
    assert [report.path for report in captured.auto_leaves] == ["1"]
    for key, value in attributes.items():
        assert plain(getattr(model[1], key)) == plain(value)
    assert_same_calls(model, captured)
    with pytest.raises(CaptureError, match=f"keeps state .*{name}"):
        capture(model, {"input": draws()}, strict=True)


@pytest.mark.parametrize("kind", STATEFUL)
def test_a_model_that_keeps_state_itself_is_refused_by_name(kind: str) -> None:
    forward, attributes, name = STATEFUL[kind]
    model = Made(forward, **copy.deepcopy(attributes))
    with pytest.raises(CaptureError, match=rf"{name} \(.*state\.py:\d+\).*register_buffer"):
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
def test_a_counter_that_only_a_later_call_reads_is_state(kind: str, counts_first: bool) -> None:
    model = within(Warm(READS_LATER[kind], counts_first))
    with pytest.warns(CaptureWarning, match=r"keeps state .*1\.step \(.*state\.py") as caught:
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


# --- attributes that alter nothing --------------------------------------------------------------


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


# --- buffers that Python reads ------------------------------------------------------------------


def enqueues(self: Any, x: Tensor) -> Tensor:
    start = int(self.pointer)
    self.queue[start : start + 2] = x[:2].detach()
    self.pointer[0] = (start + 2) % len(self.queue)
    return x + self.queue.mean(0)


def queue() -> dict[str, Tensor]:
    return {"queue": torch.zeros(6, 4), "pointer": torch.zeros(1, dtype=torch.long)}


def test_a_pointer_that_a_submodule_moves_moves() -> None:
    model = within(Made(enqueues, **queue()))
    with pytest.warns(CaptureWarning, match=r"its buffer 1\.pointer, which its forward writes"):
        captured = capture(model, {"input": draws()})
    assert [report.path for report in captured.auto_leaves] == ["1"]
    assert_same_calls(model, captured, calls=5)
    assert int(model[1].pointer) == 0


def test_a_pointer_that_has_moved_is_refused_by_name() -> None:
    model = Made(enqueues, **queue())
    with pytest.warns(CaptureWarning, match="checked at run time"):
        captured = capture(model, {"x": draws()})
    x = draws()
    assert torch.equal(captured(x), x + x[:2].sum(0) / 6)
    with pytest.raises(GuardError, match=r"while pointer was 0.*state\.py:\d+, got 2"):
        captured(x)


READINGS: dict[str, Callable[[Any], Any]] = {
    "int": lambda self: int(self.size),
    "float": lambda self: float(self.size),
    "bool": lambda self: 3 if self.size else 1,
    "item": lambda self: self.size.item(),
    "tolist": lambda self: self.size.tolist(),
    "numpy": lambda self: float(self.size.numpy()),
    "index": lambda self: [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0][self.size],
    "format": lambda self: len(f"{int(self.size):3d}"),
}


@pytest.mark.parametrize("reading", READINGS)
def test_a_buffer_read_by_python_is_followed_or_checked(reading: str) -> None:
    read = READINGS[reading]
    model = Made(lambda self, x: x * read(self), size=torch.tensor(3))
    captured = capture(model, {"x": draws()})
    assert_same_calls(model, captured)
    with torch.no_grad():
        model.size.zero_() if reading == "bool" else model.size.fill_(5)
    x = draws()
    try:
        found = captured(x)
    except GuardError as refusal:
        assert "size was" in str(refusal) and "test_state.py:" in str(refusal)
    else:
        assert torch.equal(found, model(x))
        assert reading == "item"


# --- parameters that forward writes -------------------------------------------------------------


def clamps(self: Any, x: Tensor) -> Tensor:
    self.weight.data.clamp_(-1.0, 1.0)
    return x * self.weight


def decays(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        self.weight.mul_(0.5)
    return x * self.weight


def averages(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        for slow, fast in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            slow.data.mul_(0.9).add_(fast.data, alpha=0.1)
    return self.student(x) - self.teacher(x).detach()


def averages_at_once(self: Any, x: Tensor) -> Tensor:
    slow, fast = list(self.teacher.parameters()), list(self.student.parameters())
    with torch.no_grad():
        torch._foreach_lerp_(slow, fast, 0.1)
    return self.student(x) - self.teacher(x).detach()


def starts_a_scale(self: Any, x: Tensor) -> Tensor:
    if not self.ready:
        with torch.no_grad():
            self.weight.copy_(x.std(0))
        self.ready = True
    return x / self.weight


def starts_by_buffer(self: Any, x: Tensor) -> Tensor:
    if not self.started:
        with torch.no_grad():
            self.weight.copy_(x.std(0))
            self.started.fill_(True)
    return x / self.weight


def assigns(self: Any, x: Tensor) -> Tensor:
    self.weight.data = self.weight.data * 0.5
    return x * self.weight


def pair() -> dict[str, nn.Module]:
    return {"teacher": nn.Linear(4, 4), "student": nn.Linear(4, 4)}


WRITES: dict[str, tuple[Forward, Callable[[], dict[str, Any]], str]] = {
    "clamp": (clamps, dict, "parameters 1.weight"),
    "decay": (decays, dict, "parameters 1.weight"),
    "teacher": (averages, pair, "parameters 1.teacher.bias, 1.teacher.weight"),
    "foreach": (averages_at_once, pair, "parameters 1.teacher.bias, 1.teacher.weight"),
    "flag": (starts_a_scale, lambda: {"ready": False}, r"keeps state .*1\.ready"),
    "buffer": (starts_by_buffer, lambda: {"started": torch.tensor(False)}, r"buffer 1\.started"),
    "assignment": (assigns, dict, r"replaces the data of a tensor"),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", WRITES)
def test_parameters_that_forward_writes_are_put_back_and_named(kind: str, training: bool) -> None:
    forward, attributes, told = WRITES[kind]
    model = within(Made(forward, **attributes())).train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.warns(CaptureWarning, match=told) as caught:
        captured = capture(model, {"input": draws()})
    assert len(caught) == 1
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
        assert value.data_ptr() == captured.state_dict()[name].data_ptr()
    assert_same_calls(model, captured, training)


def test_parameters_written_in_training_only_are_put_back_and_named() -> None:
    def trains(self: Any, x: Tensor) -> Tensor:
        if self.training:
            self.weight.data.mul_(0.5)
        return x * self.weight

    model = nn.Sequential(Made(trains))
    before = model[0].weight.clone()
    with pytest.warns(CaptureWarning):
        captured = capture(model, {"input": draws()})
    assert torch.equal(model[0].weight, before)
    assert_same_calls(model, captured, training=True)


def test_a_graph_of_the_time_before_stays_differentiable() -> None:
    model = within(Made(clamps))
    x = draws()
    with torch.no_grad():
        model[1].weight.clamp_(-1, 1)
    loss = model(x).square().sum()
    with pytest.warns(CaptureWarning):
        capture(model, {"input": x})
    loss.backward()
    assert model[0].weight.grad is not None


def test_tensors_in_plain_attributes_are_written_as_by_the_model() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = torch.zeros(4)

        def forward(self, x: Tensor) -> Tensor:
            self.mean.mul_(0.9).add_(x.detach().mean(0))
            return x - self.mean

    model = within(Plain())
    mean = model[1].mean
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        captured = capture(model, {"input": draws()})
    assert model[1].mean is mean
    assert torch.equal(mean, torch.zeros(4))
    assert_same_calls(model, captured)


def test_sparse_buffers_are_left_alone() -> None:
    model = Made(lambda self, x: x @ self.sparse, sparse=torch.eye(4).to_sparse())
    before = model.sparse
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        captured = capture(model, {"x": draws()})
    assert model.sparse is before
    assert torch.equal(before.to_dense(), torch.eye(4))
    assert captured.sparse is before


# --- draws and hooks ----------------------------------------------------------------------------


DRAWS: dict[str, Forward] = {
    "numpy": lambda self, x: x + float(np.random.rand()),
    "array": lambda self, x: x + torch.from_numpy(np.random.randn(4)).float(),
    "python": lambda self, x: x + random.random(),
}


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("only_training", [False, True])
def test_draws_of_numpy_make_their_module_a_leaf(kind: str, only_training: bool) -> None:
    def noisy(self: Any, x: Tensor) -> Tensor:
        return DRAWS[kind](self, x) if self.training or not only_training else x

    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), Made(noisy)), nn.Linear(4, 4))
    with pytest.warns(CaptureWarning, match="draws from"):
        captured = capture(model, {"input": draws()})
    assert [report.path for report in captured.auto_leaves] == ["0.1"]
    x = draws()
    results = []
    for twin in (model.train(), captured.train()):
        np.random.seed(3)
        random.seed(3)
        results.append([twin(x), twin(x)])
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    assert not torch.equal(*results[1])
    with pytest.raises(CaptureError, match="draws from"):
        capture(Made(noisy), {"x": draws()}, strict=True)


def seeds(self: Any, x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return x + torch.randn(4)


def seeds_in_a_fork(self: Any, x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return x + torch.randn(4)


def forks(self: Any, x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        noise = torch.randn(4)
    return x + noise - torch.randn(4)


def draws_again(self: Any, x: Tensor) -> Tensor:
    state = torch.random.get_rng_state()
    noise = torch.randn(4)
    torch.random.set_rng_state(state)
    return x + noise - 2 * torch.randn(4)


def seeds_the_generator(self: Any, x: Tensor) -> Tensor:
    torch.default_generator.manual_seed(0)
    return x + torch.randn(4)


@pytest.mark.parametrize("only_training", [False, True])
@pytest.mark.parametrize("kind", [seeds, seeds_in_a_fork, forks, draws_again, seeds_the_generator])
def test_seeds_set_in_forward_make_their_module_a_leaf(kind: Forward, only_training: bool) -> None:
    def seeded(self: Any, x: Tensor) -> Tensor:
        return kind(self, x) if self.training or not only_training else x

    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), Made(seeded)), nn.Linear(4, 4))
    torch.manual_seed(0)
    state = torch.get_rng_state()
    example = torch.ones(3, 4)
    with pytest.warns(
        CaptureWarning, match=r"sets torch's random generators .*state\.py:"
    ) as caught:
        captured = capture(model, {"input": example})
    assert len(caught) == 1
    assert torch.equal(torch.get_rng_state(), state)
    assert [report.path for report in captured.auto_leaves] == ["0.1"]
    assert_same_calls(model, captured, training=True)
    assert_same_calls(model, captured)
    with pytest.raises(CaptureError, match=r"itself \(Made\) .* sets torch's random generators"):
        capture(Made(seeded), {"x": example}, strict=True)
    assert torch.random.default_generator is torch.default_generator


def test_a_capture_does_not_move_the_generators_of_numpy_and_python() -> None:
    np.random.seed(3)
    random.seed(3)
    expected = (np.random.rand(), random.random())
    np.random.seed(3)
    random.seed(3)
    with pytest.warns(CaptureWarning):
        capture(within(Made(DRAWS["numpy"])), {"input": draws()})
    assert (np.random.rand(), random.random()) == expected


def reverses(self: Any, x: Tensor) -> Tensor:
    y = x * self.weight
    if y.requires_grad:
        y.register_hook(lambda gradient: -gradient)
    return y


def test_hooks_on_gradients_are_kept_by_a_leaf_or_refused() -> None:
    model = within(Made(reverses))
    with pytest.warns(CaptureWarning, match="hooks the gradient"):
        captured = capture(model, {"input": draws()})
    x, gradients = draws(), []
    for twin in (model, captured):
        model.zero_grad()
        twin(x).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)
    with pytest.raises(CaptureError, match="hooks the gradient"):
        capture(Made(reverses), {"x": draws()})


def test_a_result_that_keeps_its_gradient_keeps_it() -> None:
    def keeps(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * self.weight
        if y.requires_grad:
            y.retain_grad()
        return y, y.square().sum()

    model = Made(keeps)
    captured: CapturedModule = capture(model, {"x": draws()}, strict=True)
    y, loss = captured(draws())
    loss.backward()
    torch.testing.assert_close(y.grad, 2 * y.detach())


@pytest.mark.parametrize("path", ["", "0", "0.1", "0.1.inner", "1"])
@pytest.mark.parametrize("backward", [False, True])
def test_hooks_added_after_a_capture_run_or_are_refused(path: str, backward: bool) -> None:
    inner = Made(lambda self, x: self.inner(x) * self.weight, inner=nn.Linear(4, 4))
    model = nn.Sequential(nn.Sequential(nn.ReLU(), inner), nn.Linear(4, 4))
    captured = capture(model, {"input": draws()}, strict=True)
    module, calls = captured.get_submodule(path), []
    add = module.register_full_backward_hook if backward else module.register_forward_hook
    handle = add(lambda *_: calls.append(path))
    if path in ("0", "0.1"):
        with pytest.raises(GuardError, match=rf"got some on {path}, .*leaves=\['{path}'\]"):
            captured(draws())
    else:
        captured(draws().requires_grad_()).sum().backward()
        assert calls == [path]
    handle.remove()
    captured(draws())


# --- inputs -------------------------------------------------------------------------------------


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
