"""Cache of quantized parameters between forwards, in evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils import swap_tensors

from chop.private.torch_api import is_fake, without_dispatch_modes, write_count

MAX_CACHED_BYTES = 2**30
"""Maximum size of parameters whose rounded values are cached, in bytes."""


class _Source(NamedTuple):
    """A tensor with markers of writes and of changes of its memory.

    Attributes:
        tensor: kept alive, so that no other tensor gets its identity.
        alias: keeps its memory alive, so that no other tensor gets its address.
    """

    tensor: Tensor
    alias: Tensor
    version: int
    address: int
    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, x: Tensor) -> _Source:
        return cls(x, x.detach(), write_count(x), x.data_ptr(), x.shape, x.stride(), x.dtype)

    def is_still(self, x: Tensor) -> bool:
        """Returns whether a tensor is the same one with the same values."""
        return (
            x is self.tensor
            and not x.is_inference()
            and write_count(x) == self.version
            and x.data_ptr() == self.address
            and x.shape == self.shape
            and x.stride() == self.strides
            and x.dtype == self.dtype
        )


@dataclass(frozen=True)
class _Entry:
    """A result and its sources.

    Attributes:
        sources: tensors that it was computed from.
        result: result without a gradient, or objects prepared from the sources.
        versions: versions of the tensors in the result at its creation, since an operator may write
            into its operands.
    """

    sources: tuple[_Source, ...]
    result: Any
    versions: tuple[int, ...]

    @classmethod
    def of(cls, sources: Sequence[Tensor], result: Any) -> _Entry:
        return cls(tuple(map(_Source.of, sources)), result, _versions(result))

    def holds(self, sources: Sequence[Tensor]) -> bool:
        """Returns whether the result is still valid."""
        if _versions(self.result) != self.versions:
            return False
        if len(sources) != len(self.sources):
            return False
        return all(map(_Source.is_still, self.sources, sources))


def _versions(result: Any) -> tuple[int, ...]:
    if isinstance(result, Tensor):
        return (write_count(result),)
    if not isinstance(result, tuple):
        return ()
    return tuple([write_count(x) for x in result if x is not None])


@dataclass
class _Shelf:
    """Cached results of one operator: the latest of each operand, one per rule.

    Attributes:
        formats: number of results per operand.
        results: by operand and rule, the latest last.
    """

    formats: int
    results: dict[str, dict[object, _Entry]] = field(default_factory=dict)

    def find(self, operand: str, rule: object) -> _Entry | None:
        return self.results.get(operand, {}).get(rule)

    def put(self, operand: str, rule: object, entry: _Entry) -> None:
        latest = self.results.setdefault(operand, {})
        latest.pop(rule, None)
        latest[rule] = entry
        for old in list(latest)[: -self.formats]:
            latest.pop(old, None)


# By module, outside of the modules, so that copies, pickles and checkpoints do not contain it.
_shelves: WeakKeyDictionary[nn.Module, _Shelf] = WeakKeyDictionary()
_decoded: WeakKeyDictionary[nn.Module, _Shelf] = WeakKeyDictionary()


@contextmanager
def cached_weights(model: nn.Module, formats: int = 1) -> Iterator[None]:
    """Makes quantized operators of `model` round each parameter once inside the block.

    A rounded parameter, masked if the operator is pruned, is reused while gradients are off and
    parameter, mask, learned scale and format are unchanged: the same object, version, memory, dtype
    and device. Outputs are bit-identical. Leaving the block frees the memory, which equals that of
    the parameters. Nested use and several threads are supported. Compiled models do not use the
    cache. Models with more than `MAX_CACHED_BYTES` of parameters are not cached, to bound the
    memory.

    Caching is opt-in, because one change cannot be detected: a write that bypasses autograd, such
    as `weight.data.mul_(2)` or through a NumPy array, leaves version and memory unchanged.
    Assignments of `weight.data = other`, optimizers, `load_state_dict` and in-place changes under
    `torch.no_grad()` are detected.

    Args:
        model: any module; operators that are added later are not cached.
        formats: number of formats per parameter whose rounded values are cached. Use more than one
            to alternate between formats; each takes a copy of the parameters.

    Example:
        >>> from chop.nn.quantized import QuantLinear
        >>> layer, x = QuantLinear(4, 2, config={"name": "mxint"}), torch.ones(3, 4)
        >>> with cached_weights(layer), torch.no_grad():
        ...     first, again = layer(x), layer(x)
        >>> torch.equal(first, again)
        True
    """
    is_small = sum(parameter.nbytes for parameter in model.parameters()) <= MAX_CACHED_BYTES
    added = [module for module in model.modules() if is_small and module not in _shelves]
    _shelves.update({module: _Shelf(formats) for module in added})
    try:
        yield
    finally:
        for module in added:
            _shelves.pop(module, None)


def can_cache(owner: nn.Module) -> bool:
    """Returns whether the parameters of an operator may be cached now."""
    return not torch.compiler.is_compiling() and owner in _shelves and not torch.is_grad_enabled()


def cached_result(
    owner: nn.Module,
    operand: str,
    sources: Sequence[Tensor],
    rule: object,
    make: Callable[[], Tensor],
) -> Tensor:
    """Returns the result of `make`, from the cache if it is still valid.

    Args:
        owner: the operator; it caches parameters.
        operand: one of its operands.
        sources: all tensors that `make` reads.
        rule: further dependencies; hashable.
        make: computes the result; it must be deterministic.
    """
    shelf = _shelves.get(owner)
    return make() if shelf is None else _from(shelf, operand, sources, rule, make)


def decoded_once(
    owner: nn.Module,
    operand: str,
    sources: Sequence[Tensor],
    rule: object,
    make: Callable[[], Tensor],
) -> Tensor:
    """Returns the result of `make`, which is always cached for operators that store codes.

    Writes that bypass autograd occur in trained parameters, and codes are not trained.
    """
    _leave_inference_mode(sources)
    return _from(_get_shelf(owner), operand, sources, rule, make)


def prepared_once(
    owner: nn.Module,
    name: str,
    sources: Sequence[Tensor],
    rule: object,
    make: Callable[[], Any],
) -> Any:
    """Returns the result of `make` on an operator's codes, cached while they are unchanged.

    Returns: None if changes cannot be detected: for sources without values.

    Args:
        owner: the operator.
        name: name of the result.
        sources: all tensors that `make` reads.
        rule: further dependencies; hashable.
        make: computes the result, without a gradient; None is cached too.
    """
    shelf = _get_shelf(owner)
    _leave_inference_mode(sources)
    entry = shelf.find(name, rule)
    if entry is not None and entry.holds(sources):
        return entry.result
    if any(is_fake(x) or x.is_inference() for x in sources):
        return None
    with torch.inference_mode(False), torch.no_grad():
        result = make()
    shelf.put(name, rule, _Entry.of(sources, result))
    return result


def _leave_inference_mode(sources: Sequence[Tensor]) -> None:
    """Gives tensors made in inference mode the write counter that they lack, in place.

    A model that was loaded in inference mode has such tensors, and changes of their values could
    not be detected. The objects and their memory stay, so that layers which share a tensor still
    share it. Writes through an alias made before, as in `x.detach()`, stay undetected. Tensors that
    torch cannot exchange, such as those with weak references, stay unchanged.
    """
    for x in sources:
        if not x.is_inference() or is_fake(x) or type(x) not in (Tensor, nn.Parameter):
            continue
        with torch.inference_mode(False), without_dispatch_modes():
            ordinary = torch.empty(0, dtype=x.dtype, device=x.device)
            ordinary.set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())
            if isinstance(x, nn.Parameter):
                ordinary = nn.Parameter(ordinary, x.requires_grad)
            vars(ordinary).update(vars(x))
            # torch raises the second error for parameters that a compiled function holds.
            with suppress(RuntimeError, AttributeError):
                swap_tensors(x, ordinary)


def _get_shelf(owner: nn.Module) -> _Shelf:
    shelf = _decoded.get(owner)
    if shelf is None:
        shelf = _decoded[owner] = _Shelf(formats=1)
    return shelf


def forget(model: nn.Module) -> None:
    """Clears the cached results of a model's operators, after a call with substituted tensors.

    >>> forget(nn.Linear(2, 2))
    """
    for module in model.modules():
        for shelves in (_shelves, _decoded):
            if module in shelves:
                shelves[module].results.clear()


def cached_bytes(model: nn.Module) -> int:
    """Returns the memory of tensors cached for a model's operators, in bytes.

    >>> cached_bytes(nn.Linear(2, 2))
    0
    """
    shelves = [x for m in model.modules() for by in (_shelves, _decoded) if (x := by.get(m))]
    entries = [each for s in shelves for results in s.results.values() for each in results.values()]
    return sum(_count_bytes(entry.result) for entry in entries)


def _count_bytes(result: Any) -> int:
    """Returns the memory of a result, without tensors shared with its sources or with other
    results.
    """
    return result.nbytes if isinstance(result, Tensor) else getattr(result, "owned_bytes", 0)


def _from(
    shelf: _Shelf,
    operand: str,
    sources: Sequence[Tensor],
    rule: object,
    make: Callable[[], Tensor],
) -> Tensor:
    entry = shelf.find(operand, rule)
    if entry is not None and entry.holds(sources):
        if shelf.formats > 1:
            shelf.put(operand, rule, entry)
        cached: Tensor = entry.result
        return cached
    # Tensors without values have no address to compare, inference tensors have no version.
    if any(is_fake(x) or x.is_inference() for x in sources):
        return make()
    with torch.inference_mode(False), torch.no_grad():
        result = make()
    if type(result) is Tensor:
        shelf.put(operand, rule, _Entry.of(sources, result))
    return result
