"""Comparison of the gradients of a model and its capture in one call."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.base.nested import tree_map
from chop.private.torch_api import gradient_hooks

_WHOLE = 1 << 16
"""Number of elements above which gradients are compared by projections, to save memory."""

_SEED = 1

_FAINT = 1e-3
"""Share of the largest gradient below which rounding errors exceed the gradient itself."""


@dataclass(frozen=True)
class Gradients:
    """Gradients of the outputs of one call.

    Args:
        required: true for each output that requires a gradient.
        by_name: gradients of parameters and inputs, or projections of large ones; None for tensors
            without a gradient.
        fails: autograd cannot differentiate the call.
    """

    required: tuple[bool, ...]
    by_name: Mapping[str, Tensor | None]
    fails: bool = False


@dataclass(frozen=True)
class Differentiation:
    """Parameters and inputs with respect to which calls are differentiated.

    Args:
        parameters: by name; those that require no gradient are listed without one.
        inputs: names of arguments whose floating-point tensors are included.
    """

    parameters: Mapping[str, Tensor]
    inputs: Collection[str] = ()

    def prepare(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Returns the arguments with gradients enabled, and the differentiated tensors by name.

        Args:
            arguments: copies that nothing else reads.
        """
        leaves: dict[str, Tensor] = {}

        def follow(value: Any) -> Any:
            if not isinstance(value, Tensor) or not _is_differentiable(value):
                return value
            leaves[f"input tensor {len(leaves)}"] = leaf = value.detach().requires_grad_()
            # A model may write into its inputs, which autograd forbids for a leaf.
            return leaf.clone()

        given = {
            name: tree_map(follow, value) if name in self.inputs else value
            for name, value in arguments.items()
        }
        return given, leaves

    def gradients(self, outputs: Sequence[Tensor], leaves: Mapping[str, Tensor]) -> Gradients:
        """Returns the gradients of the sum of all outputs, each weighted by a fixed random tensor.

        Args:
            outputs: outputs of a call.
            leaves: from `prepare`.
        """
        required = tuple(x.requires_grad for x in outputs)
        sources = {**self.parameters, **leaves}
        wanted = {name: x for name, x in sources.items() if x.requires_grad}
        ends = [x for x in outputs if x.requires_grad and _is_differentiable(x)]
        gradients: Sequence[Tensor | None] = [None] * len(wanted)
        if ends and wanted:
            try:
                with _without_hooks(self.parameters.values()):
                    gradients = torch.autograd.grad(
                        ends, list(wanted.values()), list(map(_direction, ends)), allow_unused=True
                    )
            except Exception:  # reentrant checkpoints, operators without a derivative
                return Gradients(required, {}, fails=True)
        sketches = dict(zip(wanted, map(_sketch, gradients), strict=True))
        return Gradients(required, {name: sketches.get(name) for name in sources})


def difference(captured: Gradients, expected: Gradients, tolerance: float) -> tuple[str, set[str]]:
    """Describes the difference of two sets of gradients; "" if there is none.

    Args:
        captured: gradients of the capture.
        expected: gradients of the model.
        tolerance: relative to the largest entry of each gradient.
    """
    # A detached output trains nothing, which no comparison of values shows.
    if captured.required != expected.required:
        what = "an output requires a gradient, unlike the model's"
        if sum(captured.required) < sum(expected.required):
            what = "an output requires no gradient, unlike the model's"
        return what, set()
    if expected.fails:
        return "", set()
    if captured.fails:
        return "autograd can differentiate the model but not its capture", set()
    for one, other, text in (
        (captured, expected, "has a gradient, unlike in the model"),
        (expected, captured, "has no gradient, unlike in the model"),
    ):
        only = [n for n, x in one.by_name.items() if x is not None and other.by_name[n] is None]
        if only:
            return f"{only[0]} {text}", set(only)
    known = {
        name: x
        for name, x in expected.by_name.items()
        if x is not None and not _is_equal(captured.by_name[name], x)
    }
    # One comparison of all gradients at once settles the usual case. Only if it fails is each
    # gradient compared on its own.
    if not known or _are_close(captured, expected, known, tolerance * _FAINT):
        return "", set()
    # A gradient that is zero in exact arithmetic consists of rounding errors, which differ.
    floor = _FAINT * max(_largest(x) for x in expected.by_name.values() if x is not None)
    errors = {name: _error(captured.by_name[name], x, floor) for name, x in known.items()}
    wrong = {name for name, error in errors.items() if error > tolerance}
    if not wrong:
        return "", wrong
    worst = max(wrong, key=errors.__getitem__)
    return (
        f"the gradient of {worst} differs from the model's by up to {errors[worst]:.2g} of its "
        "largest entry",
        wrong,
    )


