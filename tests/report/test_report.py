import xml.etree.ElementTree as ElementTree

from chop.report.plots import plot_accuracy_against_bits
from chop.tables import markdown_table, print_table

ROWS = [
    {"format": "float", "accuracy": 0.5, "bits": 32},
    {"format": "4.2", "accuracy": None, "bits": 4},
]


def test_tables(capsys):
    print_table("Widths", ROWS)
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("Widths", "format", "0.5", "4.2"))
    assert markdown_table(ROWS).splitlines() == [
        "| format | accuracy | bits |",
        "| --- | --- | --- |",
        "| float | 0.5 | 32 |",
        "| 4.2 | - | 4 |",
    ]
    print_table("nothing", [])
    assert capsys.readouterr().out == ""
    assert markdown_table([]) == ""


def test_a_plot_has_every_curve_and_the_baseline(tmp_path):
    curves = {"PTQ": [(8, 0.9), (4, 0.2)], "QAT": [(4, 0.8)]}
    path = plot_accuracy_against_bits(tmp_path / "a.svg", curves, 0.95, chance=0.1, title="T")
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    text = path.read_text()
    assert all(f"<!-- {label} -->" in text for label in ("PTQ", "QAT", "float", "chance", "T"))
    png = plot_accuracy_against_bits(tmp_path / "a.png", curves, 0.95)
    assert png.read_bytes().startswith(b"\x89PNG")
