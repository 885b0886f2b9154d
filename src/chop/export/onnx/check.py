"""Verification of ONNX files: onnxruntime must compute the graph's outputs, up to rounding.

Rounding to a grid turns a difference in the last bit into a whole step if a number is next to a
boundary, and following layers can turn it into any number. A graph with roundings is therefore
compared twice. Without roundings, which become clamps to the range of each grid, the tolerance is
small. With roundings, results may differ as much as the roundings themselves explain.
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

WAY_OUT = "no file was written. Express the operator differently, or report the fault to torch"
SHARE = 1e-4
"""Relative difference of numbers that is allowed between runtimes, in float32."""
SHARE_OF_LARGEST = 3e-5
BFLOAT16 = 16
"""`onnx.TensorProto.BFLOAT16`."""
TINY = 1e-30
SPREADS = 20
"""Allowed multiple of the change by one rounding of each result."""


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
"""Replacement of each rounding operator without rounding."""


class _Smooth(TorchDispatchMode):
    """Mode that clamps numbers to the range of each grid instead of rounding them.

    Args:
        moves: reduces each result by at most one step of its dtype.
        ties: adds less than that to zeros as well, so that any of several equal numbers may be the
            largest.
    """

    def __init__(self, moves: bool = False, ties: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator().manual_seed(0) if moves else None
        self._ties = ties

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in CLAMPS:
            return CLAMPS[func](*args)
        result = func(*args, **(kwargs or {}))
        # Views share the memory of their base, which has been moved already.
        aliases = any(each.alias_info is not None for each in get_schema(func).returns)
        if self._generator is None or aliases or not isinstance(result, Tensor):
            return result
        if not result.is_floating_point():
            return result
        share = torch.rand(result.shape, generator=self._generator)
        moved = result * (1 - share * torch.finfo(result.dtype).eps).to(result.dtype)
        return moved + (share * TINY).to(result.dtype) if self._ties else moved


T = TypeVar("T")


@dataclass(frozen=True)
class _Runs(Generic[T]):
    """Results of the graph: a tensor, or one per output.

    Attributes:
        whole: results with formats.
        exact: results without roundings.
        moved: results without roundings, with each intermediate number moved by one step of its
            dtype.
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
    """Checks that onnxruntime computes the graph; warns once if it cannot be imported.

    Args:
        proto: `onnx.ModelProto`.
        smooth: the same without roundings; None if it has none.
        flat: graph that the file was made from.
        inputs: inputs by name.
        whole: results of the graph with its formats, in the order of `flat.outputs`; None if the
            file intentionally is another model.
        weights: folder of the weights; None if `proto` contains them.

    Raises:
        VerificationError: if the file does not run, or computes other results.
    """
    if reason := session.why_missing():
        warn_once(f"{WHERE}: onnxruntime cannot be imported ({reason}), so files are not verified.")
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
            f"{WHERE}: onnxruntime cannot run the file that torch makes of this graph: "
            f"{shorten(first_line(error), 300)}; {way_out}."
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
    """Describes the difference between a file's result and the graph's; "" if they agree."""
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
    """Returns the allowed difference of each number of a result."""
    steps = torch.finfo(runs.whole.dtype).eps / torch.finfo(torch.float32).eps
    whole, exact, moved = (x.double() for x in (runs.whole, runs.exact, runs.moved))
    free = steps * (SHARE * whole.abs() + SHARE_OF_LARGEST * _largest(whole))
    # Sums in another order move each number about as far as `moved`; roundings as far as `exact`.
    free += SPREADS * _largest(moved - exact)
    return free + 2 * _largest(whole - exact) if rounds else free


def _largest(x: Tensor) -> Tensor:
    """Returns the largest finite magnitude; 0 without finite numbers."""
    finite = x.abs().masked_fill(~x.isfinite(), 0)
    return finite.max() if x.numel() else finite.sum()


def _kind(x: Tensor) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}"


def without_roundings(proto: Any) -> Any:
    """Returns a copy with a Clip for each QuantizeLinear and its readers; None if there is none."""
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
