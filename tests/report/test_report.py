import pytest

from chop.base.tables import markdown_table, print_table
from chop.errors import ConfigError
from chop.report.charts.accuracy import Curve, accuracy_charts
from chop.report.plots import plot_heat_map
from chop.report.report import (
    Note,
    Report,
    Table,
    announce,
    figure,
    figure_files,
    further_figures,
    say,
    show,
    write_report,
)

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


def test_a_heat_map_has_a_number_per_cell(tmp_path):
    cells = {(4, 2): 0.125, (8, 2): 0.5, (8, 4): 0.99}
    path = plot_heat_map(tmp_path / "h.svg", cells, xlabel="width", ylabel="fraction", title="T")
    text = path.read_text()
    assert all(f"<!-- {number} -->" in text for number in ("12.5", "50.0", "99.0"))
    assert "nan" not in text


@pytest.mark.parametrize("text", ["column [/b]", "runs/[a]/ is p[bold]", "[link=x]y", "1 of [1/3]"])
def test_texts_of_others_are_printed_as_they_are(text, capsys):
    show(Table(text, [{text: text}]), Note(text))
    say(text)
    announce(text, "planning")
    printed = "".join(capsys.readouterr().out.split())
    assert printed.count("".join(text.split())) == 6


def test_figures_are_written_as_further_kinds_too(tmp_path):
    curves = [Curve("PTQ", [(8, 0.9), (4, 0.2)], "4 bit")]
    about = {"xlabel": "bits", "title": "T"}
    figures = {
        "one.svg": figure(accuracy_charts, curves, **about),
        **figure_files("two", accuracy_charts, curves, **about),
        "drawn-otherwise.svg": lambda path: path.write_text("<svg/>"),
    }
    report = Report("T", {}, {}, [], figures)
    with further_figures(["pdf"]):
        write_report(report, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        *("one.pdf", "one.svg", "two.pdf", "two.png", "two.svg"),
        *("drawn-otherwise.svg", "result.json"),
    }
    assert (tmp_path / "two.pdf").read_bytes().startswith(b"%PDF")
    (tmp_path / "two.pdf").unlink()
    write_report(report, tmp_path)
    assert not (tmp_path / "two.pdf").exists()


def test_an_unknown_kind_of_figures_is_refused():
    with pytest.raises(ConfigError, match="'pdff': did you mean 'pdf'"), further_figures(["pdff"]):
        pytest.fail("it was taken")
