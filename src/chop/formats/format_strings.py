"""Format strings of the command line: `8.4`, `4.auto`, `mxint:width=4`."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from chop.base.files.documents import parse_json
from chop.config import with_checked_arguments
from chop.errors import ConfigError, describe, first_line
from chop.formats.base import REGISTRY, NumberFormat
from chop.formats.integer import Integer
from chop.formats.parsing import parse_format

RULES = ("auto", "minmax", "mse", "percentile")
"""Rules that derive the fraction width of an integer."""
WIDTH = re.compile(r"(?:u?int|fp|float|i|w|q)(\d+)\w*", re.IGNORECASE)
"""Names that other tools use for formats: int8, fp4, q4_0."""
TWO_WIDTHS = re.compile(
    r"w(?P<weight>\d+)(?:a(?P<inputs>\d+)\w*)?|int(?P<width>\d+)(?:_weight_only|wo)"
    r"|int(?P<data>\d+)_dynamic_activation_int(?P<codes>\d+)_weights?",
    re.IGNORECASE,
)
"""Names that other tools use for a format of weights and one of inputs: W4A16, int4_weight_only."""
FLOAT_WIDTH = 16
"""Bits of inputs that stay float."""
OTHER_FIELDS = {"bits": "width", "block": "block_size"}
"""Field of other tools -> its name in chop, for formats that have it."""
K_QUANT = re.compile(r"q([2-6])_k(_[sml])?", re.IGNORECASE)
"""Names of llama.cpp for K-quants, of which the last letter says which layers have more bits."""
SHORT = re.compile(r"([a-z_]+?)(\d+)")
"""Format name followed by its width: mxint4."""
FIELD_AFTER_COMMA = re.compile(r",\s*(?=[a-z_]+=)")
"""Comma where a colon belongs: in `integer:width=4,frac_width=2`."""

OUTER_COMMA = re.compile(r",(?![^\[]*\])")
"""Comma between formats, not between the numbers of a field such as `block_size=[4,8]`."""


def parse_format_string(text: str) -> NumberFormat:
    """Parses a format string.

    Integers are `width.fraction`, like `8.4`, or `4.auto` with a rule that derives the fraction.
    Any format can be written as `name` or `name:field=value:field=value`. A number directly after
    the name is the width.

    >>> parse_format_string("4.auto").label, parse_format_string("mxint:width=4").bits()
    ('integer 4.auto', 4.25)
    >>> parse_format_string("mxint4") == parse_format_string("mxint:width=4")
    True

    Raises:
        ConfigError: if the text is malformed, or a field is unknown, repeated or out of range.
    """
    if not isinstance(text, str):
        raise ConfigError(
            f"format: expected a text, such as 'mxint:width=4', got {describe(text)}."
        )
    text = text.strip()
    if FIELD_AFTER_COMMA.search(text):
        raise ConfigError(_with_comma(text))
    if count := len(OUTER_COMMA.findall(text)):
        raise ConfigError(f"format '{text}': expected one format, got {count + 1}.")
    if text[:1].isdigit():
        return _parse_integer(text)
    text = with_width(text)
    name, *fields = text.split(":")
    if name not in REGISTRY and (widths := TWO_WIDTHS.fullmatch(name)):
        raise ConfigError(f"unknown number format '{name}': {_advise_widths(widths)}")
    if name not in REGISTRY and (width := WIDTH.fullmatch(name)):
        is_float = text.lower().startswith("f")
        blocks = f"group_integer:width={width[1]} or " if text.lower().startswith("q") else ""
        floats = "mxfp4 or nvfp4" if width[1] == "4" else "fp8, mxfp or minifloat_ieee"
        kind = floats if is_float else f"{blocks}{width[1]}.auto"
        if K_QUANT.fullmatch(name):
            kind = f"k_quant:width={width[1]}"
        raise ConfigError(f"unknown number format '{name}': did you mean {kind}?")
    if "=" in name:
        raise ConfigError(
            f"unknown number format '{name}': write fields after the name and ':', such as "
            "mxfp:width=4:exponent_width=2. Commas separate formats."
        )
    pairs = [field.partition("=") for field in fields]
    if not all(value for _, _, value in pairs):
        raise ConfigError(f"format '{text}': expected name:field=value, such as mxint:width=4.")
    given = ["name", *(field for field, _, _ in pairs)]
    for field in given:
        if given.count(field) > 1:
            raise ConfigError(f"format '{text}': '{field}' is given twice.")
    if name in REGISTRY:
        _check_other_fields(text, given[1:], REGISTRY[name])
    settings = {field: _parse_value(value) for field, _, value in pairs}
    if name in (Integer.name, *Integer.aliases) and settings.keys() == {"width"}:
        width = settings["width"]
        raise ConfigError(
            f"format '{text}': missing key 'frac_width': write {width}.auto, or "
            f"{name}:width={width}:frac_width=auto."
        )
    return parse_format({"name": name, **settings}, f"format '{text}'")


def _check_other_fields(text: str, given: list[str], kind: type[NumberFormat]) -> None:
    """Raises ConfigError for a field that has another tool's name."""
    known = getattr(kind, "__dataclass_fields__", {})
    for field in given:
        name = OTHER_FIELDS.get(field)
        if field not in known and name in known:
            raise ConfigError(f"format '{text}': unknown key '{field}': did you mean '{name}'?")


