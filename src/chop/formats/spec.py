"""QuantSpec: the number format of each operand of an operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from torch import Tensor

from chop.config import convert
from chop.errors import ConfigError, did_you_mean
from chop.formats.base import INPUT_OPERANDS, OPERANDS, NumberFormat, get_format, parse_format
from chop.formats.float import Float
from chop.formats.lsq import LearnableFormat, learnable_names, learns
from chop.formats.mase_config import read_config, read_fields, without_spare_keys
from chop.formats.quantizer import Gradient, Quantizer

FLOAT = Float()
MODULE_WIDE = ("name", "bypass", "gradient")


@dataclasses.dataclass(frozen=True)
class QuantSpec:
    """One quantizer per operand: a number format, of which `float` leaves an operand as it is.

    For a while, as long as a model is observed or exported, a `StandIn` may take a format's place.

    Attributes:
        data_in: the operator's inputs.
        weight: its weight; of a product of two activations, the second factor.
        bias: its bias.
        data_out: its result.
        gradient: how gradients pass: "identity"; "clip" to stop them where values saturate; "lsq"
            to learn the scales of the formats that have some. Operands of other formats then pass
            them unchanged, but some operand has to learn.

    Raises:
        ConfigError: nothing can be learned.
    """

    data_in: Quantizer = FLOAT
    weight: Quantizer = FLOAT
    bias: Quantizer = FLOAT
    data_out: Quantizer = FLOAT
    gradient: Gradient = "identity"

    @classmethod
    def uniform(cls, quantizer: Quantizer) -> QuantSpec:
        """The same quantizer, most often a number format, for inputs, weight and bias."""
        return cls(quantizer, quantizer, quantizer)

    @classmethod
    def parse(
        cls,
        settings: Mapping[str, Any] | QuantSpec,
        operands: Sequence[str] = INPUT_OPERANDS,
        fallback: Mapping[str, str] | None = None,
        where: str = "config",
    ) -> QuantSpec:
        """A spec from a config mapping, in either of two forms.

        Flat, one kind of format, keys prefixed by the operand; a key without a prefix holds for
        every operand, None means the default::

            {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4, "weight_width": 8, ...}

        An operand without keys is an error where the format needs some. Where it needs none, it
        has the defaults if no operand has keys, and else stays float: `{"name": "mxint"}` is all
        in MXINT8, `{"name": "binary", "weight_stochastic": True}` has a binary weight only. A key
        that MASE has for the whole module, `binary_training`, holds for the operands chosen so.

        MASE's liberties are taken in this form: "NA" is None, 4.0 is 4, 1 is True. A value that
        MASE takes and the format cannot have becomes the nearest, with a warning.

        Nested, any format or quantizer per operand, operands left out stay float::

            {"data_in": {"name": "integer", "width": 8, "frac_width": 4}, "weight": Integer(4, 3)}

        `"bypass": True` leaves the operator float; `"gradient"` is the attribute of that name.

        Args:
            settings: the mapping; it is not changed.
            operands: what the operator has. The flat form must cover each of them, save
                `data_out`; keys of operands that it lacks are ignored, so that one mapping can
                serve many operators.
            fallback: operands that take another's format when the flat form leaves them out.
            where: what the mapping belongs to, for messages.

        Raises:
            ConfigError: unknown format or key, missing key, wrong type or range.
            NotBuiltError: a format of MASE's that there is not.
        """
        if isinstance(settings, QuantSpec):
            return settings.only(operands)
        if not isinstance(settings, Mapping):
            raise ConfigError(f"{where}: expected a mapping, got {settings!r}.")
        settings = read_config(settings, where)
        keys = _sort_keys(settings, where)
        bypass = convert(settings.get("bypass"), bool | None, f"{where}.bypass")
        if bypass or (settings.get("name") is None and not keys.nested):
            return cls()
        for operand, source in (fallback or {}).items():
            keys.chosen[operand] = keys.chosen[operand] or keys.chosen[source]
        kind = settings.get("name")
        specified: dict[str, Any] = {
            operand: x if isinstance(x, Quantizer) else parse_format(x, f"{where}.{operand}")
            for operand, x in keys.nested.items()
        }
        for operand in (*operands, "data_out") if kind is not None else ():
            if operand in specified or not keys.has_format(operand, get_format(kind)):
                continue
            values = read_fields(get_format(kind), keys.get_fields(operand))
            _require_all(get_format(kind), values, operand, where)
            specified[operand] = parse_format({"name": kind, **values}, f"{where}.{operand}")
        spec = cls(**specified, gradient=settings.get("gradient") or "identity")
        return spec.only(operands)

    def only(self, operands: Sequence[str]) -> QuantSpec:
        """This spec with every operand float but `operands` and `data_out`."""
        return self.keeping(*operands, "data_out")

    def keeping(self, *operands: str) -> QuantSpec:
        """This spec with every other operand float; where none learns, gradients just pass."""
        kept = {name: quantizer for name, quantizer in self.items() if name in operands}
        learning = self.gradient != "lsq" or any(map(learns, kept.values()))
        return QuantSpec(**kept, gradient=self.gradient if learning else "identity")

    def with_quantizers(self, **quantizers: Quantizer) -> QuantSpec:
        """This spec with other formats, or what stands in for them, by operand."""
        changed: dict[str, Any] = dict(quantizers)
        return dataclasses.replace(self, **changed)

    def number_format(self, operand: str) -> NumberFormat:
        """The format of an operand, to be counted, stored or encoded in it.

        Raises:
            ConfigError: the operand has a stand-in.
        """
        found = getattr(self, operand)
        if isinstance(found, NumberFormat):
            return found
        raise ConfigError(
            f"{operand}: expected a number format, which has bits and codes, got {found.label}, "
            f"which only stands in for one; use spec.with_quantizers({operand}=...) to give it one."
        )

    def __post_init__(self) -> None:
        for operand, given in self.items():
            if not isinstance(given, Quantizer):
                raise ConfigError(
                    f"{operand}: expected a number format, such as Integer(8, 4), got {given!r}."
                )
        if self.gradient not in get_args(Gradient):
            raise ConfigError(
                f"gradient '{self.gradient}': {did_you_mean(self.gradient, get_args(Gradient))}"
            )
        if self.gradient == "lsq" and not self.is_float and not self.lsq_operands:
            raise ConfigError(_nothing_to_learn(self))

    @property
    def lsq_operands(self) -> list[str]:
        """The operands whose scales are learned."""
        return [name for name in OPERANDS if self.learns(name)]

    def learns(self, operand: str) -> bool:
        """Whether the scales of an operand are learned."""
        return self.gradient == "lsq" and learns(getattr(self, operand))

    def with_scales(self, scales: Mapping[str, Tensor]) -> QuantSpec:
        """This spec with scales that were learned, by operand: an ordinary one."""
        settled: dict[str, Any] = {}
        for operand, found in scales.items():
            number_format = getattr(self, operand)
            assert isinstance(number_format, LearnableFormat)
            settled[operand] = number_format.with_scales(found)
        return dataclasses.replace(self, **settled, gradient="identity")

    def items(self) -> list[tuple[str, Quantizer]]:
        """(operand, quantizer) in the order data_in, weight, bias, data_out."""
        return [(operand, getattr(self, operand)) for operand in OPERANDS]

    def as_config(self) -> dict[str, Any]:
        """The config from which `parse` makes this spec, flat if all formats are of one kind.

        >>> from chop.formats import Integer
        >>> QuantSpec(weight=Integer(4, 2)).as_config()["weight_frac_width"]
        2
        """
        chosen = {name: x for name, x in self.items() if not x.is_identity}
        if not chosen:
            return {"name": None}
        config: dict[str, Any] = {} if self.gradient == "identity" else {"gradient": self.gradient}
        kinds = {type(x) for x in chosen.values()}
        kind = kinds.pop()
        if kinds or not issubclass(kind, NumberFormat):
            return config | chosen
        fields = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
        for operand, found in chosen.items():
            config |= {f"{operand}_{name}": getattr(found, name) for name in fields}
        floats = {n: None for n in OPERANDS if n not in chosen and n != "data_out"}
        return {"name": kind.name, **config, **floats}

    @property
    def is_float(self) -> bool:
        """True when every operand is left as it is."""
        return all(quantizer.is_identity for _, quantizer in self.items())

    @property
    def is_fitted(self) -> bool:
        """False while a quantizer waits for data."""
        return all(quantizer.is_fitted for _, quantizer in self.items())

    def fitted(self, samples: Mapping[str, Tensor]) -> QuantSpec:
        """This spec with the quantizers of the operands in `samples` fitted to them."""
        return self.with_quantizers(**{n: getattr(self, n).fitted(x) for n, x in samples.items()})


def _nothing_to_learn(spec: QuantSpec) -> str:
    chosen = [f"{name}={fmt.label}" for name, fmt in spec.items() if not fmt.is_identity]
    return (
        f"gradient 'lsq': {', '.join(chosen)} has no scale to learn; expected one of "
        f"{', '.join(learnable_names())}: scale_integer (granularity tensor or channel) instead of "
        "integer, scaling_factor=True with binary and ternary, and no stochastic signs."
    )


@dataclasses.dataclass
class _Keys:
    """A mapping's keys, sorted.

    Attributes:
        chosen: fields per operand.
        shared: fields of every operand.
        module_wide: fields of every operand that some key speaks of.
        nested: whole formats per operand.
    """

    chosen: dict[str, dict[str, Any]] = dataclasses.field(
        default_factory=lambda: {operand: {} for operand in OPERANDS}
    )
    shared: dict[str, Any] = dataclasses.field(default_factory=dict)
    module_wide: dict[str, Any] = dataclasses.field(default_factory=dict)
    nested: dict[str, Any] = dataclasses.field(default_factory=dict)

    def get_fields(self, operand: str) -> dict[str, Any]:
        """The fields of an operand's format."""
        return {**self.module_wide, **self.shared, **self.chosen[operand]}

    def has_format(self, operand: str, kind: type[NumberFormat]) -> bool:
        """Whether an operand of the operator is to have a format."""
        if operand == "data_out" or self.chosen[operand]:
            return bool(self.chosen[operand])
        return bool(self.shared or _required(kind)) or not any(self.chosen.values())


