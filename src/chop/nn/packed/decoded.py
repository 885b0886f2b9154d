"""Decoded parameters whose writes go to the codes: what `layer.weight` of a packed layer is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats import Encoded
from chop.nn.packed.rewriting import write
from chop.nn.packed.state import PackedState
from chop.private.torch_api import is_transformed, write_count


@dataclass
class _Source:
    """Where decoded values come from, and go to.

    Attributes:
        root: all values of the parameter; what was written stays in it as it was written.
        layer: whose parameter it is.
        name: of the parameter.
        stored: the codes that the values are from.
    """

    root: Tensor
    layer: PackedState
    name: str
    stored: Encoded

    @property
    def what(self) -> str:
        """The parameter, for messages."""
        return f"{type(self.layer).__name__}.{self.name}"

    def write(self, values: Tensor) -> None:
        """Encodes the values, which have changed.

        Raises:
            ConfigError: the layer has been given another parameter since.
        """
        if self.layer.encoded(self.name).codes is not self.stored.codes:
            raise ConfigError(
                f"{self.what} was assigned or moved after this tensor was read; read it again to "
                "write to it."
            )
        write(self.layer, self.name, values)
        self.stored = self.layer.encoded(self.name)


class DecodedTensor(Tensor):
    """The values of a parameter that is stored as codes; a write to it is a write to the codes.

    Reads give plain tensors. In-place operations on it or on a view of it (`.data`, `.detach()`,
    `w[0]`, `w.T`), assignments of `.data`, `set_` and `out=` encode the new values. Several writes
    to one such tensor add up before they are rounded: `layer.weight` decodes what was stored. An
    array of `numpy()` is read-only, and DLPack gets copies only (`clone`); what other libraries
    write through a storage or an address is not seen.
    """

    _source: _Source
    _plain: Tensor
    _is_hf_initialized = True
    """Transformers draws no numbers for weights that a file has not; those of codes are there."""

    @classmethod
    def _view(cls, plain: Tensor, source: _Source) -> DecodedTensor:
        made = plain.as_subclass(cls)
        made._plain, made._source = plain, source
        return made

    def set_(self, *args: Any, **kwargs: Any) -> Any:
        """Takes other memory, and encodes what is there; torch asks no subclass about it."""
        return self.__torch_function__(Tensor.set_, (type(self),), (self, *args), kwargs)

    def __copy__(self) -> DecodedTensor:
        """Shares the memory, as copies of a parameter do."""
        return self._view(self._plain.detach(), self._source)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuses `torch.utils.swap_tensors`, which would leave the codes as they are."""
        if name == "__class__":
            raise ConfigError(
                f"{self._source.what} is stored as codes and cannot be swapped for another tensor; "
                "assign it, layer.weight = values, which encodes them."
            )
        super().__setattr__(name, value)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        given = [*_decoded_in(args), *_decoded_in(list(kwargs.values()))]
        first = given[0]
        if func == Tensor.data.__set__:  # type: ignore[attr-defined]
            return _assign(first, args[1])
        if func == Tensor.data.__get__:  # type: ignore[attr-defined]
            return cls._view(first._plain.detach(), first._source)
        if func is Tensor.__dlpack__:
            raise ConfigError(
                f"{first._source.what} is stored as codes, which what is written through DLPack "
                "would not reach; hand out a copy, layer.weight.clone()."
            )
        _refuse_gradient(func, args, kwargs, first)
        before = [write_count(x._plain) for x in given]
        result = func(*_plain_in(args), **_plain_in(kwargs))
        for x, version in zip(given, before, strict=True):
            if write_count(x._plain) != version or (x is first and func in _UNCOUNTED):
                _written(x)
        return _as_given(result, given)


_UNCOUNTED = (Tensor.apply_, Tensor.map_, Tensor.map2_)
"""What writes to a tensor past autograd, which counts the other writes."""


