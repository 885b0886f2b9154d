"""Dry run: eager calls that reveal a model's outputs, state and writes before it is traced.

The first run also fills the model's own caches (functions under `lru_cache`, global tables) with
real tensors. The recording would otherwise fill them with fake ones.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from chop.base.nested import tree_map
from chop.capture.checks.gradients import Differentiation, Gradients
from chop.capture.recording.leaf_attributes import watch_attributes
from chop.capture.recording.random_state import seed_unusually
from chop.capture.recording.source import current_line, definition_line
from chop.captured.difference import distance
from chop.captured.guards.input_guards import has_several_keys, reverse_keys
from chop.captured.huggingface.cache import copied
from chop.captured.leaves import tensors_in
from chop.captured.state.preserve_state import Snapshot, patched_calls, preserve_state
from chop.captured.state.python_state import Key, PythonState
from chop.private.modules import MODULES, PARAMETERS

MAX_PARAMETERS = 1_000_000_000
"""Maximum number of parameters of a model for a dry run; beyond, a forward pass costs too much."""

_SAME = 1e-5

_CALLS_AHEAD = (10, 1_000, 1_007_998, 1_007_999, 1_008_000)
"""Offsets that simulate later values of a counter. The last two are a multiple of 1 to 10, 128
and 1000 and its predecessor, so that `counter % n` wraps whether the forward pass counts before or
after it reads.
"""


@dataclass
class Call:
    """Arguments, outputs, written state and (if differentiated) gradients of one eager call."""

    arguments: Mapping[str, Any]
    outputs: list[Tensor]
    written: Mapping[str, Tensor]
    gradients: Gradients | None = None


@dataclass
class DryRun:
    """Results of the eager runs of a model.

    Args:
        calls: consecutive calls, on the example and, if the model keeps state, on other inputs.
        changed: attributes that the first call changed.
        stateful: reason by module path for modules that keep state in attributes, which no graph
            can hold.
        unread: attributes that every call changes and that altered no result of the calls tried:
            path, and name with its line.
    """

    calls: list[Call]
    changed: set[Key] = field(default_factory=set)
    stateful: dict[str, str] = field(default_factory=dict)
    unread: list[tuple[str, str]] = field(default_factory=list)


def run_eagerly(
    model: nn.Module,
    example: Mapping[str, Any],
    fixed: Mapping[str, Any],
    training: bool = False,
    probe: bool = True,
) -> DryRun | None:
    """Runs a model on its example inputs and restores it.

    Args:
        model: the model.
        example: its example inputs.
        fixed: further arguments, constant across calls.
        training: the mode.
        probe: whether to test if later calls read the attributes that the first call changes.
    Returns: None if the model fails on the example.
    """
    parameters = list(model.parameters())
    too_large = sum(parameter.numel() for parameter in parameters) > MAX_PARAMETERS
    if too_large or any(parameter.is_meta for parameter in parameters):
        return None
    # A model that cannot run here (its device or kernels are elsewhere) can be captured.
    with (
        contextlib.suppress(Exception),
        preserve_state(model, thorough=True) as run,
        torch.no_grad(),
    ):
        model.train(training)
        # Some models change attributes when they change their mode.
        before = PythonState(model)
        eager_run = DryRun([run_once(model, {**example, **fixed}, run)])
        eager_run.changed = before.changed()
        if eager_run.changed and probe:
            _StateProbe(model, before).find_state(eager_run, {**_altered_inputs(example), **fixed})
        return eager_run
    return None


def run_once(
    model: nn.Module,
    arguments: Mapping[str, Any],
    run: Snapshot,
    differentiation: Differentiation | None = None,
) -> Call:
    """Calls a model from a fixed seed on copies of its inputs.

    Args:
        model: the model.
        arguments: arguments of the call by name.
        run: state of the model before the call.
        differentiation: gradients to compute. Default: none, the call runs without gradients.
    """
    # The model may write into its inputs, which later runs need unchanged.
    own = {name: tree_map(copied, value) for name, value in arguments.items()}
    given, leaves = differentiation.prepare(own) if differentiation else (own, {})
    # The snapshot sees writes into tensors; a buffer that is assigned anew is a different object.
    before = dict(model.named_buffers())
    seed_unusually()
    with torch.set_grad_enabled(differentiation is not None):
        outputs = tensors_in(model(**given))
        gradients = differentiation.gradients(outputs, leaves) if differentiation else None
    outputs = [x.detach() for x in outputs]
    changed = {id(tensor) for tensor in run.tensors.changed()}
    named = [*model.named_parameters(), *model.named_buffers()]
    written = {
        name: x.detach().clone()
        for name, x in named
        if id(x) in changed or _is_replaced(before.get(name, x), x)
    }
    return Call(arguments, outputs, written, gradients)


def _is_replaced(before: Tensor, now: Tensor) -> bool:
    """Returns whether a buffer was replaced by one with other values."""
    return before is not now and not (before.shape == now.shape and torch.equal(before, now))


def is_order_dependent(
    model: nn.Module, example: Mapping[str, Any], fixed: Mapping[str, Any], eager_run: DryRun | None
) -> bool:
    """Returns whether the order of the keys of its inputs changes a model's result.

    Args:
        model: the model; it is restored.
        example: its example inputs.
        fixed: further arguments, constant across calls.
        eager_run: a run on these. None: the model cannot run here; the result is then true.
    """
    if not has_several_keys(list(example.values())):
        return False
    turned = {name: reverse_keys(value) for name, value in example.items()}
    reordered = run_eagerly(model, turned, fixed, probe=False) if eager_run is not None else None
    if reordered is None or eager_run is None:
        return True
    return _differ(eager_run.calls[0], reordered.calls[0])


def _altered_inputs(example: Mapping[str, Any]) -> dict[str, Any]:
    """Returns inputs of the same shapes with other values.

    Tensors are reversed and floating-point ones scaled down, so that a running mean or maximum
    changes too.
    """

    def flipped(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() == 0:
            return value
        turned = value.flip(1 if value.dim() > 1 and value.shape[1] > 1 else 0)
        return turned * 0.75 if value.is_floating_point() else turned

    return {name: tree_map(flipped, value) for name, value in example.items()}


class _StateProbe:
    """Search for the attributes changed by a first call that alter the result of a second call.

    Args:
        model: the model after a first call.
        before: its attributes before that call.
    """

    def __init__(self, model: nn.Module, before: PythonState) -> None:
        self._model = model
        self._before = before
        self._after = PythonState(model)
        self._changing: set[Key] = set()
        self._last = self._after

    def find_state(self, eager_run: DryRun, other: Mapping[str, Any]) -> None:
        """Repeats the second call with and without the attributes that the first call changed.

        Args:
            eager_run: the first call; receives the result.
            other: arguments of the second call; those of the first are used if the model fails on
                them.
        """
        fresh = self._second_call(other, ())
        if fresh is None:
            other = eager_run.calls[0].arguments
            fresh = self._second_call(other, ())
        later = self._second_call(other, None)
        changed = eager_run.changed
        # Parameters and submodules made by the first call are state in any case, read or not.
        built = {key for key in changed if key[1] in (PARAMETERS, MODULES)}
        stateful = built
        if _differ(fresh, later):
            stateful |= self._affecting(
                changed - built, lambda keys: _differ(fresh, self._second_call(other, keys))
            )
        # A value that is set once and then stays the same is a cache, which needs no warning.
        unread = (changed & self._changing) - stateful
        if later is not None:
            stateful |= self._read_later(unread, other, later)
        unread -= stateful
        if not stateful and not unread:
            return
        writers = self._writers(other)
        self._report_stateful(eager_run, stateful, writers)
        eager_run.unread = [(key[0], f"{self._label(key)} ({writers[key][1]})") for key in unread]
        if stateful and later is not None:
            eager_run.calls.append(later)

    def _read_later(self, unread: set[Key], other: Mapping[str, Any], later: Call) -> set[Key]:
        """Returns the counters that alter the result of a call after the second."""
        steps = {key: step for key in unread if (step := self._step(key))}

        def alters(calls: int, keys: Collection[Key]) -> bool:
            ahead = {key: self._before.value(key) + calls * steps[key] for key in keys}
            far = self._second_call(other, None, ahead)
            # A failed call proves nothing: the counter may never reach that value.
            return far is not None and _differ(later, far)

        for calls in _CALLS_AHEAD if steps else ():
            if alters(calls, steps.keys()):
                return self._affecting(steps.keys(), functools.partial(alters, calls))
        return set()

    def _step(self, key: Key) -> float:
        """Returns the increment of a number per call; 0 if it is no number or changes otherwise."""
        first, second, third = (
            attributes.value(key) for attributes in (self._before, self._after, self._last)
        )
        if not all(type(value) in (int, float) for value in (first, second, third)):
            return 0
        step = second - first
        return step if math.isclose(third - second, step) else 0

    def _second_call(
        self,
        arguments: Mapping[str, Any],
        retained: Collection[Key] | None,
        ahead: Mapping[Key, float] | None = None,
    ) -> Any:
        """Runs a second call; returns None if it fails.

        Args:
            arguments: its arguments.
            retained: attributes that keep the values of the first call. None: all.
            ahead: attributes set to the values that a later call would see.
        """
        with contextlib.suppress(Exception), preserve_state(self._model, thorough=True) as run:
            self._before.restore()
            self._after.restore(retained)
            for key, value in (ahead or {}).items():
                self._before.assign(key, value)
            call = run_once(self._model, arguments, run)
            if retained is None and ahead is None:
                self._changing = self._after.changed()
                self._last = PythonState(self._model)
            return call
        return None

    def _affecting(self, keys: Iterable[Key], alters: Callable[[set[Key]], bool]) -> set[Key]:
        """Returns the attributes that alter a result on their own; all if only combinations do."""
        groups = self._groups(keys)
        # One call per attribute; attributes that matter only together cannot be told apart this
        # way.
        alone = [group for group in groups if alters(group)]
        return set().union(*(alone or groups))

    def _groups(self, keys: Iterable[Key]) -> list[set[Key]]:
        groups: dict[str, set[Key]] = {}
        for key in keys:
            groups.setdefault(self._label(key), set()).add(key)
        return list(groups.values())

    def _label(self, key: Key) -> str:
        if self._before.where(key) is not None:
            return key[1]
        return f"{type(self._model.get_submodule(key[0])).__name__}.{key[1]}"

    def _writers(self, arguments: Mapping[str, Any]) -> _Writers:
        with contextlib.suppress(Exception), preserve_state(self._model, thorough=True) as run:
            self._before.restore()
            with _Writers.watch_forwards(self._model, self._before) as writers:
                run_once(self._model, arguments, run)
        return writers

    def _report_stateful(self, eager_run: DryRun, stateful: set[Key], writers: _Writers) -> None:
        reasons: dict[str, list[str]] = {}
        for key in sorted(stateful):
            writer, line = writers[key]
            home = _innermost(writer, key[0])
            inside = self._before.where(key) is None
            name = ".".join(filter(None, key)) if inside else key[1]
            reasons.setdefault(home, []).append(f"{name} ({line})")
        for path, attributes in reasons.items():
            eager_run.stateful[path] = (
                f"the model keeps state between calls in {', '.join(attributes)}; a graph can keep "
                "it in buffers only (self.register_buffer, and self.name.copy_(...) in forward)"
            )


def _innermost(one: str, other: str) -> str:
    """Returns the path of the innermost module that contains both."""
    pairs = zip(one.split("."), other.split("."), strict=False)
    return ".".join(name for name, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


class _Writers(dict[Key, tuple[str, str]]):
    """Modules whose forward sets an attribute, with the line."""

    def __init__(self, model: nn.Module, before: PythonState) -> None:
        super().__init__()
        self._model = model
        self._before = before

    def __missing__(self, key: Key) -> tuple[str, str]:
        # The container was filled in place, which no hook sees: its owner is the likely writer.
        owner = type(self._model.get_submodule(key[0]))
        return key[0], self._before.where(key) or definition_line(owner)

    @classmethod
    @contextlib.contextmanager
    def watch_forwards(cls, model: nn.Module, before: PythonState) -> Iterator[_Writers]:
        """Watches the modules of a model inside the block."""
        writers, running = cls(model, before), [""]
        paths = {id(module): path for path, module in model.named_modules()}

        def call(original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
            running.append(paths.get(id(module), running[-1]))
            try:
                return original(module, *args, **kwargs)
            finally:
                running.pop()

        def apply(original: Any, function: type, args: Any, kwargs: Any) -> Any:
            return original(function, *args, **kwargs)

        def note(module: nn.Module, name: str) -> None:
            if id(module) in paths:
                writers[paths[id(module)], name] = (running[-1], current_line())

        with watch_attributes(note), patched_calls(call, apply):
            yield writers


def _differ(one: Call | None, other: Call | None) -> bool:
    if one is None or other is None:
        return one is not other
    written, others = list(one.written.values()), list(other.written.values())
    # State that is written differently changes a later result, even if this one is the same.
    if len(one.outputs) != len(other.outputs) or one.written.keys() != other.written.keys():
        return True
    pairs = zip([*one.outputs, *written], [*other.outputs, *others], strict=True)
    return any(distance(a, b) > _SAME for a, b in pairs)
