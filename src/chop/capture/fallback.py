"""Records a model, and gives up one more part of it each time that a recording stops."""

from __future__ import annotations

import contextlib
import enum
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.capture.attributes import Attributes, Key
from chop.capture.autocast import watched_autocast
from chop.capture.blocked import Blocked, NoShapesError
from chop.capture.draws import NumpyDrawsError
from chop.capture.dtypes import Probe, UnclearError, float_dtypes, may_follow, probes_of
from chop.capture.eager_probe import observe_calls, observe_decisions
from chop.capture.hf_patches import autocast_regions, broadcast_masks
from chop.capture.isolation import patched_calls, untouched
from chop.capture.leaves import GRADIENT_HOOKS, LeafRule, Seen, has_gradient_hooks
from chop.capture.modes import ModesDifferError, merge_modes
from chop.capture.module_tree import member_paths
from chop.capture.recorder import Recorder
from chop.capture.size_functions import size_arithmetic
from chop.capture.symbols import Sizes
from chop.errors import CaptureError

_MOST_ATTEMPTS = 40


def _widened(example: Mapping[str, Any]) -> dict[str, Any]:
    """The example with a batch of two instead of one, since a size of one is never symbolic."""
    tensors = [value for value in example.values() if isinstance(value, Tensor)]
    if not all(tensor.dim() > 0 and tensor.shape[0] == 1 for tensor in tensors):
        return dict(example)
    return {
        name: value.repeat(2, *[1] * (value.dim() - 1)) if isinstance(value, Tensor) else value
        for name, value in example.items()
    }


class Free(enum.Enum):
    """Which dimensions of the inputs are symbolic."""

    ALL = enum.auto()
    BATCH = enum.auto()
    NONE = enum.auto()

    def __call__(self, tensor: Tensor, dim: int) -> bool:
        """Whether a dimension is free. Images keep their size, their sizes cost too much time."""
        first_only = self is Free.BATCH or tensor.dim() >= 4
        return self is not Free.NONE and tensor.shape[dim] > 1 and (dim == 0 or not first_only)


class _StoppedError(Exception):
    """A recording stopped: at which modules, and what was known about sizes by then."""

    def __init__(self, blocked: Sequence[Blocked], sizes: Sizes | None = None) -> None:
        super().__init__(str(blocked[0].error))
        self.blocked = blocked
        self.sizes = sizes


@dataclass
class Recording:
    """What the two runs wrote down, as one graph."""

    recorder: Recorder
    extras: dict[str, nn.Module]
    graphs: tuple[fx.Graph, ...]
    eval_only: Blocked | None = None


