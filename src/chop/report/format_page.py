"""Generator of the number-format page: `python -m chop.report.format_page`.

Each registered format gets its definition from its docstring, its settings, and for each example
its layout and measurements: bits, range, smallest step, quantization noise, and a picture of its
values.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.base.docstrings import entries
from chop.base.files import write_text
from chop.base.tables import markdown_table
from chop.errors import ConfigError
from chop.formats import NumberFormat, formats
from chop.kernels.cpu.packed import bfloat16_roundings
from chop.report.grid_picture import grid_picture
from chop.report.layout_text import describe_layout

PAGE = "formats.md"
INTRODUCTION = Path(__file__).with_suffix(".md")
"""Text before the list of formats."""
SEARCHED = """## What a search varies

The table has the `search_space` of each format. `chop search precision --formats NAME` searches
these settings, with all valid widths from 2 to 8 unless `--widths` gives others. It calibrates
fractions and exponent biases unless `--ranges` gives them values."""
PICTURES = "images/formats"
NORMAL_SHAPE = (256, 1024)
FAR = 1e30
GRID_POINTS = 2**13
ROW = 7
PART = re.compile(r"^(Values|Fitting|Rounding|Saturation|Special values|Storage): ", re.MULTILINE)
"""Parts of a format's definition in its docstring, one or more lines each."""
MINIFLOATS = tuple(
    {"width": width, "exponent_width": exponent}
    for width, exponent in ((8, 4), (8, 5), (6, 2), (6, 3), (4, 2))
)
EXAMPLES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "integer": ({"width": 8, "frac_width": "mse"}, {"width": 4, "frac_width": "mse"}),
    "scale_integer": ({"width": 8}, {"width": 4, "granularity": "row"}),
    "minifloat_ieee": MINIFLOATS,
    "minifloat_denorm": ({"width": 8, "exponent_width": 4}, {"width": 4, "exponent_width": 2}),
    "log": ({"width": 8}, {"width": 4, "exponent_bias": 5, "zero_code": True}),
    "block_fp": ({"width": 8}, {"width": 4}),
    "block_minifloat": ({"width": 8, "exponent_width": 4}, {"width": 4, "exponent_width": 2}),
    "block_log": ({"width": 8}, {"width": 4}),
    "mxint": ({"width": 8}, {"width": 6}, {"width": 4}),
    "mxfp": MINIFLOATS,
    "binary": ({}, {"scaling_factor": True}),
    "binary_residual": ({"levels": 2}, {"levels": 3}),
    "ternary": ({}, {"scaling_factor": True}),
}
"""Common settings of formats. Other formats get one example with their defaults."""


@dataclasses.dataclass(frozen=True)
class Example:
    """Number format with specific settings, and its measurements.

    Attributes:
        label: short text of the format.
        bits: bits per element of a full group, shared scales included.
        range: values at both ends, or a note that the range follows the data.
        smallest_step: smallest distance between neighbors in `grid`. NaN for a single value.
        sqnr_db: signal to quantization noise on standard normal data, in dB.
        grid: representable values from 0 to 1, ascending. If scales follow the data, 1 is the
            largest value.
        layout_text: description of its layout.
        roundings: roundings of products of bfloat16 with a packed weight; see `bfloat16_roundings`.
    """

    label: str
    bits: float
    range: str
    smallest_step: float
    sqnr_db: float
    grid: tuple[float, ...]
    layout_text: str
    roundings: int


def measure(number_format: NumberFormat) -> Example:
    """Measures a format on normal data, extreme values and a dense grid."""
    normal = torch.randn(NORMAL_SHAPE, generator=torch.Generator().manual_seed(0))
    fitted = number_format.fitted(normal)
    noise = (fitted.round(normal) - normal).double().square().sum()
    signal = normal.double().square().sum()
    values = _values_below_one(fitted)
    steps = values.diff()
    return Example(
        fitted.label,
        fitted.bits(),
        _range(fitted),
        steps.min().item() if steps.numel() else math.nan,
        10 * math.log10(signal / noise),
        tuple(values.tolist()),
        describe_layout(fitted.layout()),
        bfloat16_roundings(fitted, NORMAL_SHAPE),
    )


def _values_below_one(number_format: NumberFormat) -> Tensor:
    """Returns the representable values from 0 to 1 in groups whose largest magnitude is 1."""
    mantissas = 1 + torch.arange(8) / 8
    tiny = torch.outer(torch.arange(-126.0, 0.0).exp2(), mantissas).flatten()
    magnitudes = torch.cat([torch.linspace(0, 1, GRID_POINTS), tiny])
    # Short rows fit into every block, and a one in each is the largest of its group. With a
    # single index of the first axis, channel scales equal the scale of the whole tensor.
    rows = F.pad(magnitudes, (0, -magnitudes.numel() % ROW)).view(1, -1, ROW)
    rounded = number_format.round(F.pad(rows, (0, 1), value=1.0)).flatten()
    values: Tensor = rounded[(rounded >= 0) & (rounded <= 1)].double().unique()
    return values


