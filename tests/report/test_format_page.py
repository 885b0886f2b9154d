import dataclasses
import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from chop.errors import ConfigError
from chop.formats import NVFP4, BinaryResidual, BlockFP, Integer, ScaleInteger, formats
from chop.formats.base import REGISTRY
from chop.formats.elements import Fixed, Sign
from chop.formats.groups import Groups
from chop.formats.layout import Layout
from chop.formats.mxfp import MXFP
from chop.formats.mxint import MXInt
from chop.formats.scaled import ElementFormat
from chop.report.format_page import PAGE, PICTURES, list_examples, measure, pages, write
from chop.report.grid_picture import LINE_HEIGHT, grid_picture
from chop.report.layout_text import describe_layout
from tests.formats.composed import PowerOfFour

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def made():
    return pages()


def test_the_committed_page_is_up_to_date(made):
    for name, text in made.items():
        assert (DOCS / name).read_text() == text, "run python -m chop.report.format_page"
    kept = {f"{PICTURES}/{file.name}" for file in (DOCS / PICTURES).iterdir()}
    assert kept == set(made) - {PAGE}


def test_every_format_has_its_definition_and_a_picture(made):
    for kind in formats():
        if kind.name == "float":
            continue
        section = made[PAGE].split(f"## `{kind.name}`\n")[1].split("\n## ")[0]
        assert f"]({PICTURES}/{kind.name}.svg)" in section
        for part in ("Values:", "Rounding", "aturation:", "Special values", "Source"):
            assert part in section.replace("\n", " "), (kind.name, part)
        rows = re.findall(r"^\| `.*", section, re.MULTILINE)
        assert len(rows) == len(list_examples(kind)) and all(row.count("|") == 8 for row in rows)
        settings = re.findall(r"^- `(\w+)(?: = .+?)?`: .", section, re.MULTILINE)
        assert settings == [field.name for field in dataclasses.fields(kind)]
        assert ">>>" not in section
        root = ElementTree.fromstring(made[f"{PICTURES}/{kind.name}.svg"])
        assert root.tag.endswith("svg")


def test_the_page_runs(made, capsys):
    """In the environment of a user's file, which nobody knows afterwards."""
    block = "".join(re.findall(r"```python\n(.*?)```", made[PAGE], re.DOTALL))
    try:
        exec(block, {"__name__": __name__})
        promised = re.findall(r"print\(.*\)  # (.*)", block)
        assert capsys.readouterr().out.splitlines() == promised and len(promised) == 4
    finally:
        REGISTRY.pop("row_fp8", None)


@dataclass(frozen=True)
class Thirds(Groups):
    """Three parts."""

    parts: int
    split = join = count = tiling = is_row_separable = None


@pytest.mark.parametrize(
    "layout, text",
    [
        (MXInt(4).layout(), "Fixed(width 4, frac_width 2, twos complement) x 2^E (E8M0) per block"),
        (ScaleInteger(8).layout(), "x float32 (largest / 127) per tensor; nearest even"),
        (NVFP4().layout(), "per block of 16 x float32 per tensor; nearest even"),
        (BlockFP(6, block_size=(4, 16)).layout(), "2^E (-127 <= E <= 128) per block of 4 x 16; "),
        (BinaryResidual(levels=3).layout(), "sum of 3 levels of Sign(bipolar, not stochastic) x "),
        (Integer(8, 4, floor=True).layout(), "not symmetric, floor); floor"),
        (Layout(Sign(True, False), Thirds(3), PowerOfFour(-128, 8)), "Four(lowest -128, width 8) "),
        (Layout(Sign(True, False), Thirds(3), PowerOfFour(-128, 8)), " per Thirds(parts 3); near"),
        (None, "custom rounding"),
    ],
)
def test_what_a_layout_is_made_of(layout, text):
    assert text in describe_layout(layout)


@pytest.mark.parametrize(
    "number_format, bits, step, sqnr_db",
    [
        (MXInt(), 8.25, 2**-6, 41.7),
        (MXFP(8, 4), 8.25, 2**-17, 30.6),
        (MXFP(8, 5), 8.25, 2**-31, 25.4),
        (MXFP(6, 2), 6.25, 2**-5, 30.9),
        (MXFP(6, 3), 6.25, 2**-8, 25.4),
        (MXFP(4, 2), 4.25, 2**-3, 18.8),
    ],
    ids=lambda x: getattr(x, "label", ""),
)
def test_what_is_measured_is_known_of_the_formats(number_format, bits, step, sqnr_db):
    found = measure(number_format)
    assert (found.bits, found.smallest_step) == (bits, step)
    assert found.sqnr_db == pytest.approx(sqnr_db, abs=0.1)
    assert found.range == "follows the data" and found.grid[0] == 0 and found.grid[-1] == 1


def test_a_grid_is_the_code_book():
    e2m1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4]) / 4  # amax 1 has the exponent of 4
    assert measure(MXFP(4, 2)).grid == tuple(e2m1.tolist())
    assert measure(MXInt(4)).grid == (0, 0.25, 0.5, 0.75, 1)


def test_pictures_draw_each_value_once_on_each_axis():
    root = ElementTree.fromstring(grid_picture({"one <bit>": [0, 1], "more": [0, 1e-6, 0.5, 1]}))
    tag = root.tag.removesuffix("svg")
    marks = [x.get("d").count("M") for x in root.iter(f"{tag}path") if x.get("class") == "mark"]
    assert marks == [3, 5]  # 1e-6 falls on 0, and out of the powers of two
    assert [text.text for text in root.iter(f"{tag}text")][:2] == ["one <bit>", "more"]
    assert int(root.get("height")) > 2 * LINE_HEIGHT


def test_a_new_format_gets_a_section_from_its_class_alone(tmp_path):
    try:

        @dataclass(frozen=True)
        class Halves(ElementFormat):
            """Steps of a half.

            Attributes:
                width: bits.
            """

            name: ClassVar[str] = "halves"
            search_space: ClassVar = {"width": (2, 4, 6)}
            width: int

            @property
            def element(self):
                return Fixed(self.width, 1, "twos_complement")

        assert list_examples(Halves) == [Halves(4)]
        write(tmp_path)
        assert "| `halves(width=4)` | 4 | -3.5 to 3.5 | 0.5 |" in (tmp_path / PAGE).read_text()
        assert "- `width`: bits." in (tmp_path / PAGE).read_text()
        assert (tmp_path / PICTURES / "halves.svg").exists()
        Halves.search_space = {}
        with pytest.raises(ConfigError, match="halves: its search space has no values of 'width'"):
            list_examples(Halves)
    finally:
        REGISTRY.pop("halves", None)
    assert math.isnan(measure(next(iter(list_examples(REGISTRY["binary"])))).smallest_step)
