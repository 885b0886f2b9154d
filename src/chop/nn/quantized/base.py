"""Quantized operators: base class with the formats, and conversion of float modules."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Self, TypeVar, overload

import torch
from torch import Tensor, nn

from chop.captured.wrappers import check_is_module
from chop.errors import ConfigError, describe, first_line
from chop.formats import INPUT_OPERANDS, Quantizer, QuantSpec, initial_scales, lsq_fake_quantize
from chop.nn.adoption import adopt
from chop.nn.quantized import state
from chop.nn.quantized.computed import with_plain_weights
from chop.nn.quantized.masks import (
    FULL,
    SALIENCY,
    apply_mask,
    track_operator,
    zero_masked_weights,
)
from chop.nn.quantized.numbers import has_started
from chop.nn.quantized.replicas import join_replicas
from chop.nn.quantized.running import RANGE_NAMES
from chop.nn.quantized.state import SCALE_NAMES, QuantizedState
from chop.nn.weight_cache import cached_result, can_cache
from chop.private.data_parallel import has_process_group

T = TypeVar("T")

_FROM_FORMATS = frozenset({"config", "bypass", "x_quantizer", "w_quantizer", "b_quantizer"})


class QuantizedOperator(QuantizedState):
    """Mixin that gives a `torch.nn` class a `QuantSpec`.

    `class QuantLinear(QuantizedOperator, nn.Linear)` takes the constructor arguments of
    `nn.Linear` plus `config`, and has the same parameters, buffers and `state_dict` keys.

    With float formats it computes the result of the `torch.nn` class. It also carries the mask of a
    pruned weight: a boolean buffer `weight_mask` of the weight's shape, True for kept weights.
    Masked weights count as zero, get no gradient, and are zero in `weight` after pruning, after
    loading and after each optimizer step. A buffer `weight_orig` of the weight's shape and dtype
    stores their previous values.

    With `gradient="lsq"` the operator has a parameter for the learned scales of each operand:
    `weight_scale`, `data_in_scale` ..., float32 (n,), which exist from the beginning so that
    optimizers know them. The number of weight scales depends on the format; inputs and results have
    those of one row for any batch size. All-zero scales are uninitialized: they are measured from
    the tensor at each call. The first call in training mode stores them, or in evaluation the first
    gradient. `freeze_scales` ends the training of scales.

    An uncalibrated format with a derived field (`frac_width="auto"`) follows the training data,
    like an observer; see `chop.nn.quantized.running`. In evaluation the fit is constant. Without
    training, every tensor is fitted separately, which is many times as slow. The state is in the
    buffers `data_in_range`, `data_out_range` ...; state dicts without them load and leave them
    unchanged. A compiled operator uses the fit at the time of compilation.
    """

    operands: tuple[str, ...] = ("data_in",)
    """Operands to quantize, in addition to `data_out`."""
    fallback: ClassVar[Mapping[str, str]] = {}
    """Operands that use another operand's format if a config omits them."""
    exact_buffers: ClassVar[tuple[str, ...]] = tuple(RANGE_NAMES.values())
    """Suffixes of float buffers whose dtype a conversion of the model does not change."""
    function: Callable[..., Any] | None = None
    """Function whose calls the operator replaces; None if it replaces a module."""

    meets_masks: bool = False
    """True if inputs may be masked scores: see `chop.nn.quantized.scores`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        unknown = sorted({*cls.operands} - {*INPUT_OPERANDS})
        if unknown:
            raise ConfigError(
                f"{cls.__name__}.operands: expected some of {', '.join(INPUT_OPERANDS)}, got "
                f"{', '.join(unknown)}. Configs have formats for these only."
            )

    def __new__(
        cls, *args: Any, config: QuantSpec | Mapping[str, Any] | None = None, **kwargs: Any
    ) -> Self:
        """Initializes every operator: created, copied, unpickled or loaded."""
        operator = super().__new__(cls)
        track_operator(operator)
        return operator

    def __init__(
        self, *args: Any, config: QuantSpec | Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        given = (*args, *kwargs.values())
        if any(isinstance(x, Mapping | QuantSpec) for x in given) and not isinstance(
            given[0], nn.Module
        ):  # torch takes a mapping as bias=True
            raise ConfigError(f"{type(self).__name__}: pass the formats by name, config={{...}}.")
        try:
            super().__init__(*args, **kwargs)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(_describe_arguments(type(self), args, kwargs, error)) from error
        present = self.present_operands(self)
        self.spec = QuantSpec.parse(
            {} if config is None else config, present, self.fallback, type(self).__name__
        )
        state.renew(self, QuantSpec())

    @classmethod
    def present_operands(cls, module: nn.Module) -> list[str]:
        """Returns the operands of this operator that `module` has: a layer may lack a bias."""
        names = cls.operands
        return [n for n in names if n == "data_in" or getattr(module, n, None) is not None]

    @classmethod
    def from_float(cls, module: nn.Module, spec: QuantSpec) -> Self:
        """Takes over the parameters, buffers, hooks, device, dtype and mode of `module`.

        Nothing is copied; do not use the float module afterwards. Derived fields in the formats of
        weight and bias are fitted to the tensors now. A weight computed by a parametrization or a
        hook of torch becomes a parameter with its current value.

        Raises:
            ConfigError: if the module's forward was replaced on the instance, or it is a layer of
                torch of another kind.
        """
        check_is_module(module, f"{cls.__name__}.from_float")
        if not isinstance(spec, QuantSpec):
            spec = QuantSpec.parse(spec, INPUT_OPERANDS, cls.fallback, f"{cls.__name__}.from_float")
        module = with_plain_weights(module)
        if isinstance(module, QuantizedOperator):
            module = module.unpack()
        _check_class(cls, module)
        twin = adopt(cls, module)
        present = cls.present_operands(module)
        tensors = {name: twin.effective(name) for name in present if name != "data_in"}
        before = module.spec if isinstance(module, QuantizedOperator) else QuantSpec()
        twin.spec = spec.only(present).fitted(tensors)
        state.renew(twin, before)
        return twin

    def with_spec(self, spec: QuantSpec) -> Self:
        """Returns the operator in other formats, with the same parameters."""
        return self.from_float(self, spec)

    def unpack(self) -> QuantizedOperator:
        """Returns the operator with its weight as a parameter; itself, unless it is packed."""
        return self

    def freeze_scales(self) -> QuantizedOperator:
        """Returns the operator with learned scales and trained fits fixed in its formats.

        Results are bit-identical. An operator that learns nothing is returned as it is.

        Raises:
            ConfigError: if scales are uninitialized, infinite or NaN.
        """
        buffers: dict[str, Tensor] = {}
        for operand in self.spec.lsq_operands:
            scales = self._parameters[SCALE_NAMES[operand]]
            if not has_started(scales):
                if operand not in self._parameters:
                    raise ConfigError(state.uninitialized_message(self, operand, "first."))
                weight = self.effective(operand).detach()
                scales = nn.Parameter(initial_scales(self.spec.number_format(operand), weight))
            assert scales is not None
            buffers[operand] = scales
        fits = self.fits
        if buffers:
            return self.with_spec(self.spec.with_scales(buffers).with_quantizers(**fits))
        if not fits:
            return self
        twin = copy.copy(self)  # a packed operator stays packed
        twin.take_spec(self.spec.with_quantizers(**fits))
        return twin

    @property
    def learns_from_inputs(self) -> bool:
        """True if a training call may initialize scales of inputs or update their ranges."""
        spec = vars(self).get("spec")
        if spec is None:  # an attention, whose steps have the formats
            return False
        follows = self.training and any(not fmt.is_fitted for _, fmt in spec.items())
        return follows or bool(spec.lsq_operands and self.waiting)

    @property
    def may_learn_from_inputs(self) -> bool:
        """True if a later training call may learn from inputs, in any mode."""
        spec = vars(self).get("spec")
        return spec is not None and (not spec.is_fitted or bool(self.waiting))

    @property
    def fits_each_tensor(self) -> bool:
        """True if a format still lacks the training data for its derived field."""
        spec = vars(self).get("spec")
        return spec is not None and any(
            not fmt.is_fitted and name not in self.fits for name, fmt in spec.items()
        )

    def _operand(self, name: str) -> Any:
        """Returns the unquantized parameter that the operator computes with; None without one.

        It is the attribute of that name; packed operators return cached decoded values.
        """
        return getattr(self, name)

    @overload
    def quantize(self, operand: str | None, x: Tensor, hidden: Tensor | None = None) -> Tensor: ...
    @overload
    def quantize(self, operand: str | None, x: T, hidden: Tensor | None = None) -> T: ...
    def quantize(self, operand: str | None, x: Any, hidden: Tensor | None = None) -> Any:
        """Fake-quantizes `x` as that operand; only floating-point tensors are changed.

        Args:
            operand: None leaves `x` unchanged.
            x: the tensor.
            hidden: boolean, broadcasts to the shape of `x`: True for masked scores, which stay
                unchanged and do not affect scales.
        """
        if operand is None or not isinstance(x, Tensor) or not torch.is_floating_point(x):
            return x
        if getattr(self.spec, operand).is_identity and not (operand == "weight" and self.is_pruned):
            return x
        if hidden is not None:
            return torch.where(hidden, x, self.quantize(operand, self._visible(operand, x, hidden)))
        if (self.training or torch.is_grad_enabled()) and has_process_group():
            join_replicas(self)
        mask = self.weight_mask if operand == "weight" and self.is_pruned else None
        if isinstance(x, nn.Parameter) and can_cache(self):
            return self._cached(operand, x, mask)
        return self._round(operand, x, mask)

    def _visible(self, operand: str, x: Tensor, hidden: Tensor) -> Tensor:
        """Replaces masked scores in `x` by numbers that do not affect scales."""
        # Measured starts leave infinities out, and no gradient comes back from them.
        fill = -math.inf if self.spec.learns(operand) else self.operand_format(operand).neutral
        return torch.where(hidden, fill, x)

    def operand_format(self, operand: str) -> Quantizer:
        """Returns the current format of an operand, fitted to the training data if available."""
        quantizer: Quantizer = getattr(self.spec, operand)
        return quantizer if quantizer.is_fitted else state.restored_fit(self, operand, quantizer)

    def _round(self, operand: str, x: Tensor, mask: Tensor | None) -> Tensor:
        # Masked twice: shared scales must not see what is hidden, and not every format has a zero.
        x = x if mask is None else apply_mask(x, mask)
        if self.training and not getattr(self.spec, operand).is_fitted:
            state.observe_operand(self, operand, x)
        if self.spec.learns(operand):
            scales = state.scales_for(self, operand, x)
            is_batch = operand not in self._parameters
            y = lsq_fake_quantize(x, scales, self.spec.number_format(operand), is_batch)
        else:
            y = self.operand_format(operand)(x, self.spec.gradient)
        return y if mask is None else apply_mask(y, mask)

    def _cached(self, operand: str, x: Tensor, mask: Tensor | None) -> Tensor:
        quantizer = self.operand_format(operand)
        key = quantizer.cache_key
        if key is None or (quantizer.is_identity and mask is None):
            return self._round(operand, x, mask)
        scales = self._parameters.get(SCALE_NAMES[operand])
        sources = tuple(tensor for tensor in (x, mask, scales) if tensor is not None)
        rule = key, self.spec.learns(operand)
        return cached_result(self, operand, sources, rule, lambda: self._round(operand, x, mask))

    def start_scales(self, operand: str, x: Tensor) -> None:
        """Initializes the learned scales of an operand from a tensor, replacing existing ones.

        Args:
            operand: operand with learned scales.
            x: tensor to quantize. Fake, empty, all-zero and non-finite tensors change nothing.
        """
        start = state.measured_scales(self, operand, x)
        scales = self._parameters[SCALE_NAMES[operand]]
        if start is not None and scales is not None:
            state.write_scales(self, operand, start, scales)

    def __setstate__(self, fields: Mapping[str, Any]) -> None:
        """Unpickles; see `state.adopt_attributes`."""
        super().__setstate__(dict(fields))  # type: ignore[no-untyped-call]
        state.adopt_attributes(self)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves and converts like any module, but keeps the dtype of `exact_buffers`."""
        exact = {
            name: x
            for name, x in self._buffers.items()
            if x is not None and name.endswith(self.exact_buffers) and x.is_floating_point()
        }
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, before in exact.items():
            now = self._buffers[name]
            assert now is not None
            if now.dtype != before.dtype:
                self._buffers[name] = before.to(now.device)
        return self

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        *rest: Any,
    ) -> None:
        """Loads a state dict; ranges that it lacks, like those of float models, stay unchanged.

        A dense weight without `weight_orig`, as in earlier state dicts with masks, also provides
        the values that the mask hides. Saliency is dropped if the state dict has none.
        """
        for name in (FULL, SALIENCY):
            if prefix + "weight" in state_dict and prefix + name not in state_dict:
                self._buffers.pop(name, None)
        missing: list[str] = []
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, *rest)
        ranges = {prefix + name for name in RANGE_NAMES.values()}
        missing_keys += [name for name in missing if name not in ranges]
        zero_masked_weights(self)
        state.update_known_state(self)

    # An attribute of that name on the float module stays what it was.
    @property
    def config(self) -> dict[str, Any]:
        """The formats as a config of MASE, which recreates them by `cls(..., config=...)`."""
        return vars(self).get("config", None) or self.spec.as_config()

    @property
    def bypass(self) -> bool:
        """True if every operand is float; to set it, quantize with `"bypass": True`."""
        return bool(vars(self).get("bypass", self.spec.is_float))

    @property
    def x_quantizer(self) -> Callable[[Tensor], Tensor]:
        """Fake-quantizer of the operator's inputs, under MASE's name."""
        return partial(self.quantize, "data_in")

    @property
    def w_quantizer(self) -> Callable[[Tensor], Tensor]:
        """Fake-quantizer of the operator's weight."""
        return partial(self.quantize, "weight")

    @property
    def b_quantizer(self) -> Callable[[Tensor], Tensor]:
        """Fake-quantizer of the operator's bias."""
        return partial(self.quantize, "bias")

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute; raises ConfigError for those derived from the formats."""
        if name in _FROM_FORMATS:
            raise ConfigError(
                f"{type(self).__name__}.{name} is derived from its formats and cannot be set; "
                'quantize the layer with other formats, or with "bypass": True'
            )
        super().__setattr__(name, value)

    def extra_repr(self) -> str:
        """Returns the float module's text and the formats."""
        chosen = [f"{name}={q.label}" for name, q in self.spec.items() if not q.is_identity]
        return ", ".join(text for text in (super().extra_repr(), *chosen) if text)


