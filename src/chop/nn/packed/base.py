"""Packed operators: base of those that store codes."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.formats import Encoded, NumberFormat, Quantizer, QuantSpec
from chop.kernels import fake_quantize_directly
from chop.nn.adoption import adopt
from chop.nn.packed.decoded import DecodedTensor, decoded_tensor, get_source, plain
from chop.nn.packed.encoding import encode_in_parts
from chop.nn.packed.rewriting import assign
from chop.nn.packed.state import BUFFER_NAMES, PackedState, Parameters, not_a_parameter
from chop.nn.quantized import QuantizedOperator
from chop.nn.quantized.masks import MASK, MASK_BUFFERS
from chop.nn.weight_cache import decoded_once
from chop.private.modules import BUFFERS, PARAMETERS, own_buffers, own_parameters, set_members

SMALL = 2**14
"""Elements of a parameter that is decoded once."""
KnownCodes = MutableMapping[tuple[int, str], Encoded]
"""Codes by the id of the parameter and the key of the format, so that shared ones stay shared."""


PACKED: dict[type[QuantizedOperator], type[PackedOperator]] = {}
"""The packed twin of each operator with a weight."""


class PackedOperator(PackedState):
    """Mixin that replaces the quantized parameters of an operator by their codes.

    One layer at a time is decoded, while it runs. Parameters of up to `SMALL` elements are decoded
    once and kept, since decoding would take longer than what is computed with them: 64 kB of
    float32 each, from the first forward on, beside the codes. They are no part of the module:
    files, pickles and copies have the codes alone, and other codes are decoded anew. One change
    cannot be seen, a write past autograd (`layer.weight_codes.data.zero_()`).

    The buffers of `weight` are `weight_codes` (uint8, bit-packed, one-dimensional), `weight_scales`
    (uint8 or float32) where the format has scales, and `weight_tensor_scale` (float32) where it has
    one for all; a quantized bias has the same. `module.weight` decodes them, and what is written to
    it is encoded, see `DecodedTensor`. Changes of device take the codes along; a change to another
    floating dtype changes what they are decoded to, and float32 scales stay float32.

    A packed operator is made by `pack` and cannot be trained; `unpack` gives the trainable one.
    """

    operator: ClassVar[type[QuantizedOperator]]
    """The class that it packs."""
    is_derived: ClassVar[bool] = False
    """`packed_twin` made the class, in the operator's module."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "operator" in vars(cls):
            PACKED[cls.operator] = cls

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        name = self.operator.__name__
        raise ConfigError(f"{type(self).__name__}: pack(layer) makes one from a {name}.")

    @classmethod
    def from_float(cls, module: nn.Module, spec: QuantSpec) -> Self:
        """Packs `module` in the formats of `spec`; see `pack`."""
        return cls.of(cls.operator.from_float(module, spec), {})

    @classmethod
    def of(cls, layer: QuantizedOperator, known: KnownCodes, exact: bool = False) -> Self:
        """Takes over a quantized layer that nothing keeps from being packed; see `pack`."""
        packed = {name: encoded(layer, name, known) for name in packable_operands(layer)}
        parameters = {name: x for name, x in own_parameters(layer).items() if name not in packed}
        buffers = {name: x for name, x in own_buffers(layer).items() if name not in MASK_BUFFERS}
        for name, stored in packed.items():
            parts = zip(
                BUFFER_NAMES[name], (stored.codes, stored.scales, stored.tensor_scale), strict=True
            )
            buffers.update({buffer: x for buffer, x in parts if x is not None})
        own = {PARAMETERS: Parameters(parameters, cls.__name__), BUFFERS: buffers}
        twin = adopt(cls, layer, **own)
        twin.packed_shapes = {name: stored.shape for name, stored in packed.items()}
        assert isinstance(layer.weight, Tensor)
        twin.packed_dtype = layer.weight.dtype
        twin.packed_trainable = tuple(n for n in packed if getattr(layer, n).requires_grad)
        twin.packed_mask = layer.is_pruned
        twin.packed_exact = exact
        return twin

    @property
    def weight(self) -> Tensor:
        """The decoded weight: the values that the operator computes with."""
        return self._writable("weight")

    @property
    def bias(self) -> Tensor | None:
        """The decoded bias, or the float one, or None."""
        if "bias" in self.packed_shapes:
            return self._writable("bias")
        return self._parameters.get("bias")

    def __setattr__(self, name: str, value: Any) -> None:
        """Encodes what is assigned to a packed parameter."""
        if name not in vars(self).get("packed_shapes", ()):
            if name != "bias" or value is not None or name in self._parameters:  # it has none
                super().__setattr__(name, value)
        elif isinstance(value, Tensor):
            assign(self, name, plain(value), get_source(value))
        else:
            raise ConfigError(
                f"{type(self).__name__}.{name} is stored as codes; expected a tensor, got a "
                f"{type(value).__name__}."
            )

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Registers a parameter beside the codes, as any module.

        Raises:
            ConfigError: it is a packed one, as torch's pruning (`torch.nn.utils.prune`) gives it.
        """
        if isinstance(param, DecodedTensor) and not isinstance(param, nn.Parameter):
            raise ConfigError(not_a_parameter(type(self).__name__, name))
        super().register_parameter(name, param)

    def _operand(self, name: str) -> Any:
        """The decoded values of a parameter, to be read only; a float one as it is."""
        if name not in self.packed_shapes:
            return self._parameters.get(name)
        return self._decoded(name)

    def _writable(self, name: str) -> Tensor:
        with torch.inference_mode(False), torch.no_grad():
            values = self._decoded(name)
        return decoded_tensor(values, self, name)

    def _decoded(self, name: str) -> Tensor:
        if not self._is_kept(name):
            return self._decode(name, self.encoded(name))
        buffers = self._buffers
        sources = [x for buffer in BUFFER_NAMES[name] if (x := buffers.get(buffer)) is not None]
        rule = getattr(self.spec, name).key, self.packed_dtype
        return decoded_once(
            self, name, sources, rule, lambda: self._decode(name, self.encoded(name))
        )

    def _is_kept(self, name: str) -> bool:
        """Whether the decoded parameter is kept from one forward to the next."""
        return not torch.compiler.is_compiling() and self.packed_shapes[name].numel() <= SMALL

    def quantize(self, operand: str | None, x: Any, hidden: Tensor | None = None) -> Any:
        """What is packed is in its format already; the rest is quantized as ever.

        Raises:
            ConfigError: the layer is being trained.
        """
        if operand in self.packed_shapes:
            self._refuse_training(operand)
            return plain(x)
        if hidden is not None:
            return super().quantize(operand, x, hidden)
        if operand is None or not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        quantizer = self.operand_format(operand)
        # What learns its scales, or hides weights by a mask, is not packed.
        if quantizer.is_identity:
            return x
        if not isinstance(quantizer, NumberFormat):
            return quantizer(x, self.spec.gradient)
        return fake_quantize_directly(x, quantizer, self.spec.gradient)

    def _refuse_training(self, operand: str) -> None:
        # A layer that was frozen before it was packed hands gradients on, to an adapter's for one.
        if self.training and torch.is_grad_enabled() and operand in self.packed_trainable:
            raise ConfigError(
                f"a {type(self).__name__} cannot be trained: its {operand} is stored as codes. "
                "Call model.eval() to use it, train adapters on mg.to_module(), or unpack it to "
                "train: pack_transform_pass(mg, {'unpack': True})."
            )

    def with_spec(self, spec: QuantSpec) -> QuantizedOperator:  # type: ignore[override]
        """The unpacked operator in other formats."""
        return self.unpack().with_spec(spec)

    def unpack(self) -> QuantizedOperator:
        """The operator with its decoded parameters, which can be trained.

        A layer that was pruned gets a mask: what is zero stays zero.
        """
        twin = self.operator.__new__(self.operator)
        own = {name: x for name, x in vars(self).items() if name not in ATTRIBUTES}
        decoded = {
            name: nn.Parameter(
                self._decode(name, self.encoded(name)), name in self.packed_trainable
            )
            for name in self.packed_shapes
        }
        codes = {buffer for name in decoded for buffer in BUFFER_NAMES[name]}
        buffers = {name: x for name, x in self._buffers.items() if name not in codes}
        if self.packed_mask:
            buffers[MASK] = decoded["weight"].detach() != 0
        twin.__dict__.update(own)
        set_members(twin, {**decoded, **self._parameters}, buffers)
        return twin


def packed_twin(operator: type[QuantizedOperator], home: str | None = None) -> type[PackedOperator]:
    """The packed twin of an operator; without one, a class that decodes before it computes.

    Args:
        operator: quantizes its `weight`, as `self.quantize("weight", self.weight)`.
        home: the module that a new class belongs to, for pickles; default, the operator's. They
            are read back where that module has made the class again.

    Raises:
        ConfigError: there is no such module, or it has something else of the new class's name.
    """
    if operator in PACKED:
        return PACKED[operator]
    module = sys.modules.get(home or operator.__module__)
    name = f"Packed{operator.__name__.removeprefix('Quant')}"
    if module is None or not _is_free(getattr(module, name, None)):
        why = f"has a {name} already" if module is not None else "is not imported"
        raise ConfigError(f"{operator.__name__}: its module '{operator.__module__}' {why}.")
    text = f"`{operator.__name__}` from codes, with the same tensors."
    body = {"__module__": module.__name__, "__doc__": text, "operator": operator}
    setattr(module, name, type(name, (PackedOperator, operator), {**body, "is_derived": not home}))
    return PACKED[operator]


def _is_free(found: Any) -> bool:
    """Whether a derived class may take a name: nothing has it, or a twin that was dropped."""
    derived = getattr(found, "is_derived", False)
    return found is None or (derived and PACKED.get(found.operator) is not found)


def drop_packed_twin(operator: type[QuantizedOperator]) -> None:
    """Forgets the packed twin of an operator, if it was derived from the operator alone."""
    if operator in PACKED and PACKED[operator].is_derived:
        del PACKED[operator]


ATTRIBUTES = ("packed_shapes", "packed_dtype", "packed_trainable", "packed_mask", "packed_exact")


def packable_operands(layer: QuantizedOperator) -> list[str]:
    """The parameters of a layer that have a format which codes can stand for."""
    present = layer.present_operands(layer)
    return [name for name in present if name != "data_in" and _packs(getattr(layer.spec, name))]


def _packs(quantizer: Quantizer) -> bool:
    is_format = isinstance(quantizer, NumberFormat) and quantizer.is_deterministic
    return is_format and quantizer.is_fitted and not quantizer.is_identity


def encoded(layer: QuantizedOperator, name: str, known: KnownCodes) -> Encoded:
    """The codes of a parameter that is not packed yet."""
    number_format = layer.spec.number_format(name)
    key = (id(getattr(layer, name)), number_format.key)
    if key not in known:
        known[key] = encode_in_parts(number_format, layer.effective(name).detach())
    return known[key]