def _sort_keys(settings: Mapping[str, Any], where: str) -> _Keys:
    kind = get_format(settings.get("name"))
    fields = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    flat_keys = {f"{operand}_{field}": (operand, field) for operand in OPERANDS for field in fields}
    keys = _Keys()
    for key, value in without_spare_keys(kind, settings).items():
        given = {} if value is None else {key: value}
        if key in OPERANDS:
            keys.nested[key] = value
        elif key in flat_keys:
            operand, field = flat_keys[key]
            keys.chosen[operand].update({field: value} if given else {})
        elif key in fields:
            keys.shared.update(given)
        elif key in kind.module_keys:
            field_name = kind.module_keys[key]
            keys.module_wide.update({field_name: value} if given and field_name else {})
        elif key not in MODULE_WIDE:
            known = [*MODULE_WIDE, *OPERANDS, *kind.module_keys, *fields, *flat_keys]
            raise ConfigError(f"{where}: unknown key '{key}': {did_you_mean(key, known)}")
    return keys


def _required(kind: type[NumberFormat]) -> list[str]:
    """The fields without a default."""
    return [
        field.name
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if field.default is dataclasses.MISSING
    ]


def _require_all(
    kind: type[NumberFormat], values: Mapping[str, Any], operand: str, where: str
) -> None:
    for name in _required(kind):
        if name not in values:
            raise ConfigError(
                f"{where}: missing key '{operand}_{name}'; to leave the {operand} as it is, "
                f"write '{operand}': None."
            )