@dataclass
class Ladder:
    """One capture: what to record, and what had to be given up so far.

    First everything is recorded with symbolic sizes. What stops the recording becomes a leaf,
    together with all modules of its class, and the recording starts again. If the model's own
    `forward` stops it, decisions on data are taken as on the example, and checked at run time; if
    that is not enough, all sizes but the batch's are fixed, and then that one too.

    Args:
        model: the model.
        example: its example inputs, in the order of the placeholders.
        fixed: further arguments of `forward`.
        leaves: the modules not to look into; it grows.
        strict: raise instead of giving anything up.
        stateful: modules that keep state in attributes, with the reason why no graph can hold them.
        moving: buffers that the model's Python reads and its forward writes.
        before: the last recording of each kind.
        changed_in_training: attributes that the recording in `train()` has changed.
    """

    model: nn.Module
    example: dict[str, Any]
    fixed: dict[str, Any]
    leaves: LeafRule
    strict: bool
    free: Free = Free.ALL
    by_example: bool = False
    seen: dict[Any, list[Seen]] = field(default_factory=dict)
    given_up: dict[str, Blocked] = field(default_factory=dict)
    probes: list[Probe] = field(default_factory=list)
    stateful: dict[str, str] = field(default_factory=dict)
    moving: set[str] = field(default_factory=set)
    changed_in_training: set[Key] = field(default_factory=set)
    watch_numpy: bool = False
    before: dict[Any, Recorder] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.probes = probes_of(self.model)

    def record(self) -> Recording:
        """Records both modes, giving up one more class of submodules after each failure.

        Raises:
            CaptureError: nothing is left to give up.
        """
        for _ in range(_MOST_ATTEMPTS):
            try:
                return self._record_both()
            except _StoppedError as stop:
                self._give_up(stop)
        raise CaptureError(
            f"{type(self.model).__name__} still cannot be written down with "
            f"{len(self.given_up)} kinds of submodules as leaves; pass an outer one in `leaves`"
        )

    def _record_both(self) -> Recording:
        recorder = self._record_one(training=False)
        try:
            in_train, extras = self._record_training(recorder)
        except ModesDifferError as error:
            blocked = [Blocked(path, error.where, error) for path in sorted(error.paths)]
        except _StoppedError as stop:
            if stop.blocked[0].path:
                raise
            blocked = list(stop.blocked)
        else:
            recorder.sizes.add_tests(in_train.sizes)
            return Recording(recorder, extras, (recorder.graph, in_train.graph))
        inner = [block for block in blocked if block.path]
        if inner:
            raise _StoppedError(inner)
        if self.strict:
            raise CaptureError(_advice(self.model, blocked[0])) from blocked[0].error
        return Recording(recorder, {}, (recorder.graph,), blocked[0])

    def _record_training(self, recorder: Recorder) -> tuple[Recorder, dict[str, nn.Module]]:
        """The recording in `train()`, made one with that in `eval()`, and the modules it adds.

        It is made in another dtype where that tells which constants follow the model's.
        """
        if not may_follow(recorder.graph, float_dtypes(self.model)):
            in_train = self._record_one(training=True)
            return in_train, self._merged(recorder, in_train)
        for probe in self.probes:
            try:
                in_train = self._record_one(training=True, probe=probe)
                merged = self._merged(recorder, in_train, probe)
                return in_train, merged
            except ModesDifferError as error:
                blocked = [Blocked(path, error.where, error) for path in error.paths]
                if all(hides_nothing(self.model, block) for block in blocked):
                    raise
                break
            except (_StoppedError, UnclearError):
                continue
        in_train = self._record_one(training=True)
        merged = self._merged(recorder, in_train)
        self.probes = []
        return in_train, merged

    def _merged(
        self, recorder: Recorder, in_train: Recorder, probe: Probe | None = None
    ) -> dict[str, nn.Module]:
        taken = member_paths(self.model)
        return merge_modes(recorder.graph, in_train.graph, probe, recorder.values, taken)

    def _record_one(self, training: bool, probe: Probe | None = None) -> Recorder:
        """One run on fake tensors, after which the model is as before.

        Args:
            training: the mode.
            probe: another dtype to run in.
        """
        decisions = None
        if self.by_example:
            decisions = observe_decisions(self.model, self.example, self.fixed, training)
        symbolic = self.free is not Free.NONE
        alike = (training, self.free, probe)
        recorder = Recorder(
            self.model, self.leaves, symbolic, self.seen, decisions, self.before.get(alike)
        )
        self.before[alike] = recorder
        recorder.stateful, recorder.reads.moving = self.stateful, self.moving
        recorder.watch_numpy = self.watch_numpy
        with contextlib.ExitStack() as stack:
            run = stack.enter_context(untouched(self.model, thorough=True, on_fakes=True))
            recorder.keep = run.tensors.keep
            stack.enter_context(torch.enable_grad())
            stack.enter_context(
                patched_calls(recorder.call_module, recorder.call_autograd_function)
            )
            stack.enter_context(watched_autocast(recorder.regions))
            stack.enter_context(broadcast_masks())
            stack.enter_context(autocast_regions())
            stack.enter_context(size_arithmetic())
            # Hooks on the gradients of the model itself are the captured module's, not the graph's.
            for hooks in GRADIENT_HOOKS:
                setattr(self.model, hooks, OrderedDict())
            # Warnings of a run on fake tensors are about fake values.
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            # Some models keep what they computed in eval() until the next train(); such a leftover
            # would end up in the graph as a constant.
            self.model.train().train(training)
            example = self._recorded_example()
            if probe is not None:
                stack.enter_context(probe.stand_ins(self.model, recorder.stand_in))
                example = probe.cast(example)
            before = Attributes(self.model)
            recorder.reads.held = before.tensors
            fakes = {
                name: recorder.add_input(name, value, self.free) for name, value in example.items()
            }
            try:
                recorder.run(self.model, {**fakes, **self.fixed})
            except Exception as error:
                assert recorder.blocked is not None
                if self.watch_numpy or not isinstance(error, NumpyDrawsError):
                    recorder.blocked.names = {
                        str(symbol): str(name) for symbol, name in recorder.sizes.names().items()
                    }
                    raise _StoppedError([recorder.blocked], recorder.sizes) from error
                self.watch_numpy = True
            else:
                self.changed_in_training |= before.changed() if training else set()
                return recorder
        # The next recording looks for the module that draws.
        return self._record_one(training, probe)

    def _give_up(self, stop: _StoppedError) -> None:
        """Makes the modules at which a recording stopped leaves, or falls back to fixed sizes."""
        for blocked in stop.blocked:
            subject = _needs_shapes(blocked)
            if subject is not None and stop.sizes is not None:
                self.seen[subject] = observe_calls(
                    self.model, self._recorded_example(), self.fixed, subject, stop.sizes
                )
            elif hides_nothing(self.model, blocked):
                self._add_leaves(blocked)
            elif self.strict or not (blocked.path or self.free is not Free.NONE):
                first = self.given_up.get("", blocked)
                raise CaptureError(_advice(self.model, first)) from first.error
            elif not blocked.path:
                self._fix_more()
                self.given_up.setdefault("", blocked)
            else:
                self._add_leaves(blocked)

    def _fix_more(self) -> None:
        if self.by_example:
            self.free = Free.BATCH if self.free is Free.ALL else Free.NONE
        self.by_example = True

    def _recorded_example(self) -> dict[str, Any]:
        return dict(self.example) if self.free is Free.NONE else _widened(self.example)

    def _add_leaves(self, blocked: Blocked) -> None:
        self.leaves.add(path for path, _ in alike(self.model, blocked.path))
        self.given_up[blocked.path] = blocked