def _range(number_format: NumberFormat) -> str:
    low, high = number_format.round(torch.tensor([[-FAR], [FAR]])).flatten().tolist()
    if high > FAR / 4:
        return "follows the data"
    return f"{_number(low)} to {_number(high)}"


def _number(x: float) -> str:
    """Formats a number briefly; very large and small powers of two are shown as powers."""
    if math.isnan(x):
        return "-"
    mantissa, exponent = math.frexp(abs(x))
    if mantissa == 0.5 and not 0.1 < abs(x) < 100:
        return f"{'-' if x < 0 else ''}2^{exponent - 1}"
    return f"{x:.6g}"


def list_examples(kind: type[NumberFormat]) -> list[NumberFormat]:
    """Returns the example instances of a format.

    Raises:
        ConfigError: if a field without a default has no values in the format's search space.
    """
    if kind.name in EXAMPLES:
        return [kind(**settings) for settings in EXAMPLES[kind.name]]
    settings = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.default is dataclasses.MISSING:
            choices = kind.search_space.get(field.name)
            if not choices:
                raise ConfigError(f"{kind.name}: its search space has no values of '{field.name}'.")
            settings[field.name] = choices[len(choices) // 2]
    return [kind(**settings)]


def pages() -> dict[str, str]:
    """Yields the path below `docs` and the text of each file of the page."""
    kinds = [kind for kind in formats() if kind.name != "float"]
    measured = {kind: [measure(example) for example in list_examples(kind)] for kind in kinds}
    sections = [_section(kind, examples) for kind, examples in measured.items()]
    overview = markdown_table([_line(x) for examples in measured.values() for x in examples])
    searched = markdown_table([_varied(kind) for kind in kinds if kind.search_space])
    listed = markdown_table([_defined(kind) for kind in kinds])
    introduction = INTRODUCTION.read_text().strip().replace("{kinds}", listed)
    parts = [introduction, overview, SEARCHED, searched, *sections]
    files = {PAGE: "\n\n".join(parts) + "\n"}
    for kind, examples in measured.items():
        grids = {example.label: example.grid for example in examples}
        files[f"{PICTURES}/{kind.name}.svg"] = grid_picture(grids)
    return files


def _defined(kind: type[NumberFormat]) -> dict[str, Any]:
    summary = inspect.cleandoc(vars(kind).get("__doc__") or "").partition("\n")[0]
    return {"format": f"[`{kind.name}`](#{kind.name})", "values": summary}


def _line(example: Example) -> dict[str, Any]:
    return {
        "format": f"`{example.label}`",
        "bits": f"{example.bits:.4g}",
        "range": example.range,
        "smallest step": _number(example.smallest_step),
        "SQNR (dB)": f"{example.sqnr_db:.1f}",
        "medium": f"{example.roundings}/256",
    }


def _varied(kind: type[NumberFormat]) -> dict[str, Any]:
    space = kind.search_space
    settings = [f"`{name}`: {', '.join(map(str, values))}" for name, values in space.items()]
    return {
        "format": f"`{kind.name}`",
        "settings": "; ".join(settings),
        "combinations": math.prod(map(len, space.values())),
    }


def _section(kind: type[NumberFormat], examples: Sequence[Example]) -> str:
    parts = [f"## `{kind.name}`"]
    if kind.aliases:
        parts.append(f"Also called {', '.join(f'`{name}`' for name in kind.aliases)}.")
    paragraphs = inspect.cleandoc(vars(kind).get("__doc__") or "").split("\n\n")
    parts += [
        # A list item for each part of the definition.
        PART.sub(r"- **\1:** ", text)
        for text in paragraphs
        if not text.startswith(("Attributes", "Example", "Source"))
    ]
    settings = "\n".join(_settings(kind))
    parts.append(f"Settings:\n\n{settings}" if settings else "")
    parts += [text for text in paragraphs if text.startswith("Source")]
    parts.append(
        markdown_table([_line(example) | {"made of": example.layout_text} for example in examples])
    )
    parts.append(f"![values of {kind.name} between 0 and 1]({PICTURES}/{kind.name}.svg)")
    return "\n\n".join(part for part in parts if part)


def _settings(kind: type[NumberFormat]) -> Iterator[str]:
    """Returns a list item for each field, including inherited fields."""
    documented = entries(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        default = "" if field.default is dataclasses.MISSING else f" = {field.default}"
        yield f"- `{field.name}{default}`: {documented.get(field.name, '')}"


def write(folder: Path) -> None:
    """Writes the page and its pictures below `folder`."""
    for name, text in pages().items():
        write_text(folder / name, text)


if __name__ == "__main__":
    write(Path("docs"))
