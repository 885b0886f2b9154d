"""Decoded parameters whose writes update the codes: the type of `layer.weight` in packed layers."""

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
    """Origin of decoded values, and target of their writes.

    Attributes:
        root: all values of the parameter; written values stay in it unrounded.
        layer: layer of the parameter.
        name: name of the parameter.
        stored: codes of the values.
    """

    root: Tensor
    layer: PackedState
    name: str
    stored: Encoded

    @property
    def what(self) -> str:
        """The name of the parameter, for messages."""
        return f"{type(self.layer).__name__}.{self.name}"

    def write(self, values: Tensor) -> None:
        """Encodes the values, which have changed.

        Raises:
            ConfigError: if the layer has been given another parameter since.
        """
        if self.layer.encoded(self.name).codes is not self.stored.codes:
            raise ConfigError(
                f"{self.what} was assigned or moved after this tensor was read; read it again to "
                "write to it."
            )
        write(self.layer, self.name, values)
        self.stored = self.layer.encoded(self.name)


class DecodedTensor(Tensor):
    """Values of a parameter that is stored as codes; writes are encoded.

    Reads return plain tensors. In-place operations on it or on a view of it (`.data`, `.detach()`,
    `w[0]`, `w.T`), assignments of `.data`, `set_` and `out=` encode the new values. Several writes
    to one such tensor accumulate before they are rounded; a new access of `layer.weight` decodes
    the stored codes. An array of `numpy()` is read-only, and DLPack gets copies only (`clone`).
    Writes of other libraries through a storage or an address are not detected.
    """

    _source: _Source
    _plain: Tensor
    _is_hf_initialized = True
    """Keeps transformers from initializing a weight that a file lacks, since its codes are present.
    """

    @classmethod
    def _view(cls, plain: Tensor, source: _Source) -> DecodedTensor:
        made = plain.as_subclass(cls)
        made._plain, made._source = plain, source
        return made

    def set_(self, *args: Any, **kwargs: Any) -> Any:
        """Replaces the memory and encodes its contents; torch does not dispatch `set_` to
        subclasses.
        """
        return self.__torch_function__(Tensor.set_, (type(self),), (self, *args), kwargs)

    def __copy__(self) -> DecodedTensor:
        """Returns a copy that shares the memory, like copies of a parameter."""
        return self._view(self._plain.detach(), self._source)

    def __setattr__(self, name: str, value: Any) -> None:
        """Rejects `torch.utils.swap_tensors`, which would not update the codes."""
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
                f"{first._source.what} is stored as codes, which writes through DLPack would not "
                "update; pass a copy, layer.weight.clone()."
            )
        _refuse_gradient(func, args, kwargs, first)
        before = [write_count(x._plain) for x in given]
        result = func(*_plain_in(args), **_plain_in(kwargs))
        for x, version in zip(given, before, strict=True):
            if write_count(x._plain) != version or (x is first and func in _UNCOUNTED):
                _written(x)
        return _as_given(result, given)


_UNCOUNTED = (Tensor.apply_, Tensor.map_, Tensor.map2_)
"""Methods that write to a tensor without changing its autograd version."""


def decoded_tensor(values: Tensor, layer: PackedState, name: str) -> Tensor:
    """Returns a tensor whose writes update the codes of a layer.

    It is a plain tensor if writes are impossible or cannot be detected: in a compiler, in a trace,
    without values, or distributed over processes.
    """
    is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing() or is_transformed()
    if is_traced or type(values) is not Tensor or values.is_inference():
        return values
    values = values.detach()  # what is decoded without gradients may be written to with some
    return DecodedTensor._view(values, _Source(values, layer, name, layer.encoded(name)))


def get_source(x: Any) -> tuple[PackedState, str, Encoded] | None:
    """Returns layer, parameter and codes of a tensor with all values of a parameter; None for
    others.
    """
    if not isinstance(x, DecodedTensor):
        return None
    source, values, root = x._source, x._plain, x._source.root
    is_whole = (values.shape, values.stride()) == (root.shape, root.stride())
    if not is_whole or not _shares_memory(values, root):
        return None
    return source.layer, source.name, source.stored


def plain(x: Any) -> Any:
    """Returns a decoded parameter as a plain tensor in the same memory; other values unchanged.

    >>> plain(1)
    1
    """
    return x._plain if type(x) is DecodedTensor else x


def _plain_in(given: Any) -> Any:
    """Applies `plain` inside lists, tuples and dicts."""
    if isinstance(given, list | tuple):
        first = next(_decoded_in(given), None)
        return given if first is None else type(given)([_plain_in(x) for x in given])
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
    """Executes `target.data = value`: a parameter copies the values, a view is detached from it."""
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
    else:  # it has other memory, as after `set_`
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
    """Converts results in the memory of a parameter to tensors whose writes update its codes."""
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
