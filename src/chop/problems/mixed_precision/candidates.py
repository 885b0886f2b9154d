"""Candidate formats of a layer, and calibration of fractions and exponent biases.

Formats and widths are searched by trials. Fractions and exponent biases are computed from samples
of the tensor, which is faster and better than trials over shared values.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from torch import Tensor

from chop.base.notices import warn_once
from chop.errors import ConfigError, check_known, did_you_mean, enumerate_names
from chop.formats import (
    REGISTRY,
    Integer,
    Log,
    MinifloatDenorm,
    MinifloatIEEE,
    NumberFormat,
    even_sample,
    format_string,
    formats,
    get_format,
    parse_format_string,
)

Rule = Literal["mse", "minmax", "percentile"]
"""Calibration rule of scales: least squared error, no saturation, or 0.1 % saturation."""

Ranges = Mapping[str, Sequence[Any]]
"""Values by field that replace those in a format's `search_space`."""

DERIVED_FIELDS = ("frac_width", "exponent_bias")
WITH_BIAS = (Log, MinifloatDenorm, MinifloatIEEE)
"""Formats whose bias shifts the range of a whole tensor."""
MAX_NAMED = 5
"""Maximum number of formats that a message names."""
MAX_SAMPLES = 2**16
SATURATING = 4
"""Number of binades beyond the largest magnitude in the search for the least squared error."""
PERCENTILE = 0.999
MAX_EXPLAINED_KINDS = 3
"""Maximum number of format kinds explained in a title."""


def format_candidates(
    formats: Sequence[str | NumberFormat], ranges: Ranges | None = None, rule: Rule = "mse"
) -> dict[str, NumberFormat]:
    """Returns the candidate formats by format string, in order of bits.

    Args:
        formats: formats, format strings such as `4.auto` or `mxint:width=4`, or format names. A
            name expands to its `search_space` without the calibrated fields.
        ranges: values of fields for formats given by name. Calibrated fields listed here are
            searched instead. Formats of a fixed width keep it. Invalid combinations are skipped.
        rule: calibration rule for the fractions of integers given by name.
    Raises:
        ConfigError: if a format, rule or field is unknown, no combination is valid, or a value of
            a range is in none.

    >>> list(format_candidates(["integer", "mxint:width=4"], {"width": (3, 8)}))
    ['3.mse', 'mxint:width=4', '8.mse']
    """
    check_known(rule, get_args(Rule), "rule")
    ranges = ranges or {}
    unused = set(ranges)
    candidates: list[NumberFormat] = []
    for given in formats:
        fields = get_fields(given)
        unused -= fields
        if isinstance(given, NumberFormat):
            candidates.append(given)
        elif fields:
            own = {name: values for name, values in ranges.items() if name in fields}
            candidates += _combinations(get_format(given), own, rule)
        else:
            candidates.append(parse_format_string(given))
    if unused:
        known = {name for given in formats for name in get_fields(given)}
        name = min(unused)
        names = [given if isinstance(given, str) else given.label for given in formats]
        listed = enumerate_names(names, MAX_NAMED)
        raise ConfigError(
            f"ranges: no field '{name}' in the searched formats ({listed}): "
            f"{did_you_mean(name, known)}"
        )
    if not candidates:
        raise ConfigError("formats: expected at least one.")
    _check_are_used(ranges, candidates)
    return {
        format_string(fmt): fmt for fmt in sorted(candidates, key=lambda fmt: fmt.bits((64, 64)))
    }


def _check_are_used(ranges: Ranges, candidates: Sequence[NumberFormat]) -> None:
    """Warns of values that are invalid in all candidates, and refuses those of no format at all."""
    for name, values in ranges.items():
        used = {getattr(candidate, name, None) for candidate in candidates}
        owners = [kind.name for kind in formats() if name in get_fields(kind.name)]
        for value in (value for value in values if value not in used):
            kinds = ", ".join(dict.fromkeys(candidate.name for candidate in candidates))
            unused = f"{name}: no searched format ({kinds}) can have {value}; leave it out."
            if not any(_has_valid(owner, {name: (value,)}, "mse") for owner in owners):
                raise ConfigError(unused)
            warn_once(unused)


def every_format(ranges: Ranges | None = None, rule: Rule = "mse") -> tuple[str, ...]:
    """Returns the names of all formats that a search can vary.

    Args:
        ranges: values by field, as in `format_candidates`. Formats without a valid combination are
            left out. Default: those of each format.
        rule: calibration rule for the fractions of integers.

    >>> "mxint" in every_format(), "float" in every_format()
    (True, False)
    >>> "k_quant" in every_format(), "k_quant" in every_format({"width": (8, 16)})
    (True, False)
    """
    names = (kind.name for kind in formats() if kind.search_space)
    return tuple(name for name in names if _has_valid(name, ranges or {}, rule))


def _has_valid(name: str, ranges: Ranges, rule: Rule) -> bool:
    """Returns True if values of the ranges are valid for a format."""
    own = {field: ranges[field] for field in ranges.keys() & get_fields(name)}
    try:
        return any(True for _ in _combinations(get_format(name), own, rule))
    except ConfigError:
        return False


