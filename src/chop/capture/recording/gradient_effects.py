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
"""Methods of tensors that hook a gradient."""
_NODE_HOOKS = frozenset({"register_hook", "register_prehook"})


class FrozenTensors:
    """Parameters and buffers whose `requires_grad` a forward has changed.

    A graph uses them as they are outside, so that a part that is frozen for a while is trained.

    Args:
        running: the paths of the modules whose Python runs at this moment, outermost first.
    """

    def __init__(self, running: Callable[[], tuple[str, ...]]) -> None:
        self._running = running
        self._first: dict[int, tuple[Tensor, bool]] = {}
        self._changed: dict[int, tuple[str, Place]] = {}

    @contextlib.contextmanager
    def changing(self, tensor: Tensor, name: str) -> Iterator[None]:
        """Notes what the block does to the flag of a tensor that the model holds.

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
        """Checks what a node is about to use.

        Raises:
            EffectError: its gradient would be another one in a graph.
        """
        if self._changed and torch.is_grad_enabled():
            for tensor in tensors:
                if id(tensor) in self._changed:
                    raise self._error(*self._changed[id(tensor)], self._running())

    def check_restored(self) -> None:
        """Checks that nothing is left changed at the end of the run.

        Raises:
            EffectError: the model has changed itself.
        """
        for name, place in self._changed.values():
            raise self._error(name, place, place.running)

    def _error(self, name: str, place: Place, seen: tuple[str, ...]) -> EffectError:
        return EffectError(
            f"the model changes requires_grad of {name} while it runs, and its graph would not",
            place,
            seen,
        )


class _WatchedNode:
    """A node of autograd's graph that a model may look at and not hook.

    Args:
        node: the node.
        is_recording: returns true while the model's own Python runs.
    """

    def __init__(self, node: Node, is_recording: Callable[[], bool]) -> None:
        self._node = node
        self._is_recording = is_recording

    def __getattr__(self, name: str) -> Any:
        if name in _NODE_HOOKS and self._is_recording():
            raise CaptureError(f"the model hooks a node of autograd's graph (grad_fn.{name})")
        return watched_node(getattr(self._node, name), self._is_recording)

    def __eq__(self, other: object) -> bool:
        return self._node is (other._node if isinstance(other, _WatchedNode) else other)

    def __hash__(self) -> int:
        return hash(self._node)


def watched_node(value: Any, is_recording: Callable[[], bool]) -> Any:
    """A value, with the nodes of autograd's graph that it is or holds watched."""
    if isinstance(value, tuple):
        return tuple(watched_node(item, is_recording) for item in value)
    return _WatchedNode(value, is_recording) if isinstance(value, Node) else value


@contextlib.contextmanager
def watched_saved_tensors(
    is_recording: Callable[[], bool],
    untraced: Callable[[], contextlib.AbstractContextManager[None]],
) -> Iterator[None]:
    """Refuses a model's own hooks on saved tensors, unless they give back what they are given.

    Those of torch (checkpoints, `save_on_cpu`) save memory and change no gradient.

    Args:
        is_recording: returns true while the model's own Python runs.
        untraced: a context in which nothing is written down.
    """
    enter: Any = saved_tensors_hooks.__enter__

    def watched(hooks: Any) -> Any:
        kind = type(hooks)
        is_from_torch = kind is not saved_tensors_hooks and kind.__module__.startswith("torch.")
        if is_recording() and not is_from_torch:
            with untraced():
                changes = not _gives_back(hooks)
            if changes:
                raise CaptureError(
                    "the model changes what autograd saves for its backward pass "
                    "(saved_tensors_hooks)"
                )
        return enter(hooks)

    saved_tensors_hooks.__enter__ = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        saved_tensors_hooks.__enter__ = enter  # type: ignore[method-assign]


def _gives_back(hooks: Any) -> bool:
    with outside_fake_mode(), torch.no_grad(), contextlib.suppress(Exception):
        probe = torch.tensor([-1e4, -0.7, 0.0, 1e-6, 1 / 3, 2.9])
        given = hooks.unpack_hook(hooks.pack_hook(probe.clone()))
        return isinstance(given, Tensor) and torch.equal(given, probe)
    return False
