"""QuantSpec: the number format of each operand of an operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from torch import Tensor

from chop.config import convert, with_checked_init
from chop.errors import ConfigError, check_known, describe, did_you_mean, enumerate_names
from chop.formats.base import INPUT_OPERANDS, OPERANDS, REGISTRY, NumberFormat
from chop.formats.float import Float
from chop.formats.lsq import LearnableFormat, learnable_names, learns
from chop.formats.mase_config import read_config, read_fields, without_spare_keys
from chop.formats.parsing import get_format, parse_format
from chop.formats.quantizer import Gradient, Quantizer

FLOAT = Float()
MODULE_WIDE = ("name", "bypass", "gradient")


@with_checked_init
@dataclasses.dataclass(frozen=True)
class QuantSpec:
    """Number format of each operand of an operator; `float` does not change an operand.

    While a model is observed or exported, a `StandIn` may replace a format temporarily.

    Attributes:
        data_in: format of the operator's inputs.
        weight: format of its weight; for a product of two activations, of the second factor.
        bias: format of its bias.
        data_out: format of its result.
        gradient: "identity" passes gradients unchanged; "clip" stops them at saturated values;
            "lsq" learns the scales of formats that support it. Operands in other formats then pass
            gradients unchanged. At least one operand must be learnable.

    Raises:
        ConfigError: if "lsq" is set and no operand can be learned.
    """

    data_in: Quantizer = FLOAT
    weight: Quantizer = FLOAT
    bias: Quantizer = FLOAT
    data_out: Quantizer = FLOAT
    gradient: Gradient = "identity"

    @classmethod
    def uniform(cls, quantizer: Quantizer) -> QuantSpec:
        """Returns a spec with the same quantizer for inputs, weight and bias."""
        return cls(quantizer, quantizer, quantizer)

    @classmethod
    def parse(
        cls,
        settings: Mapping[str, Any] | QuantSpec | NumberFormat,
        operands: Sequence[str] = INPUT_OPERANDS,
        fallback: Mapping[str, str] | None = None,
        where: str = "config",
    ) -> QuantSpec:
        """Parses a config mapping, which has one of two forms.

        The flat form has one kind of format, and keys prefixed by the operand. A key without a
        prefix applies to every operand, and None means the default::

            {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4, "weight_width": 8, ...}

        An operand without keys is an error if the format has required fields. Otherwise it gets the
        defaults if no operand has keys, and else stays float: `{"name": "mxint"}` means MXINT8 for
        all, `{"name": "binary", "weight_stochastic": True}` a binary weight only. MASE's key for
        the whole module, `binary_training`, applies to the operands chosen this way.

        The flat form accepts MASE's spellings: "NA" is None, 4.0 is 4, 1 is True. A value that MASE
        accepts and the format does not becomes the nearest valid one, with a warning.

        The nested form has any format or quantizer per operand. Missing operands stay float::

            {"data_in": {"name": "integer", "width": 8, "frac_width": 4}, "weight": Integer(4, 3)}

        `"bypass": True` leaves the operator in float; `"gradient"` sets the attribute of that name.

        Args:
            settings: the mapping, which is not changed, a spec, or one format for all operands.
            operands: operands of the operator. The flat form must cover each of them except
                `data_out`. Keys of other operands are ignored, so that one mapping can serve many
                operators.
            fallback: operands that take another's format if the flat form lacks them.
            where: owner of the mapping, for messages.

        Raises:
            ConfigError: if a format or key is unknown or missing, or a type or range is wrong.
            NotBuiltError: if the mapping names a format of MASE that chop lacks.
        """
        if isinstance(settings, QuantSpec | NumberFormat):
            spec = cls.uniform(settings) if isinstance(settings, NumberFormat) else settings
            return spec.only(operands)
        if not isinstance(settings, Mapping):
            raise ConfigError(f"{where}: expected a mapping, got {describe(settings)}.")
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
        """Returns this spec with every operand float except `operands` and `data_out`."""
        return self.keeping(*operands, "data_out")

    def keeping(self, *operands: str) -> QuantSpec:
        """Returns this spec with all other operands float; drops "lsq" if none of these learns."""
        quantizers = {name: quantizer for name, quantizer in self.items() if name in operands}
        learning = self.gradient != "lsq" or any(map(learns, quantizers.values()))
        return QuantSpec(**quantizers, gradient=self.gradient if learning else "identity")

    def with_quantizers(self, **quantizers: Quantizer) -> QuantSpec:
        """Returns this spec with other quantizers, by operand."""
        changed: dict[str, Any] = dict(quantizers)
        return dataclasses.replace(self, **changed)

    def number_format(self, operand: str) -> NumberFormat:
        """Returns the number format of an operand, for counting, storing or encoding.

        Raises:
            ConfigError: if the operand has a stand-in.
        """
        quantizer = getattr(self, operand)
        if isinstance(quantizer, NumberFormat):
            return quantizer
        raise ConfigError(
            f"{operand}: expected a number format, got the stand-in {quantizer.label}, which has "
            f"no bits and codes. Set a format by spec.with_quantizers({operand}=...)."
        )

    def __post_init__(self) -> None:
        for operand, given in self.items():
            if not isinstance(given, Quantizer):
                raise ConfigError(
                    f"{operand}: expected a number format, such as Integer(8, 4), got "
                    f"{describe(given)}."
                )
        check_known(self.gradient, get_args(Gradient), "gradient")
        if self.gradient == "lsq" and not self.is_float and not self.lsq_operands:
            raise ConfigError(_nothing_to_learn(self))

    @property
    def lsq_operands(self) -> list[str]:
        """Operands with learned scales."""
        return [name for name in OPERANDS if self.learns(name)]

    def learns(self, operand: str) -> bool:
        """Returns True if the scales of an operand are learned."""
        return self.gradient == "lsq" and learns(getattr(self, operand))

    def with_scales(self, scales: Mapping[str, Tensor]) -> QuantSpec:
        """Returns this spec with learned scales made static, by operand."""
        settled: dict[str, Any] = {}
        for operand, operand_scales in scales.items():
            number_format = getattr(self, operand)
            assert isinstance(number_format, LearnableFormat)
            settled[operand] = number_format.with_scales(operand_scales)
        return dataclasses.replace(self, **settled, gradient="identity")

    def items(self) -> list[tuple[str, Quantizer]]:
        """Returns (operand, quantizer) pairs in the order data_in, weight, bias, data_out."""
        return [(operand, getattr(self, operand)) for operand in OPERANDS]

    def as_config(self) -> dict[str, Any]:
        """Returns a config that `parse` reads as this spec, flat if all formats are of one kind.

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
        for operand, quantizer in chosen.items():
            config |= {f"{operand}_{name}": getattr(quantizer, name) for name in fields}
        floats = {n: None for n in OPERANDS if n not in chosen and n != "data_out"}
        return {"name": kind.name, **config, **floats}

    @property
    def is_float(self) -> bool:
        """True if every operand stays float."""
        return all(quantizer.is_identity for _, quantizer in self.items())

    @property
    def is_fitted(self) -> bool:
        """False if a quantizer is still to be fitted."""
        return all(quantizer.is_fitted for _, quantizer in self.items())

    def fitted(self, samples: Mapping[str, Tensor]) -> QuantSpec:
        """Returns this spec with quantizers fitted to the samples of their operands."""
        return self.with_quantizers(**{n: getattr(self, n).fitted(x) for n, x in samples.items()})


