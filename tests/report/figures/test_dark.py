"""Figures on a dark screen: every color of an SVG is readable, and other kinds stay as they are."""

import re
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from chop.ir.drawing.draw import COLORS
from chop.report.figures.style import DARK, PALETTE, dark_style
from chop.report.plots import plot_layer_map, plot_ratios
from tests.report.figures.every_plot import draw

SVG = "{http://www.w3.org/2000/svg}"
GROUND = DARK["#ffffff"]
LEAST = 3.0
"""Contrast of graphics, WCAG 2.2, success criterion 1.4.11."""


def luminance(color):
    parts = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first, second):
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def colors_on_ground(path):
    """Colors of styles as they are on a dark screen, those of cells aside."""
    root = ElementTree.parse(path).getroot()
    assert root.get("class") == "chop-figure" and root[0].text == dark_style()[7:-8]
    for parent in root.iter():
        for cell in [x for x in parent if x.get("id", "").startswith("cell_")]:
            parent.remove(cell)
    found = re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", ElementTree.tostring(root).decode())
    return {DARK.get(color, color) for color in found}


def test_colors_are_readable_on_the_dark_ground():
    assert set(map(str.lower, PALETTE)) < DARK.keys()
    for light, dark in DARK.items():
        assert dark == GROUND or contrast(dark, GROUND) >= LEAST, light
        assert f'"fill: {light}"' in dark_style() and f'"stroke: {light}"' in dark_style()
    assert all(contrast(fill, "#374151") >= 4.5 for fill, _ in COLORS.values())  # boxes stay pale


@pytest.mark.long
def test_marks_and_cells_follow_the_rules_for_them(tmp_path):
    ratio = SimpleNamespace(median=1.3, low=1.2, high=1.5, spans_one=False, is_known=True)
    path = tmp_path / "ratios.svg"
    plot_ratios(path, [SimpleNamespace(name="compiled", ratio=ratio)], "T")
    root = ElementTree.parse(path).getroot()
    marks = [x for x in root.iter(f"{SVG}path") if x.get("class") == "chop-mark"]
    used = {x.get("{http://www.w3.org/1999/xlink}href") for x in root.iter(f"{SVG}use")}
    assert {f"#{mark.get('id')}" for mark in marks} <= used and marks
    assert GROUND in colors_on_ground(path)
    plot_layer_map(
        tmp_path / "map.svg", {("a", "4"): 0.1, ("b", "4"): 2.0}, xlabel="", measure="k", title="T"
    )
    ids = re.findall(r'id="(cell_[^"]*)"', (tmp_path / "map.svg").read_text())
    assert ids == ["cell_0_0", "cell_1_0"]
    for kind in ("png", "pdf"):
        plot_ratios(tmp_path / f"x.{kind}", [SimpleNamespace(name="compiled", ratio=ratio)], "T")
        assert b"chop-figure" not in (tmp_path / f"x.{kind}").read_bytes()


@pytest.mark.long
def test_no_plot_of_the_project_has_a_color_that_is_lost_on_a_dark_screen(tmp_path):
    draw(tmp_path, ".svg")
    for path in sorted(tmp_path.iterdir()):
        lost = [x for x in colors_on_ground(path) if x != GROUND and contrast(x, GROUND) < LEAST]
        assert lost == [], path.name