def _advise_widths(widths: re.Match[str]) -> str:
    """Returns the settings for a name with a width of weights and one of inputs."""
    weight = widths["weight"] or widths["width"] or widths["codes"]
    inputs = widths["inputs"] or widths["data"]
    if inputs == weight:
        return f"did you mean {weight}.auto?"
    if inputs is None or int(inputs) >= FLOAT_WIDTH:
        return (
            f"for weights of {weight} bits and float inputs, write {weight}.auto, with "
            "--operands weight in chop compress."
        )
    return (
        f"chop compress sets weights of {weight} bits and inputs of {inputs} by --formats "
        f"{inputs}.auto --overrides 're:.*={weight}.auto' --operands data_in,weight."
    )


def _with_comma(text: str) -> str:
    """Returns the error message for a format whose fields are separated by commas."""
    joined = FIELD_AFTER_COMMA.sub(":", text)
    advice = f"format '{text}': commas separate formats, and ':' the fields of one format."
    try:
        parse_format_string(joined)
    except ConfigError as error:
        return f"{advice} Also, {first_line(error)}"
    return f"{advice} Write {joined}."


def with_width(text: str) -> str:
    """Expands a number after the format's name to the field that it sets.

    >>> with_width("mxint4"), with_width("mxfp8:exponent_width=5"), with_width("nvfp4")
    ('mxint:width=4', 'mxfp:width=8:exponent_width=5', 'nvfp4')
    """
    name, colon, fields = text.partition(":")
    short = SHORT.fullmatch(name)
    if short is None or name in REGISTRY or short[1] not in REGISTRY:
        return text
    return f"{short[1]}:width={short[2]}{colon}{fields}"


@with_checked_arguments
def format_string(number_format: NumberFormat) -> str:
    """Returns the shortest text that `parse_format_string` parses to this format.

    >>> format_string(Integer(4, "mse"))
    '4.mse'
    """
    every = dataclasses.fields(number_format)  # type: ignore[arg-type]
    fields = sorted(every, key=lambda field: field.kw_only is True)
    given = {
        field.name: getattr(number_format, field.name)
        for field in fields
        if getattr(number_format, field.name) != number_format.get_default(field.name)
    }
    if isinstance(number_format, Integer) and given.keys() == {"width", "frac_width"}:
        return f"{number_format.width}.{number_format.frac_width}"
    texts = (f":{name}={_format_value(value)}" for name, value in given.items())
    return number_format.name + "".join(texts)


def _parse_integer(text: str) -> Integer:
    width, _, fraction = text.partition(".")
    try:
        return Integer(int(width), fraction if fraction in RULES else int(fraction))  # type: ignore[arg-type]
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"format '{text}': expected width.fraction, like 8.4 or 4.auto, or a name, like mxint."
        ) from None


def _parse_value(text: str) -> Any:
    try:
        return parse_json(text, None)
    except ValueError:
        return text


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