def _needs_shapes(blocked: Blocked) -> Any:
    """The leaf or the operator whose output shapes a real run has to show."""
    if isinstance(blocked.error, NoShapesError):
        return blocked.error.operator
    return blocked.path if blocked.needs_shapes else None


def alike(model: nn.Module, path: str) -> list[tuple[str, nn.Module]]:
    """The submodules that are given up together with one: those of its class.

    Modules with hooks on their gradient stand for themselves.
    """
    one = model.get_submodule(path)
    return [
        (name, module)
        for name, module in model.named_modules()
        if type(module) is type(one) and has_gradient_hooks(module) == has_gradient_hooks(one)
    ]


def hides_nothing(model: nn.Module, blocked: Blocked) -> bool:
    """Whether a leaf is only a switch between modes, such as a DropPath without parameters."""
    only_mode = isinstance(blocked.error, ModesDifferError) and bool(blocked.path)
    return only_mode and not any(True for _ in model.get_submodule(blocked.path).parameters())


def _advice(model: nn.Module, blocked: Blocked) -> str:
    """What stopped a capture, where, and the way out."""
    name = type(model.get_submodule(blocked.path)).__name__
    place = f"{blocked.path} ({name})" if blocked.path else f"the model itself ({name})"
    way_out = (
        f"keep it as one node with leaves=[{blocked.path!r}] (custom_ops in MaseGraph)"
        if blocked.path
        else "move these lines into a submodule, which can be kept as one node"
    )
    return f"{place} cannot be written down as a graph: {blocked}; {way_out}"
