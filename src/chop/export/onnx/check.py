"""Check of an ONNX file: onnxruntime computes what the graph does, up to rounding.

A rounding to a grid turns a difference of the last bit into one of a whole step where a number
lies next to a boundary, and the layers after it into any number. So a graph with roundings is
compared twice: without them, closely, as a clamp to the range of each grid instead; and with them,
where results may differ by what the roundings themselves change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from chop.base.notices import warn_once
from chop.captured.state.preserve_state import preserve_state
from chop.errors import VerificationError, first_line, shorten
from chop.export.graphs.flat import WHERE, FlatGraph
from chop.export.onnx import session
from chop.export.onnx.operators import DEQUANTIZE, QUANTIZE, written_ends
from chop.private.torch_api import TorchDispatchMode, get_schema

WAY_OUT = "no file was written; say the operator in question in other terms, or report it to torch"
SHARE = 1e-4
"""Of each number, by which two runtimes may differ, in float32."""
SHARE_OF_LARGEST = 3e-5
BFLOAT16 = 16
"""`onnx.TensorProto.BFLOAT16`."""
TINY = 1e-30
SPREADS = 20
"""How many times the change by one rounding of each result."""


def _clamp_codes(x: Tensor, scale: Tensor, low: int, high: int) -> Tensor:
    low, high = written_ends(low, high)
    return x.clamp(low * scale, high * scale)


CLAMPS: Mapping[Any, Callable[..., Tensor]] = {
    torch.ops.chop.onnx_round.default: _clamp_codes,
    torch.ops.chop.qonnx_quant.default: lambda x, scale, low, high, floors: x.clamp(
        low * scale, high * scale
    ),
    torch.ops.chop.qonnx_bipolar.default: lambda x, scale: x.clamp(-scale, scale),
}
"""What each operator that rounds does without rounding."""


class _Smooth(TorchDispatchMode):
    """Inside, grids are ranges: numbers are clamped, not rounded.

    Args:
        moves: makes each result smaller by at most one step of its dtype.
        ties: adds less than that to zeros too, so that of equal numbers any may be the largest.
    """

    def __init__(self, moves: bool = False, ties: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator().manual_seed(0) if moves else None
        self._ties = ties

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in CLAMPS:
            return CLAMPS[func](*args)
        found = func(*args, **(kwargs or {}))
        aliases = any(each.alias_info is not None for each in get_schema(func).returns)
        if self._generator is None or aliases or not isinstance(found, Tensor):
            return found
        if not found.is_floating_point():
            return found
        share = torch.rand(found.shape, generator=self._generator)
        moved = found * (1 - share * torch.finfo(found.dtype).eps).to(found.dtype)
        return moved + (share * TINY).to(found.dtype) if self._ties else moved


T = TypeVar("T")


@dataclass(frozen=True)
class _Runs(Generic[T]):
    """Results of the graph: a tensor, or one per output.

    Attributes:
        whole: with its formats.
        exact: without its roundings.
        moved: without them, with each number on the way moved by one step of its dtype.
    """

    whole: T
    exact: T
    moved: T


def check(
    proto: Any,
    smooth: Any,
    flat: FlatGraph,
    inputs: Mapping[str, Tensor],
    whole: Any = None,
    weights: Path | None = None,
) -> None:
    """Checks that onnxruntime computes the graph; says once where it cannot be imported.

    Args:
        proto: the `onnx.ModelProto`.
        smooth: the same without roundings; None if there are none.
        flat: the graph that it was made of.
        inputs: by name.
        whole: results of the graph with its formats, in the order of `flat.outputs`; None where
            the file is another model on purpose.
        weights: the folder of the weights; None where `proto` has them.

    Raises:
        VerificationError: the file does not run, or computes something else.
    """
    if reason := session.why_missing():
        warn_once(f"{WHERE}: onnxruntime cannot be imported ({reason}), so files are not run.")
        return
    runs = _runs(flat, inputs, whole)
    if smooth is None:
        _compare(flat.outputs, _results(proto, inputs, weights), runs)
    else:
        smoothed = _results(smooth, inputs, weights)
        _compare(flat.outputs, smoothed, replace(runs, whole=runs.exact))
        _compare(flat.outputs, _results(proto, inputs, weights), runs, rounds=True)


def _runs(flat: FlatGraph, inputs: Mapping[str, Tensor], whole: Any) -> _Runs[Sequence[Tensor]]:
    def run(mode: Any, seed: int = 0) -> Any:
        with preserve_state(flat.module), torch.no_grad(), mode:
            torch.manual_seed(seed)  # what is drawn at random may differ as much as it does here
            return flat.module(*inputs.values())

    exact = run(_Smooth())
    ties = not all(x.is_floating_point() for x in exact)
    return _Runs(whole or run(nullcontext()), exact, run(_Smooth(True, ties), seed=1))


def _results(proto: Any, inputs: Mapping[str, Tensor], weights: Path | None) -> list[Tensor]:
    try:
        return session.run(proto, inputs, weights)
    except Exception as error:
        is_bfloat16 = any(x.data_type == BFLOAT16 for x in proto.graph.initializer)
        way_out = "call mg.model.float() first" if is_bfloat16 else WAY_OUT
        # onnxruntime has a class of its own for each of its codes, all direct ones of Exception.
        raise VerificationError(
            f"{WHERE}: expected a file that onnxruntime runs, but of the one that torch makes of "
            f"this graph it says: {shorten(first_line(error), 300)}; {way_out}."
        ) from error


def _compare(
    names: Sequence[str], got: Sequence[Tensor], runs: _Runs[Sequence[Tensor]], rounds: bool = False
) -> None:
    for name, ours, *theirs in zip(names, got, runs.whole, runs.exact, runs.moved, strict=True):
        what = _difference(ours, _Runs(*theirs), rounds)
        if what:
            raise VerificationError(
                f"{WHERE}: onnxruntime computes another '{name}' from the file that torch makes "
                f"of this graph: {what}; {WAY_OUT}."
            )


def _difference(got: Tensor, runs: _Runs[Tensor], rounds: bool) -> str:
    """How a result of the file is not that of the graph; "" where it is."""
    whole = runs.whole
    if (got.shape, got.dtype) != (whole.shape, whole.dtype):
        return f"{_kind(got)} instead of {_kind(whole)}"
    if not whole.dtype.is_floating_point:
        changed, free = (got != whole).sum(), SPREADS * (runs.moved != runs.exact).sum()
        return "" if rounds or changed <= free else f"{changed} of {got.numel()} values differ"
    free = _rounding(runs, rounds)
    same = (got == whole) | (got.isnan() & whole.isnan())
    apart = (got.double() - whole.double()).abs()
    beyond = ~(same | (apart <= free))
    if not beyond.any():
        return ""
    return (
        f"{beyond.sum()} of {got.numel()} values differ by up to {apart[beyond].max():.3g}, "
        f"where rounding explains {free.max():.3g}"
    )


def _rounding(runs: _Runs[Tensor], rounds: bool) -> Tensor:
    """By how much each number of a result may differ."""
    steps = torch.finfo(runs.whole.dtype).eps / torch.finfo(torch.float32).eps
    whole, exact, moved = (x.double() for x in (runs.whole, runs.exact, runs.moved))
    free = steps * (SHARE * whole.abs() + SHARE_OF_LARGEST * _largest(whole))
    free += SPREADS * _largest(moved - exact)
    return free + 2 * _largest(whole - exact) if rounds else free


def _largest(x: Tensor) -> Tensor:
    """The largest magnitude of finite numbers; 0 of none."""
    finite = x.abs().masked_fill(~x.isfinite(), 0)
    return finite.max() if x.numel() else finite.sum()


def _kind(x: Tensor) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}"


def without_roundings(proto: Any) -> Any:
    """A copy with a Clip for each QuantizeLinear and its readers; None if there are none."""
    from onnx import ModelProto, TensorProto, helper, numpy_helper

    rounded = {n.output[0] for n in proto.graph.node if n.op_type == QUANTIZE}
    if not rounded:
        return None
    smooth = ModelProto()
    smooth.CopyFrom(proto)
    del smooth.graph.value_info[:]  # says that codes are uint8
    constants = {each.name: each for each in smooth.graph.initializer}
    nodes: list[Any] = []
    for node in smooth.graph.node:
        if node.op_type == QUANTIZE:
            x, scale, zero_name = node.input
            zero = int(numpy_helper.to_array(constants[zero_name]))
            ends = [f"{node.output[0]}/{end}" for end in ("low", "high")]
            for end, k in zip(ends, (-zero, 255 - zero), strict=True):
                k_name = f"{end}/k"
                smooth.graph.initializer.append(
                    helper.make_tensor(k_name, TensorProto.FLOAT, [], [k])
                )
                nodes.append(helper.make_node("Mul", [scale, k_name], [end]))
            nodes.append(helper.make_node("Clip", [x, *ends], [node.output[0]]))
        elif node.op_type == DEQUANTIZE and node.input[0] in rounded:
            nodes.append(helper.make_node("Identity", [node.input[0]], [node.output[0]]))
        else:
            nodes.append(node)
    del smooth.graph.node[:]
    smooth.graph.node.extend(nodes)
    return smooth
