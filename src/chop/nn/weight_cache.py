"""Quantized parameters that are kept from one forward to the next, in evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from chop.private.torch_api import is_fake, write_count

KEPT_BYTES = 2**28
"""Of parameters whose rounded values are kept beside them."""


class _Source(NamedTuple):
    """A tensor, and what tells that it was written or given other memory since.

    Attributes:
        tensor: it lives on, so that no other can come to have its identity.
        alias: holds its memory, so that no other tensor can come to lie at its address.
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
        """Whether it is the same tensor with the same values."""
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
class _Kept:
    """A result, and what it was made from.

    Attributes:
        sources: the tensors that it was made of.
        result: without a gradient, or what was prepared from them.
        versions: of the tensors in the result, when it was made: an operator may write into its
            operands.
    """

    sources: tuple[_Source, ...]
    result: Any
    versions: tuple[int, ...]

    @classmethod
    def of(cls, sources: Sequence[Tensor], result: Any) -> _Kept:
        return cls(tuple(map(_Source.of, sources)), result, _versions(result))

    def holds(self, sources: Sequence[Tensor]) -> bool:
        """Whether the result would be the same again."""
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
    """What is kept of one operator: of each operand the latest results, one per rule.

    Attributes:
        formats: how many of each operand.
        results: by operand and rule, the latest last.
    """

    formats: int
    results: dict[str, dict[object, _Kept]] = field(default_factory=dict)

    def find(self, operand: str, rule: object) -> _Kept | None:
        return self.results.get(operand, {}).get(rule)

    def put(self, operand: str, rule: object, entry: _Kept) -> None:
        latest = self.results.setdefault(operand, {})
        latest.pop(rule, None)
        latest[rule] = entry
        for old in list(latest)[: -self.formats]:
            latest.pop(old, None)


# By module. Kept outside the modules: copies, pickles and checkpoints know nothing.
_kept: WeakKeyDictionary[nn.Module, _Shelf] = WeakKeyDictionary()
_decoded: WeakKeyDictionary[nn.Module, _Shelf] = WeakKeyDictionary()


@contextmanager
def cached_weights(model: nn.Module, formats: int = 1) -> Iterator[None]:
    """Within it, quantized operators of `model` round each parameter once, not at every forward.

    A rounded parameter, masked if the operator is pruned, is used again while gradients are off
    and parameter, mask, learned scale and format are what they were: the same object, version,
    memory, dtype and device. Outputs are equal bit for bit. Leaving frees the memory, as much as
    the parameters take. Nested use is fine; so are several threads. A compiled model does not
    use it, and of a model whose parameters take more than `KEPT_BYTES` nothing is kept: twice the
    memory would buy little time, as large layers multiply for longer than they round.

    It has to be asked for, because one change cannot be seen: a write past autograd, as in
    `weight.data.mul_(2)` or through a NumPy array, leaves version and memory as they were, and the
    old values would be used on. Assigning `weight.data = other`, optimizers, `load_state_dict` and
    in-place changes under `torch.no_grad()` are all noticed.

    Args:
        model: any module; operators that are put into it later are not concerned.
        formats: of so many formats of each parameter, the latest used, the rounded values are
            kept: who goes back and forth between formats rounds once in each of them, and holds
            as many copies of the parameters.

    Example:
        >>> from chop.nn.quantized import QuantLinear
        >>> layer, x = QuantLinear(4, 2, config={"name": "mxint"}), torch.ones(3, 4)
        >>> with cached_weights(layer), torch.no_grad():
        ...     first, again = layer(x), layer(x)
        >>> torch.equal(first, again)
        True
    """
    is_small = sum(parameter.nbytes for parameter in model.parameters()) <= KEPT_BYTES
    added = [module for module in model.modules() if is_small and module not in _kept]
    _kept.update({module: _Shelf(formats) for module in added})
    try:
        yield
    finally:
        for module in added:
            _kept.pop(module, None)


