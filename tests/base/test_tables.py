import builtins
import random
import re

import pytest

from chop.actions.compress.table import Candidate, Row, about_operators, build_table, terminal_table
from chop.base.tables import markdown_table, print_table, text_table
from chop.report.report import show
from chop.statistics.intervals import wilson_of_share
from chop.train.intervals import Score
from chop.train.tasks import CLASSIFICATION

ROWS = [
    Row("float", "float", 0.9547, 0.9611, 32.0, 0, 232.936),
    Row("PTQ", "integer 8.5", 0.9443, 0.9444, 8.5463, 14, 62.211),
    Row("PTQ", "mxfp width=4:exponent_width=2", 0.0836, 0.1, 4.6523, 14, 33.865, "lost"),
    Row("QAT", "integer 4.2", 0.8885, 0.9, 4.6523, 14, 33.865, "lost"),
]
CANDIDATES = [
    Candidate(row, None, {n: Score(x, wilson_of_share(x, 360), None, 360) for n, x in scores})
    for row in ROWS
    for scores in ([("validation", row.validation), ("test", row.test)],)
]
COMPRESSED = build_table(CANDIDATES, CLASSIFICATION.metric)
SPEED = [
    {
        "model": name,
        "batch": batch,
        "latency": f"{latency} ms",
        "times as fast": "no difference shown (0.93 to 1.12)",
        "rows/s": f"{1000 * batch:,}",
        "weights": "232.9 kB",
        "kept decoded": "227.6 kB",
        "file": "1,236.8 kB",
        "largest difference": 1.234e-7,
    }
    for name in ("float", "float graph", "compressed")
    for batch, latency in ((1, 8.73), (16, 5.2))
]
STATISTICS = [
    {"node": f"vit_encoder_layers_{i}_attention_output_dense", "operand": "data_in"}
    | {name: random.Random(i).gauss(0, 1e4) for name in ("mean", "variance", "least", "largest")}
    for i in range(3)
]


def printed(rows, width, monkeypatch, capsys, columns=None):
    monkeypatch.setenv("COLUMNS", str(width))
    print_table("A title", rows, columns)
    return capsys.readouterr().out


def numbers(rows):
    texts = (f"{v:.4g}" if isinstance(v, float) else str(v) for row in rows for v in row.values())
    return {word for text in texts for word in text.split() if re.match(r"[(-]?\d", word)}


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("rows", [COMPRESSED, SPEED, STATISTICS], ids=["main", "speed", "long"])
def test_no_number_is_broken_over_two_lines(rows, width, monkeypatch, capsys):
    told = printed(rows, width, monkeypatch, capsys)
    assert numbers(rows) <= set(told.split())
    assert max(map(len, told.splitlines())) <= width


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("rows", [COMPRESSED, SPEED], ids=["main", "speed"])
def test_an_interval_is_on_one_line(rows, width, monkeypatch, capsys):
    told = printed(rows, width, monkeypatch, capsys)
    for cell in (str(cell) for row in rows for cell in row.values()):
        assert cell.partition("(")[2] in told