def decoded_tensor(values: Tensor, layer: PackedState, name: str) -> Tensor:
    """A tensor whose writes go on to the codes of a layer.

    It is a plain one where nobody can write to it, or nothing can see that: in a compiler, in a
    trace, without numbers, or on several processes.
    """
    is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing() or is_transformed()
    if is_traced or type(values) is not Tensor or values.is_inference():
        return values
    values = values.detach()  # what is decoded without gradients may be written to with some
    return DecodedTensor._view(values, _Source(values, layer, name, layer.encoded(name)))


def get_source(x: Any) -> tuple[PackedState, str, Encoded] | None:
    """The layer, the parameter and the codes that a tensor is all the values of; None: of none."""
    if not isinstance(x, DecodedTensor):
        return None
    source, values, root = x._source, x._plain, x._source.root
    is_whole = (values.shape, values.stride()) == (root.shape, root.stride())
    if not is_whole or not _shares_memory(values, root):
        return None
    return source.layer, source.name, source.stored


def plain(x: Any) -> Any:
    """The values of a decoded parameter as a plain tensor in the same memory; others as they are.

    >>> plain(1)
    1
    """
    return x._plain if type(x) is DecodedTensor else x


def _plain_in(given: Any) -> Any:
    """`plain` of what is in lists, tuples and dicts."""
    if isinstance(given, list | tuple):
        found = next(_decoded_in(given), None)
        return given if found is None else type(given)([_plain_in(x) for x in given])
    if isinstance(given, dict):
        return {key: _plain_in(x) for key, x in given.items()}
    return plain(given)


def _decoded_in(given: Any) -> Iterator[DecodedTensor]:
    if type(given) is DecodedTensor:
        yield given
    elif isinstance(given, list | tuple):
        for x in given:
            yield from _decoded_in(x)


def _assign(target: DecodedTensor, value: Tensor) -> None:
    """`target.data = value`: a parameter takes the values, a view of one goes its own way."""
    source, value = target._source, plain(value).detach()
    is_whole = target._plain.shape == source.root.shape and _shares_memory(
        target._plain, source.root
    )
    if is_whole:
        source.write(value)
        source.root = value.clone()
        value = source.root.detach()
    target._plain = value


def _written(x: DecodedTensor) -> None:
    source = x._source
    if _shares_memory(x._plain, source.root):
        source.write(source.root.detach())
    else:  # it was given other memory, as by `set_`
        source.write(x._plain.detach())
        source.root = x._plain


def _refuse_gradient(
    func: Callable[..., Any], args: Any, kwargs: dict[str, Any], x: DecodedTensor
) -> None:
    is_asked = func is Tensor.requires_grad_ and (*args[1:], *kwargs.values()) != (False,)
    is_set = func == Tensor.requires_grad.__set__ and args[1]  # type: ignore[attr-defined]
    if is_asked or is_set:
        raise ConfigError(
            f"{x._source.what} cannot have a gradient: it is stored as codes. Train an adapter "
            "around the layer, a copy of its values (clone), or layer.unpack()."
        )


def _as_given(result: Any, given: list[DecodedTensor]) -> Any:
    """A result that lies in the memory of a parameter is one whose writes go to its codes."""
    if isinstance(result, list | tuple) and any(isinstance(x, Tensor) for x in result):
        made = [_as_given(x, given) for x in result]
        if isinstance(result, list):
            return made
        return type(result)(*made) if hasattr(result, "_fields") else type(result)(made)
    for x in given:
        if result is x._plain:
            return x
    for x in given:
        if type(result) is Tensor and _shares_memory(result, x._plain):
            return DecodedTensor._view(result, x._source)
        if type(result).__module__ == "numpy" and hasattr(result, "flags"):
            result.flags.writeable = False
    return result


def _shares_memory(x: Tensor, other: Tensor) -> bool:
    if x.layout is not torch.strided or other.layout is not torch.strided:
        return False
    address = x.untyped_storage().data_ptr()
    return address == other.untyped_storage().data_ptr() and (address != 0 or x is other)