def keeps(owner: nn.Module) -> bool:
    """Whether the parameters of an operator may be kept now."""
    return not torch.compiler.is_compiling() and owner in _kept and not torch.is_grad_enabled()


def kept(
    owner: nn.Module,
    operand: str,
    sources: Sequence[Tensor],
    rule: object,
    make: Callable[[], Tensor],
) -> Tensor:
    """The result of `make`, or the one that was kept if it would be the same.

    Args:
        owner: the operator; it keeps parameters.
        operand: which of its operands.
        sources: all tensors that `make` reads.
        rule: what else it depends on; hashable.
        make: makes the result; it must not draw at random.
    """
    shelf = _kept.get(owner)
    return make() if shelf is None else _from(shelf, operand, sources, rule, make)


def decoded_once(
    owner: nn.Module,
    operand: str,
    sources: Sequence[Tensor],
    rule: object,
    make: Callable[[], Tensor],
) -> Tensor:
    """As `kept`, for operators whose parameters are codes. Nobody has to ask for it.

    What cannot be seen, a write past autograd, happens to parameters that are trained, and codes
    are not.
    """
    return _from(_get_shelf(owner), operand, sources, rule, make)


def prepared_once(
    owner: nn.Module,
    name: str,
    sources: Sequence[Tensor],
    rule: object,
    make: Callable[[], Any],
) -> Any:
    """What `make` prepares of an operator's codes, once as long as they are the same.

    None where that cannot be told: of sources
    without numbers, or made in inference mode.

    Args:
        owner: the operator.
        name: of what is prepared.
        sources: all tensors that it reads.
        rule: what else it depends on; hashable.
        make: prepares it, without a gradient; what it gives is kept, None too.
    """
    shelf = _get_shelf(owner)
    found = shelf.find(name, rule)
    if found is not None and found.holds(sources):
        return found.result
    if any(is_fake(x) or x.is_inference() for x in sources):
        return None
    with torch.inference_mode(False), torch.no_grad():
        result = make()
    shelf.put(name, rule, _Kept.of(sources, result))
    return result


def _get_shelf(owner: nn.Module) -> _Shelf:
    shelf = _decoded.get(owner)
    if shelf is None:
        shelf = _decoded[owner] = _Shelf(formats=1)
    return shelf


def forget(model: nn.Module) -> None:
    """Drops what is kept of a model's operators, after a call with other tensors than its own.

    >>> forget(nn.Linear(2, 2))
    """
    for module in model.modules():
        for shelves in (_kept, _decoded):
            if module in shelves:
                shelves[module].results.clear()


def kept_bytes(model: nn.Module) -> int:
    """What the tensors take that are kept of a model's operators, beside its own.

    >>> kept_bytes(nn.Linear(2, 2))
    0
    """
    shelves = [found for m in model.modules() for by in (_kept, _decoded) if (found := by.get(m))]
    entries = [each for s in shelves for results in s.results.values() for each in results.values()]
    return sum(_count_bytes(entry.result) for entry in entries)


def _count_bytes(result: Any) -> int:
    """What a result takes beside the tensors that it was made of or that are kept themselves."""
    return result.nbytes if isinstance(result, Tensor) else getattr(result, "kept_bytes", 0)


def _from(
    shelf: _Shelf,
    operand: str,
    sources: Sequence[Tensor],
    rule: object,
    make: Callable[[], Tensor],
) -> Tensor:
    found = shelf.find(operand, rule)
    if found is not None and found.holds(sources):
        if shelf.formats > 1:
            shelf.put(operand, rule, found)
        kept_tensor: Tensor = found.result
        return kept_tensor
    # Those without numbers have no address to be known by, those of inference no version.
    if any(is_fake(x) or x.is_inference() for x in sources):
        return make()
    with torch.inference_mode(False), torch.no_grad():
        result = make()
    if type(result) is Tensor:
        shelf.put(operand, rule, _Kept.of(sources, result))
    return result