def _is_equal(captured: Tensor | None, expected: Tensor) -> bool:
    return (
        captured is not None
        and captured.dtype == expected.dtype
        and torch.equal(captured, expected)
    )


def _are_close(
    captured: Gradients, expected: Gradients, names: Iterable[str], tolerance: float
) -> bool:
    """Returns whether all differences are below a share of the largest entry of all gradients."""
    pairs = [(captured.by_name[name], expected.by_name[name]) for name in names]
    if any(x is None or y is None or x.shape != y.shape for x, y in pairs):
        return False
    # Parameters may be on several devices.
    ours, theirs = (
        torch.cat([_real(x).flatten().cpu() for x in xs]) for xs in zip(*pairs, strict=True)
    )
    return _norm(ours - theirs) <= tolerance * _norm(theirs)


def _error(captured: Tensor | None, expected: Tensor, floor: float) -> float:
    if captured is None or captured.shape != expected.shape:
        return float("inf")
    ours, theirs = _real(captured), _real(expected)
    gaps = ours - theirs
    gap = _norm(gaps)
    if not math.isfinite(gap):
        # Equal infinities and NaNs on both sides are no difference; subtracting them gives NaN.
        both = (ours == theirs) | (ours.isnan() & theirs.isnan())
        gap = _norm(torch.where(both, 0.0, gaps).nan_to_num(float("inf")))
    return gap / max(_largest(expected), floor, torch.finfo(torch.float32).tiny)


def _norm(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values, float("inf"))) if values.numel() else 0.0


def _largest(tensor: Tensor) -> float:
    """Returns the largest finite absolute value."""
    values = _real(tensor)
    largest = _norm(values)
    if math.isfinite(largest):
        return largest
    finite = values[values.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0


def _real(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


def _is_differentiable(tensor: Tensor) -> bool:
    known = tensor.is_floating_point() or tensor.is_complex()
    return known and tensor.layout is torch.strided


def _direction(tensor: Tensor) -> Tensor:
    return _fixed(tuple(tensor.shape), tensor)


def _fixed(shape: tuple[int, ...], like: Tensor) -> Tensor:
    # The CPU's generator gives the same direction for the model and its capture on any device.
    generator = torch.Generator().manual_seed(_SEED)
    dtype = like.dtype if like.dtype.itemsize >= 4 else torch.float32
    return torch.randn(shape, generator=generator, dtype=dtype).to(like.device, like.dtype)


def _sketch(gradient: Tensor | None) -> Tensor | None:
    if gradient is None:
        return None
    gradient = gradient.detach()
    if gradient.layout is not torch.strided:
        gradient = gradient.to_dense()
    if gradient.numel() <= _WHOLE:
        return gradient
    # A product with a random vector differs if a row does, and takes a column of memory.
    rows = gradient.reshape(gradient.shape[0], -1)
    return rows @ _fixed((rows.shape[1],), rows)


@contextlib.contextmanager
def _without_hooks(tensors: Collection[Tensor]) -> Iterator[None]:
    """Disables the caller's gradient hooks inside the block."""
    hooks = [hook for tensor in tensors if (hook := gradient_hooks(tensor))]
    held = [dict(hook) for hook in hooks]
    for hook in hooks:
        hook.clear()
    try:
        yield
    finally:
        for hook, content in zip(hooks, held, strict=True):
            hook.update(content)
