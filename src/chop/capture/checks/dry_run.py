"""Dry run: eager calls of a model before it is traced show its outputs, state and writes.

A first run also fills the caches of a model's own (functions under `lru_cache`, tables in globals)
with real tensors, before a recording could fill them with fake ones.
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
from chop.capture.recording.leaf_attributes import watched_attributes
from chop.capture.recording.random_state import seed_unusually
from chop.capture.recording.source import current_line, definition_line
from chop.captured.difference import distance
from chop.captured.guards.input_guards import backwards, has_several_keys
from chop.captured.huggingface.cache import copied
from chop.captured.leaves import tensors_in
from chop.captured.state.preserve_state import Snapshot, patched_calls, preserve_state
from chop.captured.state.python_state import Key, PythonState
from chop.private.modules import MODULES, PARAMETERS

MAX_PARAMETERS = 1_000_000_000
"""Larger models are not run: a forward pass would cost more than the capture."""

_SAME = 1e-5

_CALLS_AHEAD = (10, 1_000, 1_007_998, 1_007_999, 1_008_000)
"""How far ahead a counter is set: past usual thresholds; the last is a multiple of 1-10, 128 and
1000, so that `counter % n` meets its ends, whether forward counts before it reads or after."""


@dataclass
class Call:
    """One call of a real run: its arguments, its outputs, and the state that it has written.

    Gradients are there where the call was to be differentiated.
    """

    arguments: Mapping[str, Any]
    outputs: list[Tensor]
    written: Mapping[str, Tensor]
    gradients: Gradients | None = None


@dataclass
class DryRun:
    """What real runs of a model show.

    Args:
        calls: calls one after the other, on the example and, where the model keeps state, on
            other inputs.
        changed: attributes that the first call changed.
        stateful: per module the reason why no graph can hold it: it keeps state in attributes.
        unread: attributes that every call changes and that altered no result of the calls that were
            tried: path and a name with its line.
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
    """Runs a model on its example inputs, and leaves it as it was.

    Args:
        model: the model.
        example: its example inputs.
        fixed: further arguments, the same in every call.
        training: the mode.
        probe: whether to find out what later calls make of the attributes that it changes.
    Returns: None if the model cannot run here.
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
            _StateProbe(model, before).find_state(eager_run, {**_other(example), **fixed})
        return eager_run
    return None


def run_once(
    model: nn.Module,
    arguments: Mapping[str, Any],
    run: Snapshot,
    differentiation: Differentiation | None = None,
) -> Call:
    """Calls a model from a fixed seed, on copies of its inputs.

    Args:
        model: the model.
        arguments: arguments of the call by name.
        run: state of the model before the call.
        differentiation: gradients to compute. None: the call is made without gradients.
    """
    # The model may write into its inputs, and they are for several runs.
    own = {name: tree_map(copied, value) for name, value in arguments.items()}
    given, leaves = differentiation.prepare(own) if differentiation else (own, {})
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
        if id(x) in changed or _is_other(before.get(name, x), x)
    }
    return Call(arguments, outputs, written, gradients)


def _is_other(before: Tensor, now: Tensor) -> bool:
    """Tells whether a buffer was replaced by one of other numbers."""
    return before is not now and not (before.shape == now.shape and torch.equal(before, now))


def goes_by_order(
    model: nn.Module, example: Mapping[str, Any], fixed: Mapping[str, Any], eager_run: DryRun | None
) -> bool:
    """Whether a model returns something else where keys of its inputs come in another order.

    Args:
        model: the model; it is left as it was.
        example: its example inputs.
        fixed: further arguments, the same in every call.
        eager_run: a run on these; None where it cannot run here, and anything has to be expected.
    """
    if not has_several_keys(list(example.values())):
        return False
    turned = {name: backwards(value) for name, value in example.items()}
    found = run_eagerly(model, turned, fixed, probe=False) if eager_run is not None else None
    return found is None or eager_run is None or _differ(eager_run.calls[0], found.calls[0])


def _other(example: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs of the same shapes and other data: each tensor back to front, and real ones smaller.

    A mean or a largest value that the model keeps is then another one too.
    """

    def flipped(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() == 0:
            return value
        turned = value.flip(1 if value.dim() > 1 and value.shape[1] > 1 else 0)
        return turned * 0.75 if value.is_floating_point() else turned

    return {name: tree_map(flipped, value) for name, value in example.items()}


class _StateProbe:
    """Asks which of the attributes that a first call has changed alter the result of a second.

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
        """Runs second calls with and without what the first one has left in attributes.

        Args:
            eager_run: the first call; what is found goes there.
            other: arguments for the second call; those of the first where the model fails on them.
        """
        fresh = self._second_call(other, ())
        if fresh is None:
            other = eager_run.calls[0].arguments
            fresh = self._second_call(other, ())
        later = self._second_call(other, None)
        changed = eager_run.changed
        built = {key for key in changed if key[1] in (PARAMETERS, MODULES)}
        stateful = built
        if _differ(fresh, later):
            stateful |= self._affecting(
                changed - built, lambda keys: _differ(fresh, self._second_call(other, keys))
            )
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
        """The counters among these that alter the result of a call after the second."""
        steps = {key: step for key in unread if (step := self._step(key))}

        def alters(calls: int, keys: Collection[Key]) -> bool:
            ahead = {key: self._before.value(key) + calls * steps[key] for key in keys}
            far = self._second_call(other, None, ahead)
            # A call that fails tells nothing: the counter may never come that far.
            return far is not None and _differ(later, far)

        for calls in _CALLS_AHEAD if steps else ():
            if alters(calls, steps.keys()):
                return self._affecting(steps.keys(), functools.partial(alters, calls))
        return set()

    def _step(self, key: Key) -> float:
        """By how much each call moves a number; 0 where it is none or moves otherwise."""
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
        kept: Collection[Key] | None,
        ahead: Mapping[Key, float] | None = None,
    ) -> Any:
        """A call after the first; None: it fails.

        Args:
            arguments: its arguments.
            kept: the attributes that are as the first call left them; None: all.
            ahead: attributes with the values of a call that comes later.
        """
        with contextlib.suppress(Exception), preserve_state(self._model, thorough=True) as run:
            self._before.restore()
            self._after.restore(kept)
            for key, value in (ahead or {}).items():
                self._before.assign(key, value)
            call = run_once(self._model, arguments, run)
            if kept is None and ahead is None:
                self._changing = self._after.changed()
                self._last = PythonState(self._model)
            return call
        return None

    def _affecting(self, keys: Iterable[Key], alters: Callable[[set[Key]], bool]) -> set[Key]:
        """Those of the attributes that alter a result; all, where only several together do."""
        groups = self._groups(keys)
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
            with _Writers.watched(self._model, self._before) as writers:
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
        for path, found in reasons.items():
            eager_run.stateful[path] = (
                f"the model keeps state between calls in {', '.join(found)}; a graph keeps it "
                "in buffers alone (self.register_buffer, and self.name.copy_(...) in forward)"
            )


def _innermost(one: str, other: str) -> str:
    """The path of the innermost module around two."""
    pairs = zip(one.split("."), other.split("."), strict=False)
    return ".".join(name for name, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


class _Writers(dict[Key, tuple[str, str]]):
    """Which module's forward sets an attribute, and on which line."""

    def __init__(self, model: nn.Module, before: PythonState) -> None:
        super().__init__()
        self._model = model
        self._before = before

    def __missing__(self, key: Key) -> tuple[str, str]:
        # A container that was filled in place: by its owner, for all that can be seen.
        owner = type(self._model.get_submodule(key[0]))
        return key[0], self._before.where(key) or definition_line(owner)

    @classmethod
    @contextlib.contextmanager
    def watched(cls, model: nn.Module, before: PythonState) -> Iterator[_Writers]:
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

        with watched_attributes(note), patched_calls(call, apply):
            yield writers


def _differ(one: Call | None, other: Call | None) -> bool:
    if one is None or other is None:
        return one is not other
    written, others = list(one.written.values()), list(other.written.values())
    if len(one.outputs) != len(other.outputs) or one.written.keys() != other.written.keys():
        return True
    pairs = zip([*one.outputs, *written], [*other.outputs, *others], strict=True)
    return any(distance(a, b) > _SAME for a, b in pairs)
