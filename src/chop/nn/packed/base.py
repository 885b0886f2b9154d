"""Base class of packed operators, which store codes."""

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
"""Maximum number of elements of a parameter that is decoded once."""
KnownCodes = MutableMapping[tuple[int, str], Encoded]
"""Codes by the id of the parameter and the key of the format, which preserve sharing."""


PACKED: dict[type[QuantizedOperator], type[PackedOperator]] = {}
"""The packed twin of each operator with a weight."""


class PackedOperator(PackedState):
    """Mixin that replaces the quantized parameters of an operator by their codes.

    A layer decodes its parameters while it runs. Parameters of up to `SMALL` elements are decoded
    once and cached, since decoding would take longer than the computation: 64 kB of float32 each,
    from the first forward on, in addition to the codes. The cache is not part of the module: files,
    pickles and copies contain the codes only, and changed codes are decoded again. Writes that
    bypass autograd (`layer.weight_codes.data.zero_()`) are not detected.

    The buffers of `weight` are `weight_codes` (uint8, bit-packed, one-dimensional), `weight_scales`
    (uint8 or float32) if the format has scales, and `weight_tensor_scale` (float32) if it has one
    for the tensor; a quantized bias has the same. `module.weight` decodes them, and writes to it
    are encoded, see `DecodedTensor`. A change of device moves the codes. A change of the floating
    dtype changes the dtype of decoded values; float32 scales stay float32.

    `pack` creates a packed operator, which cannot be trained; `unpack` returns the trainable one.
    """

    operator: ClassVar[type[QuantizedOperator]]
    """The class that it packs."""
    is_derived: ClassVar[bool] = False
    """True for classes that `packed_twin` creates in the operator's module."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "operator" in vars(cls):
            PACKED[cls.operator] = cls

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        name = self.operator.__name__
        raise ConfigError(f"{type(self).__name__}: create it from a {name} by pack(layer).")

    @classmethod
    def from_float(cls, module: nn.Module, spec: QuantSpec) -> Self:
        """Packs `module` in the formats of `spec`; see `pack`."""
        return cls.of(cls.operator.from_float(module, spec), {})

    @classmethod
    def of(cls, layer: QuantizedOperator, known: KnownCodes, exact: bool = False) -> Self:
        """Takes over a packable quantized layer; see `pack`."""
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
        """The decoded weight, as used by the operator."""
        return self._writable("weight")

    @property
    def bias(self) -> Tensor | None:
        """The decoded bias, or the float one, or None."""
        if "bias" in self.packed_shapes:
            return self._writable("bias")
        return self._parameters.get("bias")

    def __setattr__(self, name: str, value: Any) -> None:
        """Encodes values assigned to a packed parameter."""
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
        """Registers a parameter in addition to the codes.

        Raises:
            ConfigError: if the parameter is packed; torch's pruning (`torch.nn.utils.prune`)
                registers such.
        """
        if isinstance(param, DecodedTensor) and not isinstance(param, nn.Parameter):
            raise ConfigError(not_a_parameter(type(self).__name__, name))
        super().register_parameter(name, param)

    def _operand(self, name: str) -> Any:
        """Returns the decoded values of a parameter, read-only; a float one unchanged."""
        if name not in self.packed_shapes:
            return self._parameters.get(name)
        return self._decoded(name)

    def _writable(self, name: str) -> Tensor:
        with torch.inference_mode(False), torch.no_grad():
            values = self._decoded(name)
        return decoded_tensor(values, self, name)

    def _decoded(self, name: str) -> Tensor:
        if not self._is_cached(name):
            return self._decode(name, self.encoded(name))
        buffers = self._buffers
        sources = [x for buffer in BUFFER_NAMES[name] if (x := buffers.get(buffer)) is not None]
        rule = getattr(self.spec, name).key, self.packed_dtype
        return decoded_once(
            self, name, sources, rule, lambda: self._decode(name, self.encoded(name))
        )

    def _is_cached(self, name: str) -> bool:
        """Returns whether the decoded parameter is cached between forwards."""
        return not torch.compiler.is_compiling() and self.packed_shapes[name].numel() <= SMALL

    def quantize(self, operand: str | None, x: Any, hidden: Tensor | None = None) -> Any:
        """Quantizes an operand; packed parameters are already in their format.

        Raises:
            ConfigError: if the layer is being trained.
        """
        if operand in self.packed_shapes:
            self._refuse_training(operand)
            return plain(x)
        if hidden is not None:
            return super().quantize(operand, x, hidden)
        if operand is None or not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        quantizer = self.operand_format(operand)
        # Operators with learned scales or pruning masks are not packed.
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
        """Returns the unpacked operator in other formats."""
        return self.unpack().with_spec(spec)

    def unpack(self) -> QuantizedOperator:
        """Returns the operator with its decoded parameters, which can be trained.

        A layer that was pruned gets a mask that keeps its zeros.
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
    """Returns the packed twin of an operator, or derives a class that decodes before it computes.

    Args:
        operator: quantizes its `weight`, as `self.quantize("weight", self.weight)`.
        home: module that a new class belongs to, for pickles. Default: the operator's. Pickles load
            if that module has created the class again.

    Raises:
        ConfigError: if the module does not exist, or uses the new class's name for something else.
    """
    if operator in PACKED:
        return PACKED[operator]
    module = sys.modules.get(home or operator.__module__)
    name = f"Packed{operator.__name__.removeprefix('Quant')}"
    if module is None or not _is_free(getattr(module, name, None)):
        why = f"already has a {name}" if module is not None else "is not imported"
        raise ConfigError(
            f"cannot pack {operator.__name__}: its module '{operator.__module__}' {why}."
        )
    text = f"`{operator.__name__}` from codes, with the same tensors."
    body = {"__module__": module.__name__, "__doc__": text, "operator": operator}
    setattr(module, name, type(name, (PackedOperator, operator), {**body, "is_derived": not home}))
    return PACKED[operator]


def _is_free(existing: Any) -> bool:
    """Returns whether a derived class may use a name: it is unused, or a dropped twin."""
    derived = getattr(existing, "is_derived", False)
    return existing is None or (derived and PACKED.get(existing.operator) is not existing)


def drop_packed_twin(operator: type[QuantizedOperator]) -> None:
    """Removes the packed twin of an operator, if it is a derived class."""
    if operator in PACKED and PACKED[operator].is_derived:
        del PACKED[operator]


ATTRIBUTES = ("packed_shapes", "packed_dtype", "packed_trainable", "packed_mask", "packed_exact")


def packable_operands(layer: QuantizedOperator) -> list[str]:
    """Returns the parameters of a layer whose format has codes."""
    present = layer.present_operands(layer)
    return [name for name in present if name != "data_in" and _packs(getattr(layer.spec, name))]


def _packs(quantizer: Quantizer) -> bool:
    is_format = isinstance(quantizer, NumberFormat) and quantizer.is_deterministic
    return is_format and quantizer.is_fitted and not quantizer.is_identity


def encoded(layer: QuantizedOperator, name: str, known: KnownCodes) -> Encoded:
    """Returns the codes of a parameter that is not packed yet."""
    number_format = layer.spec.number_format(name)
    key = (id(getattr(layer, name)), number_format.key)
    if key not in known:
        known[key] = encode_in_parts(number_format, layer.effective(name).detach())
    return known[key]
