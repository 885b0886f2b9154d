"""DTensor sharding rules of chop's operators: layouts in which rounding commutes with sharding.

The rule of a number format follows from its layout: the data that determine a scale have to be on
one process.

| format | may be sharded |
|---|---|
| elements without scales, or with one given scale | along any dimension |
| blocks with a shared scale | along any dimension; along the blocks at multiples of the block |
| a scale per channel | along dimension 0, together with given scales |
| a scale, fraction or threshold of the whole tensor from its data; random rounding | replicated |
| packed codes | along rows, if each row has separate bytes |

Partial sums are reduced before any rounding, so no rule accepts them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NoReturn

import torch

from chop.errors import PlanError
from chop.formats import NumberFormat, from_key
from chop.formats.layout import Layout
from chop.formats.scaling import StaticScale, Unscaled
from chop.formats.statistic import Threshold
from chop.kernels.packed import known_shape
from chop.private.dtensor import (
    Strategy,
    correct_torch,
    cpu_attention,
    is_registered,
    register_rule,
    replicate_operators_without_rule,
)

TRAINING = (
    "is for training; sharded models only support inference: call model.eval() and use no_grad"
)
EXPORT = "is for ONNX files; shard the graph that was exported"
REFUSED: dict[str, str] = {
    "attend": "records the token of a decoder, which one process decodes",
    "fake_quantize_marking": TRAINING,
    "lsq_changed_gradients": TRAINING,
    "lsq_gradients": TRAINING,
    "onnx_round": EXPORT,
    "onnx_dequantize": EXPORT,
    "onnx_decode": EXPORT,
    "onnx_matmul_4bit": EXPORT,
    "onnx_gather_4bit": EXPORT,
    "qonnx_quant": EXPORT,
    "qonnx_bipolar": EXPORT,
    "searched_scales": "measures the rows of one process, inside an operator with a rule",
}
"""Operators without a rule, and the reason."""


def shardable_dims(number_format: NumberFormat, shape: Sequence[int]) -> dict[int, int]:
    """Returns the dimensions along which a tensor's chunks round like the whole tensor.

    Args:
        number_format: the format; its given scales must be those of the whole tensor.
        shape: shape of the tensor.
    Returns: by dimension, the multiple at which a cut is allowed.
    """
    every = dict.fromkeys(range(len(shape)), 1)
    if number_format.is_identity:
        return every
    if not (number_format.is_deterministic and number_format.is_fitted):
        return {}
    layout = number_format.layout()
    return {} if layout is None else _shardable(layout, every)


def _shardable(layout: Layout, every: dict[int, int]) -> dict[int, int]:
    scaling = layout.scaling
    # Statistics of the whole tensor would differ between chunks.
    if isinstance(layout.element.threshold, Threshold):
        return {}
    if scaling is None or isinstance(scaling, Unscaled):
        return every
    if isinstance(scaling, StaticScale):
        count = 1 if layout.levels is not None else _given_scales(layout)
        return every if count == 1 else {}
    if layout.levels is not None or scaling.spans_tensor:
        return {}
    return layout.groups.separable_dims(len(every))


def _given_scales(layout: Layout | None) -> int:
    """Returns the number of group scales given by a format; 0 if scales follow the data."""
    if layout is None or not isinstance(layout.scaling, StaticScale):
        return 0
    return layout.scaling.known(torch.device("cpu")).numel()


def has_cut_scales(number_format: NumberFormat, shape: Sequence[int]) -> bool:
    """Returns whether a format has given group scales that are cut with dimension 0."""
    layout = number_format.layout() if number_format.is_fitted else None
    if layout is None or layout.levels is not None or _given_scales(layout) < 2:
        return False
    return layout.groups.separable_dims(len(shape)).get(0) == 1


def _layouts_of_rounding(x: Any, key: str) -> list[Strategy]:
    """Returns layouts of one output and one input: replicated, or sharded along one dimension."""
    shape, number_format = tuple(x.tensor_meta.shape), from_key(key)
    if has_cut_scales(number_format, shape):
        return [_everywhere(2), _cut(0, 2)]
    return [_everywhere(2), *(_cut(dim, 2) for dim in shardable_dims(number_format, shape))]


def _rounds_chunks(given: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> bool:
    """Returns whether chunks have whole groups, and one given scale per group."""
    x, key = given[0], given[1]
    whole, local, number_format = tuple(x.tensor_meta.shape), shapes[0], from_key(key)
    if has_cut_scales(number_format, whole):
        layout = number_format.layout()
        assert layout is not None
        return _given_scales(layout) == layout.groups.count(local)
    multiples = shardable_dims(number_format, whole)
    return all(
        mine == size or (dim in multiples and mine % multiples[dim] == 0)
        for dim, (mine, size) in enumerate(zip(local, whole, strict=True))
    )


def _layouts_of_lsq(x: Any, scales: Any, key: str, is_batch: bool) -> list[Strategy]:
    """Returns layouts of learned scales: one for all chunks, or channel scales cut with rows."""
    shape, count = tuple(x.tensor_meta.shape), scales.tensor_meta.shape[0]
    if count > 1:
        return [_everywhere(3), _cut(0, 3)]
    return [_everywhere(3), *([_shard(d), _shard(d), _replicate()] for d in range(len(shape)))]


def _layouts_of_codes(
    codes: Any, scales: Any, tensor_scale: Any, shape: Sequence[int], key: str, dtype: Any
) -> list[Strategy]:
    """Returns layouts of packed codes, whose rows decode to rows."""
    inputs = [codes, scales, tensor_scale]
    layouts = [[_replicate(), *_present(inputs, [_replicate()] * 3)]]
    # A first size of -1 follows from the number of codes, so it is also right for chunks.
    if shape[0] == -1:
        layouts.append([_shard(0), *_present(inputs, [_shard(0), _shard(0), _replicate()])])
    return layouts


def _layouts_of_product(
    x: Any,
    x_key: str,
    codes: Any,
    scales: Any,
    tensor_scale: Any,
    shape: Sequence[int],
    key: str,
    bias: Any,
    exact: bool,
) -> list[Strategy]:
    """Returns layouts of packed products: code rows become result columns, `x` rows result rows."""
    inputs = [x, codes, scales, tensor_scale, bias]
    rank, whole = len(x.tensor_meta.shape), _replicate()
    layouts = [[whole, *_present(inputs, [whole] * 5)]]
    if shape[0] == -1:
        cut = _shard(0)
        layouts.append([_shard(rank - 1), *_present(inputs, [whole, cut, cut, whole, cut])])
    multiples = shardable_dims(from_key(x_key), tuple(x.tensor_meta.shape))
    for dim in range(rank - 1):
        if multiples.get(dim) == 1:
            layouts.append([_shard(dim), *_present(inputs, [_shard(dim), *[whole] * 4])])
    return layouts


def _layouts_of_clipping(grad: Any, mask: Any) -> list[Strategy]:
    """Returns layouts of an elementwise operator on two tensors of one shape."""
    return [_everywhere(3), *(_cut(dim, 3) for dim in range(len(grad.tensor_meta.shape)))]


def _layouts_of_selection(x: Any, count: int) -> list[Strategy]:
    """Returns the replicated layout, because magnitudes are compared over the whole tensor."""
    return [_everywhere(2)]


def _layouts_of_attention(
    query: Any, *others: Any, attn_mask: Any = None, **_: Any
) -> list[Strategy]:
    """Returns layouts of result, log-sum-exp, query, key, value, mask: by heads or samples."""
    if attn_mask is None:
        return [_everywhere(5), _cut(1, 5), _cut(0, 5)]
    whole, mask = tuple(query.tensor_meta.shape), tuple(attn_mask.tensor_meta.shape)
    layouts = [_everywhere(6)]
    for dim in (0, 1):
        # A mask of size one along the dimension, or without it, applies to all samples or heads.
        is_alike = len(mask) == len(whole) and mask[dim] == whole[dim]
        layouts.append([*_cut(dim, 5), _shard(dim) if is_alike else _replicate()])
    known = {place for layout in layouts for place in layout[5:]}
    if not set(attn_mask.placements) <= known:
        raise PlanError(
            f"attention mask {mask} with placements {', '.join(map(str, attn_mask.placements))}: "
            f"expected {' or '.join(sorted(map(str, known)))}, for sharded queries {whole}."
        )
    return layouts


def _refuse(name: str, *arguments: Any) -> NoReturn:
    raise PlanError(f"torch.ops.chop.{name} has no sharding rule: it {REFUSED[name]}.")


def _has_whole_rows(given: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> bool:
    """Returns whether chunks of packed tensors, the first of `given`, consist of whole rows."""
    codes, scales, _, shape, key = given[:5]
    if shape[0] != -1:
        return True
    whole = codes.tensor_meta.shape
    rows = known_shape(torch.empty(whole, device="meta"), shape, key)[0]
    parts = [x.tensor_meta.shape[0] for x in (codes, scales) if x is not None]
    return all(local[0] * rows % size == 0 for (local, size) in zip(shapes, parts, strict=False))


def _multiplies_whole_rows(given: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> bool:
    return _has_whole_rows(given[2:], shapes[1:])


def _any_chunks(given: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> bool:
    return True


RULES: Mapping[str, tuple[Callable[..., Any], Callable[..., bool], int]] = {
    "fake_quantize": (_layouts_of_rounding, _rounds_chunks, 1),
    "lsq_fake_quantize": (_layouts_of_lsq, _any_chunks, 2),
    "decode": (_layouts_of_codes, _has_whole_rows, 3),
    "packed_linear": (_layouts_of_product, _multiplies_whole_rows, 1),
    "clip_gradient": (_layouts_of_clipping, _any_chunks, 2),
    "lowest_magnitudes": (_layouts_of_selection, _any_chunks, 1),
    **{name: (partial(_refuse, name), _any_chunks, 1) for name in REFUSED},
}
"""By operator: its layouts, a check of its chunks, and the index of the first argument for it."""


@cache
def register_strategies() -> None:
    """Registers the rules in DTensor, once per process."""
    from chop.export.onnx import operators as _onnx_operators  # noqa: F401 - defines the operators
    from chop.kernels.cpu import steps as _steps  # noqa: F401 - the same

    for name, (layouts, accepts, static_argnum) in RULES.items():
        operator = getattr(torch.ops.chop, name).default
        register_rule(operator, layouts, accepts, static_argnum)
    correct_torch()
    replicate_operators_without_rule()
    # torch has rules for the attention operators of other devices, but not of CPUs.
    attention = cpu_attention()
    if not is_registered(attention):
        register_rule(attention, _layouts_of_attention, _any_chunks, 3, outputs=2)


def _replicate() -> Any:
    from torch.distributed.tensor import Replicate

    return Replicate()


def _shard(dim: int) -> Any:
    from torch.distributed.tensor import Shard

    return Shard(dim)


def _everywhere(count: int) -> Strategy:
    return [_replicate()] * count


def _cut(dim: int, count: int) -> Strategy:
    return [_shard(dim)] * count


def _present(tensors: Sequence[Any], placements: Sequence[Any]) -> Strategy:
    """Returns the placements of the tensors that are present."""
    return [place for x, place in zip(tensors, placements, strict=True) if x is not None]