def test_the_main_table_is_one_of_80_columns_and_two_lines_a_row(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    integers = [c for c in CANDIDATES if not c.row.format.startswith("mxfp")]
    show(terminal_table("vit on digits: accuracy", integers, CLASSIFICATION.metric))
    told = capsys.readouterr().out.splitlines()
    assert sum("┏" in line for line in told) == 1 and max(map(len, told)) <= 80
    assert sum("│" in line for line in told) == 2 * len(integers)
    assert about_operators(integers) == "Quantized operators: 14."


def test_a_table_that_fits_is_one_and_its_cells_take_one_line(monkeypatch, capsys):
    told = printed(COMPRESSED, 150, monkeypatch, capsys)
    assert told.count("┏") == 1 and "of 2" not in told
    assert sum("│" in line for line in told.splitlines()) == len(COMPRESSED)


def test_a_table_that_is_cut_repeats_what_tells_its_rows_apart(monkeypatch, capsys):
    told = printed(SPEED, 60, monkeypatch, capsys)
    assert "A title (1 of 3)" in told and "(3 of 3)" in told and told.count("A title") == 1
    assert told.count("model ") == told.count("batch ") == 3
    assert all(name in " ".join(told.split()) for name in ("rows/s", "weights", "latency"))


def test_a_long_title_is_printed_once_and_its_place_is_not_broken(monkeypatch, capsys):
    title = "The saved model beside float (interleaved, compared by processor time, 1 thread)"
    monkeypatch.setenv("COLUMNS", "80")
    print_table(title, SPEED)
    told = capsys.readouterr().out
    assert told.count("The saved model") == 1 and told.count("of 2)") == told.count("1 of 2)") + 1
    assert title in told and max(map(len, told.splitlines())) <= 80


@pytest.mark.parametrize(
    "title", ["The outcome of a search of the study with [a long] name", "\u8a9e" * 3]
)
@pytest.mark.parametrize("width", [40, 80])
def test_a_title_longer_than_its_table_is_not_broken_by_it(width, title, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(title, [{"a": 1}])
    told = capsys.readouterr().out.splitlines()
    above = told[: next(i for i, line in enumerate(told) if "┏" in line)]
    assert len(above) == (2 if len(title) > width else 1)
    assert " ".join(line.strip() for line in above) == title
    assert text_table(title, [{"a": 1}]).splitlines() == told
    print_table("of a", [{"a" * 20: 1}])
    assert capsys.readouterr().out.splitlines()[0] == "of a".center(24)


PATHS = [f"vit.layers.{i}.{name}" for i in range(2) for name in ("attention.q_proj", "mlp.fc1")]


@pytest.mark.parametrize(
    ("columns", "said", "left"),
    [
        ({"layer": PATHS}, "layer: vit.layers. ...", "0.attention.q_proj"),
        ({"layer": PATHS[:2]}, None, "vit.layers.0.attention.q_proj"),  # 2 rows
        ({"layer": ["a.x", "a.y", "a.z"]}, None, "a.x"),  # short
        ({"layer": ["integer 8.25", "integer 8.5", "integer 8.75"]}, None, "integer 8.25"),
        ({"x (95 % interval)": [1], "y (95 % interval)": [2]}, "x, y: 95 % interval", " x "),
        ({"x (kB)": [1], "y (95 % interval)": [2]}, None, "x (kB)"),
        ({"layer": ["model.layer"] * 3}, "layer: model. ...", "│ layer "),
    ],
)
def test_what_columns_say_alike_is_said_once_where_they_are_too_wide(
    columns, said, left, monkeypatch, capsys
):
    wide = {f"wide {i}": ["w" * 30] * len(next(iter(columns.values()))) for i in range(4)}
    for others in ({}, wide):
        table = {**columns, **others}
        rows = [dict(zip(table, cells, strict=True)) for cells in zip(*table.values(), strict=True)]
        told = printed(rows, 100, monkeypatch, capsys)
        assert (said in told if said and others else ": " not in told) and (
            left in told or not others
        )


def test_a_remark_that_tells_two_columns_apart_stays(monkeypatch, capsys):
    row = {"loss": 1.0, "loss (float)": 2.0, "accuracy (float)": 3.0, "speed (float)": 4.0}
    told = printed([{**row, "why": "word " * 30}], 80, monkeypatch, capsys)
    assert "(float)" in told and "accuracy, speed: float" in told


def test_two_columns_that_do_not_fit_are_printed_all_the_same(monkeypatch, capsys):
    rows = [{"a": "x" * 30, "b": "y" * 30}] * 2
    told = printed(rows, 20, monkeypatch, capsys)
    assert "x" in told and "y" in told and max(map(len, told.splitlines())) <= 20


def test_numbers_stand_under_one_another(monkeypatch, capsys):
    lines = printed(COMPRESSED, 150, monkeypatch, capsys).splitlines()
    ends = {line.index("%") for line in lines if "│" in line and "%" in line}
    assert len(ends) == 1


def test_columns_are_those_that_are_named(monkeypatch, capsys):
    told = printed(SPEED, 80, monkeypatch, capsys, ["batch", "model"])
    assert "latency" not in told and told.index("batch") < told.index("model")


def test_a_file_is_as_wide_as_it_likes(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    print_table("A title", SPEED, save_path=tmp_path / "table.txt")
    assert (tmp_path / "table.txt").read_text().count("┏") == 1


def test_neither_a_notebook_nor_forced_colors_change_a_text(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    expected = text_table("A title", SPEED)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert text_table("A title", SPEED) == expected and "A title" in expected
    kernel = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr(builtins, "get_ipython", lambda: kernel, raising=False)
    assert "A title" in text_table("A title", SPEED)


def test_texts_of_others_are_neither_markup_nor_escape_codes(monkeypatch, capsys):
    text = "[red]a[/] \x1b]0;title\x07 \x1b[2J"
    monkeypatch.setenv("COLUMNS", "120")
    print_table(text, [{text: text}])
    told = capsys.readouterr().out
    assert told.count(r"[red]a[/] \x1b]0;title\x07 \x1b[2J") == 3
    assert "\x1b" not in told and "\x07" not in told


def test_a_text_of_others_is_one_cell_of_markdown():
    head, rule, row = markdown_table([{"a|b": "x | y\nz", "c": "\x1b[2J|"}]).splitlines()
    assert head == r"| a\|b | c |" and rule == "| --- | --- |"
    assert row == r"| x \| y z | \x1b[2J\| |"
