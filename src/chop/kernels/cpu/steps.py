"""Lists of steps: recorded tensor operations that run again in one call of C++."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from chop.formats import from_key
from chop.formats.operators import OPERATORS
from chop.kernels.codes import Codes, Packed
from chop.kernels.cpu.build import library
from chop.kernels.cpu.reader import LARGE, fixed_reader
from chop.private.torch_api import TorchDispatchMode, get_schema

DIMS = 5
"""Largest number of dimensions."""
UNARY = ("neg", "rsqrt", "silu", "sigmoid", "tanh", "exp", "cos", "sin", "relu")
BINARY = ("add", "sub", "mul", "div")
COPIES = ("clone", "_to_copy")

OPERATORS.define("attend(Tensor query, Tensor key, Tensor value, int layer, float scale) -> Tensor")


def attend(query: Tensor, key: Tensor, value: Tensor, layer: int, scale: float) -> Tensor:
    """Returns the attention of one token to itself; recorded steps attend to the cache as well.

    Args:
        query: (1, heads, 1, size).
        key: (1, key heads, 1, size).
        value: (1, key heads, 1, size).
        layer: number of the cache.
        scale: factor of the scores.
    Returns: (1, 1, heads, size).
    """
    groups = query.size(1) // key.size(1)
    return value.repeat_interleave(groups, dim=1).transpose(1, 2).contiguous()


OPERATORS.impl("attend", attend, "CompositeExplicitAutograd")


class _Step(ctypes.Structure):
    """A step. `steps.cpp` documents the fields."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("layer", ctypes.c_int32),
        ("shape", ctypes.c_int64 * DIMS),
        ("strides", (ctypes.c_int64 * DIMS) * 3),
        ("operands", ctypes.c_void_p * 3),
        ("result", ctypes.c_void_p),
        ("scalar", ctypes.c_float),
        ("outputs", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("codes", ctypes.POINTER(Codes)),
        ("packed", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class Steps:
    """List of steps.

    Attributes:
        loops: compiled library.
        steps: array of `_Step`.
        alive: memory that the steps read and write.
        caches: heads and size of a head, by layer.
        kinds: numbers of the kinds of steps by name.
    """

    loops: ctypes.CDLL
    steps: Any
    alive: list[Any]
    caches: dict[int, tuple[int, int]]
    kinds: dict[str, int]

    def run(self, keys: Sequence[int], values: Sequence[int], tokens: int, position: int) -> None:
        """Runs the steps for one token.

        Args:
            keys: addresses of the keys by layer, (heads, tokens, size), float32.
            values: addresses of the values by layer, like the keys.
            tokens: size of a cache.
            position: number of tokens before this one.
        """
        self.loops.chop_run_steps(
            self.steps,
            ctypes.c_int64(len(self.steps)),
            (ctypes.c_void_p * len(keys))(*keys),
            (ctypes.c_void_p * len(values))(*values),
            ctypes.c_int64(tokens),
            ctypes.c_int64(position),
            torch.get_num_threads(),
        )


class UnsupportedStepError(Exception):
    """Operation that a list of steps cannot run; the message names it."""


@lru_cache(maxsize=1)
def _loops() -> tuple[ctypes.CDLL, dict[str, int]]:
    """Returns the C++ library, and its numbers of the kinds of steps by name.

    Raises:
        UnsupportedStepError: if there is no library, or if it is not of this version.
    """
    loops = library().library
    if loops is None:
        raise UnsupportedStepError("there is no C++ compiler")
    # Files that change while Python runs are compiled as they are then.
    if loops.chop_step_bytes() != ctypes.sizeof(_Step):
        raise UnsupportedStepError("the C++ library is of another version; restart Python")
    loops.chop_step_kinds.restype = ctypes.c_char_p
    names = loops.chop_step_kinds().decode().lower().split()
    return loops, {name: number for number, name in enumerate(names)}


class StepRecorder(TorchDispatchMode):
    """Recorder of the operations that depend on some tensors, while they run once.

    Other operations run once, and their results are constants. Results of the recorded run are the
    memory of later runs.

    Args:
        inputs: tensors that change between runs; their memory stays in place.
        weights: tensors that may change between runs, and that no step may write.

    Raises:
        UnsupportedStepError: if there is no C++ library, and during an operation that cannot be
            recorded.
    """

    def __init__(self, inputs: Sequence[Tensor], weights: Sequence[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._library, self._kinds = _loops()
        self._steps: list[_Step] = []
        # Tensors can move to other memory, as in `model.to(dtype)`, but storages cannot.
        self._alive: list[Any] = [x.untyped_storage() for x in (*inputs, *weights)]
        self._caches: dict[int, tuple[int, int]] = {}
        self._changing = {storage.data_ptr() for storage in self._alive}
        self._weights = {_memory(x) for x in weights}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, and records it."""
        result = func(*args, **(kwargs or {}))
        given = [x for x in _flat((*args, *(kwargs or {}).values())) if isinstance(x, Tensor)]
        results = [x for x in _flat([result]) if isinstance(x, Tensor)]
        self._alive += [x.untyped_storage() for x in (*given, *results)]
        if any(_memory(x) in self._changing for x in given):
            self._record(func, args, kwargs or {}, result, given)
        return result

    def finish(self) -> Steps:
        """Returns the recorded steps."""
        steps = (_Step * len(self._steps))(*self._steps)
        return Steps(self._library, steps, self._alive, self._caches, self._kinds)

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any, given: list[Tensor]) -> None:
        schema = get_schema(func)
        name = schema.name.partition("::")[2]
        if schema.is_mutable:
            name, target = name.removesuffix("_"), args[0]
            if result is not target or _memory(target) not in self._changing - self._weights:
                raise UnsupportedStepError(f"{schema.name} writes to a constant")
        elif _are_views(result, given):
            return
        self._changing |= {_memory(x) for x in _flat([result]) if isinstance(x, Tensor)}
        record = getattr(self, f"record_{name}", None)
        if name in UNARY:
            self._lines(name, result, args[0])
        elif name in BINARY and not {"alpha", "rounding_mode"} & {*kwargs} and len(args) == 2:
            self._lines(name, result, *args)
        elif name in COPIES:
            kind = "copy_integer" if args[0].dtype == torch.int64 else "copy"
            self._lines(kind, result, args[0])
        elif record is not None:
            try:
                record(result, *args, **kwargs)
            except TypeError:  # an argument that the step lacks
                raise UnsupportedStepError(f"{schema.name} has other arguments") from None
        else:
            raise UnsupportedStepError(f"{schema.name} is not supported")

    def _lines(self, kind: str, result: Tensor, *operands: Any) -> None:
        """Adds a step on elements; operands are broadcast."""
        shape = result.shape
        step = self._step(kind, result, shape, result.stride())
        for index, x in enumerate(operands):
            if isinstance(x, Tensor):
                self._set(step, index, x, x.expand(shape).stride(), kind == "copy_integer")
            elif index:
                step.scalar = float(x)
            else:
                raise UnsupportedStepError(f"{kind} of a number and a tensor is not supported")

    def _step(
        self, kind: str, result: Tensor, shape: Sequence[int], strides: Sequence[int]
    ) -> _Step:
        if len(shape) > DIMS or result.dtype != torch.float32:
            raise UnsupportedStepError(f"{kind} of {len(shape)} dimensions in {result.dtype}")
        step = _Step(kind=self._kinds[kind], result=result.data_ptr())
        step.shape[:] = _padded(shape, 1)
        step.strides[2][:] = _padded(strides, 0)
        self._steps.append(step)
        return step

    def _set(
        self, step: _Step, index: int, x: Tensor, strides: Sequence[int], is_integer: bool = False
    ) -> None:
        if x.dtype != (torch.int64 if is_integer else torch.float32) or not x.is_cpu:
            raise UnsupportedStepError(f"{[*self._kinds][step.kind]} of {x.dtype}")
        step.operands[index] = x.data_ptr()
        step.strides[index][:] = _padded(strides, 0)

    def record_pow(self, result: Tensor, x: Tensor, exponent: Any) -> None:
        """Records squares and cubes."""
        if isinstance(exponent, Tensor) or exponent not in (2, 3):
            raise UnsupportedStepError(f"a power of {exponent} is not supported")
        self._lines("square", result, x)
        if exponent == 3:
            self._lines("mul", result, result, x)

    def record_gelu(self, result: Tensor, x: Tensor, approximate: str = "none") -> None:
        """Records GELU, exact or by tanh."""
        self._lines("gelu" if approximate == "none" else "gelu_tanh", result, x)

    def record_native_layer_norm(
        self,
        results: tuple[Tensor, Tensor, Tensor],
        x: Tensor,
        shape: Sequence[int],
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
    ) -> None:
        """Records a normalization as steps on elements."""
        y, mean, factor = results
        squares = y.new_empty(y.shape)
        self._alive.append(squares.untyped_storage())
        self.record_mean(mean, x, (-1,) if len(shape) == 1 else (), keepdim=True)
        self._lines("sub", y, x, mean)
        self._lines("square", squares, y)
        self.record_mean(factor, squares, (-1,), keepdim=True)
        self._lines("add", factor, factor, eps)
        self._lines("rsqrt", factor, factor)
        self._lines("mul", y, y, factor)
        if weight is not None:
            self._lines("mul", y, y, weight)
        if bias is not None:
            self._lines("add", y, y, bias)

    def record_mean(
        self, result: Tensor, x: Tensor, dims: Sequence[int] = (), keepdim: bool = False, **_: Any
    ) -> None:
        """Records means over the last dimension."""
        if [d % x.ndim for d in dims] != [x.ndim - 1]:
            raise UnsupportedStepError("means are supported over the last dimension only")
        result = result if keepdim else result.unsqueeze(-1)
        step = self._step("mean", result, x.shape, result.stride())
        self._set(step, 0, x, x.stride())

    def record_cat(self, result: Tensor, parts: list[Tensor], dim: int = 0) -> None:
        """Records a copy of each part."""
        sizes = [x.size(dim) for x in parts]
        for target, x in zip(result.split(sizes, dim), parts, strict=True):
            self._lines("copy", target, x)

    def record_mm(self, result: Tensor, a: Tensor, b: Tensor) -> None:
        """Records a product of two matrices."""
        self.record_bmm(result[None], a[None], b[None])

    def record_addmm(self, result: Tensor, bias: Tensor, a: Tensor, b: Tensor) -> None:
        """Records a product and a sum."""
        self.record_mm(result, a, b)
        self._lines("add", result, result, bias)

    def record_bmm(self, result: Tensor, a: Tensor, b: Tensor) -> None:
        """Records products of float matrices, which are slow."""
        batch, rows, inner = a.shape
        outputs = b.size(2)
        if inner * outputs >= LARGE:
            raise UnsupportedStepError("a large layer is not packed")
        step = self._step("product", result, (batch, rows, outputs, inner), (*result.stride(), 0))
        self._set(step, 0, a, (a.stride(0), a.stride(1), 0, a.stride(2)))
        self._set(step, 1, b, (b.stride(0), 0, b.stride(2), b.stride(1)))

    def record_packed_linear(
        self,
        result: Tensor,
        x: Tensor,
        x_key: str,
        codes: Tensor,
        scales: Tensor | None,
        tensor_scale: Tensor | None,
        shape: Sequence[int],
        key: str,
        bias: Tensor | None,
        exact: bool,
    ) -> None:
        """Records a product with a packed weight."""
        packed = Packed(codes, scales, tensor_scale, shape, key)
        reader = fixed_reader(key, shape)
        if reader is None or not reader.takes(packed) or exact or tensor_scale is not None:
            raise UnsupportedStepError(f"packed layers in {from_key(key).label} are not supported")
        is_known = from_key(x_key).is_identity and x.numel() == shape[1] and x.is_contiguous()
        if not is_known or (bias is not None and bias.dtype != torch.float32):
            raise UnsupportedStepError("packed layers with other inputs than a float32 row")
        step = self._step("linear", result, (), ())
        self._set(step, 0, x, ())
        if bias is not None:
            self._set(step, 1, bias, ())
        step.outputs, step.columns = shape
        step.codes = ctypes.pointer(reader.codes)
        step.packed = codes.data_ptr()
        step.scales = None if scales is None else scales.data_ptr()
        self._alive.append(reader)

    def record_attend(
        self, result: Tensor, query: Tensor, key: Tensor, value: Tensor, layer: int, scale: float
    ) -> None:
        """Records attention, which reads and writes a cache."""
        (_, heads, tokens, size), (_, key_heads, *_) = query.shape, key.shape
        is_known = tokens == 1 and len(query) == 1 and key.shape == value.shape
        if not is_known or not all(x.is_contiguous() for x in (query, key, value)):
            raise UnsupportedStepError("attention with separate sizes of keys and values")
        groups = heads // key_heads
        step = self._step("attend", result, (1, 1, key_heads, groups, size), ())
        for index, x in enumerate((query, key, value)):
            self._set(step, index, x, ())
        if layer in self._caches:
            raise UnsupportedStepError("layers that share a cache are not supported")
        step.layer, step.scalar = layer, scale
        self._caches[layer] = key_heads, size


def _padded(sizes: Sequence[int], filling: int) -> list[int]:
    return [filling] * (DIMS - len(sizes)) + [*sizes]


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _are_views(result: Any, given: list[Tensor]) -> bool:
    """Returns whether all results are tensors in the memory of arguments."""
    memories = {_memory(x) for x in given}
    return all(isinstance(x, Tensor) and _memory(x) in memories for x in _flat([result]))


def _flat(given: Iterable[Any]) -> list[Any]:
    """Returns the items of arguments, including those of lists."""
    items: list[Any] = []
    for x in given:
        items.extend(x if isinstance(x, list | tuple) else (x,))
    return items