def varied_fields(options: Iterable[NumberFormat]) -> str:
    """Describes the fields in which formats differ, with their values; several kinds by `name`.

    >>> varied_fields(format_candidates(["mxint"], {"width": (3, 8)}).values())
    'block_size 16, 32, 64; width 3, 8'
    """
    rows = [{"name": fmt.name, **dataclasses.asdict(fmt)} for fmt in options]  # type: ignore[call-overload]
    values: dict[str, list[Any]] = {}
    for name, value in (pair for row in rows for pair in row.items()):
        if value not in (numbers := values.setdefault(name, [])):
            numbers.append(value)
    varied = {
        name: sorted(numbers, key=_place) for name, numbers in values.items() if len(numbers) > 1
    }
    return "; ".join(f"{name} {', '.join(map(str, numbers))}" for name, numbers in varied.items())


def short_texts(options: Mapping[str, NumberFormat]) -> tuple[dict[str, str], str]:
    """Returns short format texts for the cells of a map, and a legend.

    Integers are written `width.fraction`. Other formats list their differing fields joined by '/',
    after the format name if there are several kinds.

    Args:
        options: formats by format string.
    Returns: the short text of each format, and a legend.

    >>> short_texts(format_candidates(["8.4", "16.8"]))
    ({'8.4': '8.4', '16.8': '16.8'}, 'width.fraction')
    >>> ranges = {"width": (4, 8), "block_size": (16, 32)}
    >>> texts, meaning = short_texts(format_candidates(["mxint"], ranges))
    >>> sorted(texts.values()), meaning
    (['16/4', '16/8', '32/4', '32/8'], 'block_size/width')
    """
    kinds: dict[str, list[dict[str, Any]]] = {}
    for fmt in options.values():
        kinds.setdefault(fmt.name, []).append(dataclasses.asdict(fmt))  # type: ignore[call-overload]
    varied = {
        name: [field for field in rows[0] if len({str(row[field]) for row in rows}) > 1]
        for name, rows in kinds.items()
    }
    texts, meanings = {}, {}
    for text, fmt in options.items():
        name, fields = f"{fmt.name} " * (len(kinds) > 1), varied[fmt.name]
        if (written := format_string(fmt))[0].isdigit():
            texts[text], meanings[fmt.name] = written, f"{name}width.fraction"
            continue
        values = "/".join(str(getattr(fmt, field)) for field in fields)
        texts[text] = f"{name}{values}".strip() or fmt.name
        if fields:
            meanings[fmt.name] = f"{name}{'/'.join(fields)}"
    return texts, ", ".join(meanings.values()) if len(meanings) <= MAX_EXPLAINED_KINDS else ""


def _place(value: Any) -> tuple[bool, Any]:
    """Returns a sort key with numbers before other values."""
    return (False, value) if isinstance(value, int | float) else (True, 0)


def fitted(number_format: NumberFormat, samples: Tensor, rule: Rule = "mse") -> NumberFormat:
    """Returns a format with its fraction or exponent bias derived from samples.

    Args:
        number_format: format. Numeric fields stay; a bias of None is derived.
        samples: values of any shape. Non-finite values are ignored.
        rule: rule for exponent biases. Integers specify their own rule.

    >>> import torch
    >>> fitted(Log(4), torch.tensor([0.5, 0.25])).exponent_bias
    8
    """
    if not (isinstance(number_format, WITH_BIAS) and number_format.exponent_bias is None):
        result: NumberFormat = number_format.fitted(samples)
        return result
    sample = even_sample(samples.detach()[samples.detach().isfinite()].double(), MAX_SAMPLES)
    magnitudes = sample.abs()[sample != 0]
    if not magnitudes.numel():
        return number_format
    if rule == "percentile":
        covered = magnitudes.sort().values[math.ceil(PERCENTILE * magnitudes.numel()) - 1]
    else:
        covered = magnitudes.max()
    reach = dataclasses.replace(number_format, exponent_bias=0).element.largest
    finest = math.floor(math.log2(reach / covered.item()))
    candidates = range(finest, finest + (SATURATING if rule == "mse" else 0) + 1)
    return min(_valid_biases(number_format, candidates), key=lambda fmt: _error(fmt, sample))


def _valid_biases(number_format: NumberFormat, biases: Sequence[int]) -> list[NumberFormat]:
    """Returns the format with each valid bias, or unchanged if no bias is valid."""
    variants: list[NumberFormat] = []
    for bias in biases:
        try:
            variants.append(dataclasses.replace(number_format, exponent_bias=bias))  # type: ignore[type-var]
        except ConfigError:
            continue
    return variants or [number_format]


def _error(number_format: NumberFormat, sample: Tensor) -> float:
    return float((number_format.round(sample) - sample).square().sum())


def get_fields(given: str | NumberFormat) -> set[str]:
    """Returns the configurable fields of a format name; an empty set for other formats.

    >>> "width" in get_fields("mxint"), "width" in get_fields("binary"), get_fields("4.auto")
    (True, False, set())
    """
    if not isinstance(given, str) or given not in REGISTRY:
        return set()
    kind = get_format(given)
    fixed = {"width"} - kind.search_space.keys()
    return {field.name for field in dataclasses.fields(kind)} - fixed  # type: ignore[arg-type]


def _combinations(kind: type[NumberFormat], ranges: Ranges, rule: Rule) -> Iterator[NumberFormat]:
    own = {k: v for k, v in kind.search_space.items() if k not in DERIVED_FIELDS}
    searched = {**own, **ranges}
    if kind is Integer:
        searched = {"frac_width": (rule,)} | searched
    made = 0
    refusal: ConfigError | None = None
    for values in itertools.product(*searched.values()):
        try:
            yield kind(**dict(zip(searched, values, strict=True)))
            made += 1
        except ConfigError as error:
            refusal = error
    if refusal is not None and not made:
        raise refusal