def float_class(operator: type[QuantizedOperator]) -> type[nn.Module]:
    """Returns the class that an operator quantizes: its nearest ancestor without formats."""
    bases = (base for base in operator.__mro__ if issubclass(base, nn.Module))
    return next(base for base in bases if not issubclass(base, QuantizedState))


def leaf_operators(model: nn.Module) -> dict[str, QuantizedOperator]:
    """Returns the innermost quantized operators by path."""
    check_is_module(model, "leaf_operators")
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, QuantizedOperator)
        and not any(isinstance(child, QuantizedOperator) for child in module.children())
    }


@contextlib.contextmanager
def quantizers_off(model: nn.Module) -> Iterator[None]:
    """Disables the quantizers of a model inside the block."""
    steps = leaf_operators(model)
    specs = {name: step.spec for name, step in steps.items()}
    try:
        for step in steps.values():
            step.spec = step.spec.keeping()
        yield
    finally:
        for name, step in steps.items():
            step.spec = specs[name]


def _check_class(cls: type[nn.Module], module: nn.Module) -> None:
    """Raises ConfigError for a layer of torch that is of another class than the operator."""
    own = [each for each in cls.__mro__ if each.__module__.startswith("torch.nn.modules.")]
    kind = type(module)
    if kind.__module__.startswith("torch.nn.modules.") and not issubclass(kind, own[0]):
        raise ConfigError(
            f"{cls.__name__}.from_float: expected a {own[0].__name__}, got a {kind.__name__}."
        )


def _describe_arguments(
    cls: type[nn.Module], args: Sequence[Any], named: Mapping[str, Any], error: Exception
) -> str:
    """Returns the message about arguments that the float class rejects."""
    given = [*map(describe, args), *(f"{name}={describe(x)}" for name, x in named.items())]
    is_tensor = any(isinstance(x, Tensor) for x in (*args, *named.values()))
    advice = "Write bias=layer.bias is not None. " * is_tensor
    base = next(each for each in cls.__mro__ if each.__module__.startswith("torch.nn"))
    return (
        f"{cls.__name__}: expected the arguments of nn.{base.__name__}, and formats as config=, "
        f"got {', '.join(given) or 'none'} ({first_line(error)}). {advice}"
        f"{cls.__name__}.from_float(layer, spec) converts a layer."
    )
