"""Side effects on gradients that no node records: frozen parameters and backward hooks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node, saved_tensors_hooks

from chop.capture.recording.graph_break import EffectError, Place
from chop.capture.recording.source import current_line
from chop.errors import CaptureError
from chop.private.symbolic_shapes import outside_fake_mode

GRADIENT_HOOKS = frozenset({"register_hook", "register_post_accumulate_grad_hook"})
"""Tensor methods that hook a gradient."""
_NODE_HOOKS = frozenset({"register_hook", "register_prehook"})


class FrozenTensors:
    """Parameters and buffers whose `requires_grad` the forward pass has changed.

    A graph uses them with their outer setting, so a temporarily frozen part would be trained.

    Args:
        running: paths of the modules whose Python is running, outermost first.
    """

    def __init__(self, running: Callable[[], tuple[str, ...]]) -> None:
        self._running = running
        self._first: dict[int, tuple[Tensor, bool]] = {}
        self._changed: dict[int, tuple[str, Place]] = {}

    @contextlib.contextmanager
    def changing(self, tensor: Tensor, name: str) -> Iterator[None]:
        """Records a change of the flag of a tensor inside the block.

        Args:
            tensor: the parameter or buffer.
            name: name of the tensor in the model.
        """
        _, before = self._first.setdefault(id(tensor), (tensor, tensor.requires_grad))
        yield
        if tensor.requires_grad == before:
            self._changed.pop(id(tensor), None)
        else:
            self._changed[id(tensor)] = (name, Place(self._running(), current_line()))

    def check(self, tensors: Iterable[Tensor]) -> None:
        """Checks the tensors that a node is about to read.

        Raises:
            EffectError: the gradient would differ in a graph.
        """
        if self._changed and torch.is_grad_enabled():
            for tensor in tensors:
                if id(tensor) in self._changed:
                    raise self._error(*self._changed[id(tensor)], self._running())

    def check_restored(self) -> None:
        """Checks that all flags are restored at the end of the run.

        Raises:
            EffectError: the model has changed a flag permanently.
        """
        for name, place in self._changed.values():
            raise self._error(name, place, place.running)

    def _error(self, name: str, place: Place, seen: tuple[str, ...]) -> EffectError:
        return EffectError(
            f"the model changes requires_grad of {name} while it runs, which a graph cannot",
            place,
            seen,
        )


class _WatchedNode:
    """Proxy of an autograd node that a model may inspect but not hook.

    Args:
        node: the node.
        is_recording: returns true while the model's own Python runs.
    """

    def __init__(self, node: Node, is_recording: Callable[[], bool]) -> None:
        self._node = node
        self._is_recording = is_recording

    def __getattr__(self, name: str) -> Any:
        if name in _NODE_HOOKS and self._is_recording():
            raise CaptureError(f"the model registers a hook on an autograd node (grad_fn.{name})")
        return watch_node(getattr(self._node, name), self._is_recording)

    def __eq__(self, other: object) -> bool:
        return self._node is (other._node if isinstance(other, _WatchedNode) else other)

    def __hash__(self) -> int:
        return hash(self._node)


def watch_node(value: Any, is_recording: Callable[[], bool]) -> Any:
    """Returns a value with its autograd nodes replaced by proxies."""
    if isinstance(value, tuple):
        return tuple(watch_node(item, is_recording) for item in value)
    return _WatchedNode(value, is_recording) if isinstance(value, Node) else value


@contextlib.contextmanager
def refuse_saved_tensor_hooks(
    is_recording: Callable[[], bool],
    untraced: Callable[[], contextlib.AbstractContextManager[None]],
) -> Iterator[None]:
    """Refuses a model's own hooks on saved tensors, unless they return their argument unchanged.

    Hooks of torch (checkpointing, `save_on_cpu`) save memory without changing gradients.

    Args:
        is_recording: returns true while the model's own Python runs.
        untraced: context that disables tracing.
    """
    enter: Any = saved_tensors_hooks.__enter__

    def checked(hooks: Any) -> Any:
        kind = type(hooks)
        is_from_torch = kind is not saved_tensors_hooks and kind.__module__.startswith("torch.")
        if is_recording() and not is_from_torch:
            with untraced():
                changes = not _is_identity(hooks)
            if changes:
                raise CaptureError(
                    "the model changes the tensors that autograd saves for the backward pass "
                    "(saved_tensors_hooks)"
                )
        return enter(hooks)

    saved_tensors_hooks.__enter__ = checked  # type: ignore[method-assign]
    try:
        yield
    finally:
        saved_tensors_hooks.__enter__ = enter  # type: ignore[method-assign]


def _is_identity(hooks: Any) -> bool:
    with outside_fake_mode(), torch.no_grad(), contextlib.suppress(Exception):
        probe = torch.tensor([-1e4, -0.7, 0.0, 1e-6, 1 / 3, 2.9])
        given = hooks.unpack_hook(hooks.pack_hook(probe.clone()))
        return isinstance(given, Tensor) and torch.equal(given, probe)
    return False
