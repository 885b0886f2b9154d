"""Padding mask propagation: finds the values inside a model that derive from padding only.

An attention mask hides tokens. Their activations affect no result, and calibration and statistics
must exclude them. Shapes do not show which elements are hidden, since layouts vary (separate heads,
flattened tokens, tokens first, scores of queries and keys). Each operator therefore has a rule that
maps hidden elements of its inputs to hidden elements of its result.

Without a mask, or if it hides nothing, there is no propagation and no cost.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from chop.captured.padding.geometry import fills_same_memory, rearrange_hidden, tensor_geometry
from chop.captured.padding.hidden_rules import Executed, get_rule
from chop.captured.padding.masks import MASK_ENDINGS, hidden_inputs
from chop.private.torch_api import (
    OpOverload,
    StorageWeakRef,
    TorchDispatchMode,
    fills_its_memory,
    get_schema,
    is_in_backward,
    is_transformed,
    storage_id,
    without_dispatch_modes,
)

_followed: ContextVar[HiddenElements | None] = ContextVar("followed", default=None)
SWEEP = 512
"""Number of storage records between sweeps for freed storages."""
SWEPT_BYTES = 2**22
"""Bytes of masks, beyond twice those in use, that trigger a sweep."""


@contextlib.contextmanager
def following(
    model: Any, batch: Mapping[str, Any], copies: bool = True
) -> Iterator[Mapping[str, Any]]:
    """Propagates hidden elements while the model runs on the batch that is yielded.

    Args:
        model: a captured model; for others, less is known about the layout of inputs.
        batch: its inputs by name, not changed.
        copies: see `HiddenElements.seeded`.
    """
    followed = HiddenElements()
    batch = followed.seeded(model, batch, copies)
    with followed.activated(), followed.running():
        yield batch


@contextlib.contextmanager
def disable_propagation() -> Iterator[None]:
    """Disables propagation in calls inside the block, such as those of a capture."""
    token = _followed.set(HiddenElements())
    try:
        yield
    finally:
        _followed.reset(token)


def is_followed_call(model: nn.Module, names: Iterable[str]) -> bool:
    """Returns whether a call of a model has to propagate hidden elements.

    That holds if a mask is among the inputs and a part of the model learns from its inputs, like
    quantized operators in training, which have an attribute `learns_from_inputs`. Recomputation in
    gradient checkpointing, compilers and transforms are excluded.
    """
    if not any(name.endswith(MASK_ENDINGS) for name in names):
        return False
    if not (model.training or torch.is_grad_enabled()) or _followed.get() is not None:
        return False
    if torch.compiler.is_compiling() or is_transformed() or is_in_backward():
        return False
    return any(getattr(part, "learns_from_inputs", False) for part in model.modules())


def hidden_elements(x: Tensor) -> Tensor | None:
    """Returns a boolean mask, True for values that derive from padding tokens only.

    Returns: None if no element is hidden, and outside of `following`.
    """
    followed = _followed.get()
    return None if followed is None else followed.hidden(x)


def visible(x: Tensor) -> Tensor:
    """Returns the visible elements: the tensor itself, or (n,) if some are hidden."""
    hidden = hidden_elements(x)
    return x if hidden is None else _select_visible(x, hidden)


def _select_visible(x: Tensor, hidden: Tensor) -> Tensor:
    if not x.is_contiguous():  # in memory order, so that rows stay whole
        order = sorted(range(x.dim()), key=x.stride, reverse=True)
        x, hidden = x.permute(order), hidden.permute(order)
    while hidden.dim() > 1 and hidden.stride(-1) == 0:  # selecting rows is faster
        hidden = hidden.select(-1, 0)
    chosen = (~hidden).flatten().nonzero().squeeze(1)
    return x.reshape(-1, *x.shape[hidden.dim() :]).index_select(0, chosen).flatten()


@contextlib.contextmanager
def visible_elements(x: Tensor) -> Iterator[Tensor]:
    """Yields the visible elements for a measurement; calls inside the block are not propagated.

    Args:
        x: see `visible`.
    """
    hidden = hidden_elements(x)
    if hidden is None:
        yield x
        return
    with without_dispatch_modes():
        yield _select_visible(x.detach(), hidden)


def visible_rows(x: Tensor) -> Tensor:
    """Returns the visible rows: the tensor itself, or (rows, channels) if some are hidden."""
    hidden = hidden_elements(x)
    return x if hidden is None else x[~hidden.all(-1)]


def zeroed(x: Tensor) -> Tensor:
    """Replaces hidden elements of a tensor with zeros."""
    hidden = hidden_elements(x)
    return x if hidden is None else x.masked_fill(hidden, 0)


def is_followed(x: Tensor) -> bool:
    """Returns whether the hidden elements of a tensor are known."""
    followed = _followed.get()
    return followed is not None and followed.is_followed(x)


@dataclass
class _Record:
    """Hidden elements in the memory of a storage: of one tensor on it, or of all its elements.

    Attributes:
        storage: storage with these elements.
        itemsize: bytes of an element of `flat`.
        geometry: size, stride and offset of the tensor.
        hidden: boolean of its shape.
        flat: boolean, one per element in memory; None until another tensor of the memory is
            queried.
    """

    storage: Any
    itemsize: int
    geometry: tuple[Any, ...] = ()
    hidden: Tensor | None = None
    flat: Tensor | None = None


class HiddenElements(TorchDispatchMode):
    """Propagation of hidden elements by tensor storage, active while entered.

    Views and in-place results share a storage.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._records: dict[int, _Record] = {}
        self._limit, self._mask_bytes, self._most_bytes = SWEEP, 0, SWEPT_BYTES
        self._is_needed = False

    def seeded(
        self, model: Any, batch: Mapping[str, Any], copies: bool = True
    ) -> Mapping[str, Any]:
        """Records the inputs that have hidden tokens.

        Args:
            model: see `following`.
            batch: inputs by name.
            copies: False copies only inputs that share memory, so that a model may write into its
                inputs.
        Returns: the batch with copies of the recorded inputs.
        """
        hidden = hidden_inputs(model, batch)
        self._is_needed |= bool(hidden)
        counts = Counter(storage_id(x) for x in batch.values() if _has_storage(x))
        seeds = {
            name: x.clone() if copies or counts[storage_id(x)] > 1 or not fills_its_memory(x) else x
            for name, x in ((name, batch[name]) for name in hidden)
        }
        for name, x in seeds.items():
            self._set_hidden(x, hidden[name])
        return {**batch, **seeds} if seeds else batch

    @contextlib.contextmanager
    def activated(self) -> Iterator[None]:
        """Makes `hidden_elements` use this propagation inside the block."""
        token = _followed.set(self if self._is_needed else None)
        try:
            yield
        finally:
            _followed.reset(token)

    def running(self) -> contextlib.AbstractContextManager[Any]:
        """Propagates through the operators inside the block if anything is hidden."""
        return self if self._is_needed else contextlib.nullcontext()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if isinstance(func, OpOverload):
            self._follow(func, args, kwargs, result)
        return result

    def _follow(self, func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        results = list(_tensors((result,)))
        given = [*_tensors(args), *_tensors(kwargs.values())]
        if not any(self._hides(x) for x in given):
            for x in results:
                self._find_record(x)
            return
        schema, places = get_schema(func), {storage_id(x) for x in given}
        if not schema.is_mutable:
            results = [x for x in results if storage_id(x) not in places]  # no views
        if not results:
            return
        bound = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        bound |= dict(zip((a.name for a in schema.arguments), args, strict=False)) | {**kwargs}
        run = Executed(func, bound, results, self._compact)
        rule = get_rule(func)
        for x in results:
            if schema.is_mutable:
                self._write(x, _fitting(rule(run, x), x))
            else:
                self._set_hidden(x, _fitting(rule(run, x), x))

    def _find_record(self, x: Tensor) -> _Record:
        key = storage_id(x)
        record = self._records.get(key)
        if record is None:
            # A referenced storage keeps its id.
            record = _Record(StorageWeakRef(x.untyped_storage()), x.element_size())
            self._records[key] = record
            if len(self._records) > self._limit or self._mask_bytes > self._most_bytes:
                self._sweep()
        return record

    def _sweep(self) -> None:
        """Drops the records and masks of freed storages."""
        self._records = {k: n for k, n in self._records.items() if not n.storage.expired()}
        self._limit = len(self._records) + SWEEP
        self._mask_bytes = sum(_mask_bytes(record) for record in self._records.values())
        self._most_bytes = 2 * self._mask_bytes + SWEPT_BYTES

    def _hides(self, x: Tensor) -> bool:
        record = self._records.get(storage_id(x))
        return record is not None and (record.hidden is not None or record.flat is not None)

    def _set_hidden(self, x: Tensor, hidden: Tensor | None) -> None:
        record = self._find_record(x)
        if record.flat is not None:
            self._write(x, hidden)
        else:
            record.geometry = tensor_geometry(x)
            record.hidden = None if hidden is None else hidden.expand(x.shape)
            self._mask_bytes += _mask_bytes(record)

    def _write(self, x: Tensor, hidden: Tensor | None) -> None:
        record = self._find_record(x)
        if record.flat is None and (not record.geometry or fills_same_memory(record.geometry, x)):
            self._set_hidden(x, hidden)
        elif self._hides(x) or hidden is not None:
            place = _on(self._flattened(x, record), x, record)
            place.fill_(False) if hidden is None else place.copy_(hidden)

    def _flattened(self, x: Tensor, record: _Record) -> Tensor:
        """Returns the hidden elements of the memory per element of a tensor, or per smaller
        element.
        """
        if record.flat is None:
            size, stride, offset, record.itemsize = record.geometry or (
                *tensor_geometry(x)[:3],
                x.itemsize,
            )
            count = x.untyped_storage().nbytes() // record.itemsize
            record.flat = torch.zeros(count, dtype=torch.bool, device=x.device)
            if record.hidden is not None:
                record.flat.as_strided(size, stride, offset).copy_(record.hidden)
                record.hidden = None
            self._mask_bytes += count
        if x.itemsize < record.itemsize:  # such as the parts of complex numbers
            record.flat = record.flat.repeat_interleave(record.itemsize // x.itemsize)
            record.itemsize = x.itemsize
        return record.flat

    def is_followed(self, x: Tensor) -> bool:
        """Returns whether a propagated operator wrote the tensor's memory."""
        return _has_storage(x) and storage_id(x) in self._records

    def hidden(self, x: Tensor) -> Tensor | None:
        """Returns the hidden elements, see `hidden_elements`."""
        record = self._records.get(storage_id(x)) if _has_storage(x) else None
        if record is None or (record.flat is None and record.hidden is None):
            return None
        if record.flat is None and record.geometry == tensor_geometry(x):
            return record.hidden
        if record.hidden is not None and fills_same_memory(record.geometry, x):
            return rearrange_hidden(record.hidden, record.geometry[1], x)
        return _on(self._flattened(x, record), x, record)

    def _compact(self, x: Tensor) -> Tensor | None:
        """Returns the mask with length 1 along dimensions of equal elements."""
        mask = self.hidden(x)
        if mask is None:
            return None
        return mask[tuple(slice(0, 1) if step == 0 else slice(None) for step in mask.stride())]


def _has_storage(x: Any) -> bool:
    is_plain = type(x) in (Tensor, nn.Parameter)  # others may have no memory of their own
    return is_plain and x.layout is torch.strided and not x.is_meta


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yields the tensors with memory among arguments or results of an operator."""
    for value in values:
        if isinstance(value, Tensor):
            if _has_storage(value):
                yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _mask_bytes(record: _Record) -> int:
    masks = [mask for mask in (record.hidden, record.flat) if mask is not None]
    return sum(mask.untyped_storage().nbytes() for mask in masks)


def _on(flat: Tensor, x: Tensor, record: _Record) -> Tensor:
    """Returns a tensor's part of a memory's elements; for larger elements, their first part."""
    times = x.itemsize // record.itemsize
    return flat.as_strided(
        x.size(), [step * times for step in x.stride()], x.storage_offset() * times
    )


def _fitting(hidden: Tensor | None, x: Tensor) -> Tensor | None:
    """Returns a rule's result if its shape expands to that of the operator's result."""
    if hidden is None or hidden.dim() > x.dim():
        return None
    sizes = zip(reversed(hidden.shape), reversed(x.shape), strict=False)
    return hidden if all(a in (1, b) for a, b in sizes) else None