def _nothing_to_learn(spec: QuantSpec) -> str:
    chosen = [f"{name}={fmt.label}" for name, fmt in spec.items() if not fmt.is_identity]
    enumerated = " or ".join(learnable_names())
    return (
        f"gradient 'lsq': {', '.join(chosen)} has no learnable scale. Use {enumerated}: "
        "scale_integer with granularity tensor or channel instead of integer; binary and ternary "
        "with scaling_factor=True and without stochastic signs."
    )


@dataclasses.dataclass
class _Keys:
    """Keys of a mapping, sorted by scope.

    Attributes:
        chosen: fields per operand.
        shared: fields of every operand.
        module_wide: fields of every operand that has other keys.
        nested: complete formats per operand.
    """

    chosen: dict[str, dict[str, Any]] = dataclasses.field(
        default_factory=lambda: {operand: {} for operand in OPERANDS}
    )
    shared: dict[str, Any] = dataclasses.field(default_factory=dict)
    module_wide: dict[str, Any] = dataclasses.field(default_factory=dict)
    nested: dict[str, Any] = dataclasses.field(default_factory=dict)

    def get_fields(self, operand: str) -> dict[str, Any]:
        """Returns the fields of an operand's format."""
        return {**self.module_wide, **self.shared, **self.chosen[operand]}

    def has_format(self, operand: str, kind: type[NumberFormat]) -> bool:
        """Returns True if an operand gets a format."""
        if operand == "data_out" or self.chosen[operand]:
            return bool(self.chosen[operand])
        return bool(self.shared or _required(kind)) or not any(self.chosen.values())


def _flat_keys(kind: type[NumberFormat]) -> dict[str, tuple[str, str]]:
    """Returns the keys of a format with an operand's prefix -> the operand and the field."""
    fields = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return {f"{operand}_{field}": (operand, field) for operand in OPERANDS for field in fields}


def _sort_keys(settings: Mapping[str, Any], where: str) -> _Keys:
    kind = get_format(settings.get("name"))
    fields = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    flat_keys = _flat_keys(kind)
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
            if "name" not in settings and not settings.keys() & set(OPERANDS):
                raise ConfigError(
                    f"{where}: '{key}' has no number format: expected the key 'name', such as "
                    "'name': 'integer'."
                )
            known = {*MODULE_WIDE, *OPERANDS, *kind.module_keys, *fields, *flat_keys}
            near = did_you_mean(key, known)
            kinds = {n: each for n, each in REGISTRY.items() if dataclasses.is_dataclass(each)}
            owners = [name for name, each in kinds.items() if key in _flat_keys(each)]
            if owners:
                near = f"a key of {enumerate_names(owners, 3)}, and the format is {kind.name}."
            raise ConfigError(f"{where}: unknown key '{key}': {near}")
    return keys


def _required(kind: type[NumberFormat]) -> list[str]:
    """Returns the fields without a default."""
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
                f"{where}: missing key '{operand}_{name}'. To keep the {operand} in float, "
                f"write '{operand}': None."
            )
