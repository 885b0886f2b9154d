"""Pages of `--help` and `--help-all`: every one is read."""

import re

import pytest

from chop.cli.app import app
from chop.cli.help import FIRST, LONGEST, default_text, one_line, plain, spelling
from tests import programs
from tests.cli.test_adapter import COMMANDS, LEAVES, ROOT
from tests.cli.test_shown_commands import parse, words_of

PAGES = ["", *COMMANDS]
KNOWN = (
    r"(?:TEXT|PATH|INTEGER|FLOAT|NAME=VALUE|NAME=JSON|[a-z0-9_-]+(?:[|,][a-z0-9_-]+)+)(?:,\.\.\.)?"
)


@pytest.fixture
def page(monkeypatch, capsys):
    """Prints a page as a terminal of some width shows it."""

    def read(name, option="--help", width=80):
        monkeypatch.setenv("COLUMNS", str(width))
        with pytest.raises(SystemExit) as ended:
            app([*name.split(), option], prog_name="chop")
        assert ended.value.code == 0
        return capsys.readouterr().out

    return read


def words(text):
    """Words of a page or text, without the backslashes of commands that go on below."""
    return " ".join(text.replace(" \\\n", " ").replace("# ", "").split())


def options_of(text):
    """Lines below the heading `Options`."""
    return text.partition("\nOptions\n")[2].partition("\n\n")[0].splitlines()


def test_a_page_has_at_most_60_lines_of_80_columns(page):
    for name in PAGES:
        text = page(name)
        assert len(text.splitlines()) <= LONGEST == 60, name
        assert not set("{}") & set(text.splitlines()[0]), name
        for line in (*text.splitlines(), *page(name, "--help-all").splitlines()):
            assert len(line) <= 80, (name, line)


@pytest.mark.long
def test_narrow_terminals_have_no_longer_lines(page):
    for name in LEAVES:
        long = [line for line in page(name, "--help-all", 60).splitlines() if len(line) > 60]
        assert [line for line in long if " " in line.strip()] == [], name  # formats of an example


def test_pages_leave_no_word_and_no_bracket_out_and_show_no_markup(page):
    for name in PAGES:
        command = COMMANDS.get(name, ROOT)
        text = page(name, "--help-all", 200)
        assert not re.search(r"\[/?(bold|dim|italic|red|green|cyan|yellow)?\]", text), name
        shown = words(text)
        for paragraph in f"{command.help}\n\n{command.epilog or ''}".split("\n\n"):
            expected = plain(paragraph).strip()
            if not expected.startswith("chop "):
                assert words(expected) in shown, (name, expected)
        if name in LEAVES:
            for option in command.params:
                assert words(option.help) in shown, (name, option.name)
                assert words(spelling(option)) in shown, (name, option.name)
    assert "pip install 'mase-chop[ui]'" in words(page("ui"))
    assert "pip install 'mase-chop[dashboard]'" in words(page("search dashboard"))


def test_completions_read_options_as_markup_and_find_none():
    for name in LEAVES:
        assert [each.name for each in COMMANDS[name].params if "[" in each.help] == [], name


def test_short_pages_begin_with_model_data_formats_and_output_each_on_a_line(page):
    for name in LEAVES:
        text = page(name)
        if "\nMore options, explained by" not in text:
            continue
        rows = options_of(text)
        shown = [row.split()[0].rstrip(",") for row in rows]
        names = [each.name for each in COMMANDS[name].params]
        first = [f"--{each}" for each in FIRST if each in names and f"--{each}" in shown]
        assert shown[: len(first)] == first, name
        cut = [row for row in rows if row.endswith("...") or not row.startswith("  -")]
        assert cut == [], name
        more = text.partition("\nMore options, explained by ")[2].partition("\n\n")[0]
        assert more.startswith(f"chop {name} --help-all\n"), name
        hidden = set(re.findall(r"--[a-z-]+", more)) - {"--help-all"}
        options = {each.opts[0]: each for each in COMMANDS[name].params if each.opts[0][0] == "-"}
        assert hidden.isdisjoint(shown)
        for option in options.values():
            assert {*option.opts} & {*shown, *hidden}, (name, option.name)


def test_types_are_those_that_people_know():
    for name in LEAVES:
        for each in COMMANDS[name].params:
            if each.param_type_name == "argument" or each.is_flag:
                continue
            assert re.fullmatch(rf"--?[a-z, -]+ {KNOWN}", spelling(each)), spelling(each)
    options = {each.name: spelling(each) for each in COMMANDS["compress"].params}
    assert options["formats"] == "--format, --formats TEXT,..."
    assert options["limit"] == "--limit INTEGER" and options["out"] == "--out PATH"
    assert options["onnx"] == "--onnx, --no-onnx" and options["qat"] == "--qat worst|all"
    assert options["layers"] == "--layers NAME=JSON"


def test_defaults_are_those_of_the_options():
    options = {each.name: default_text(each) for each in COMMANDS["compress"].params}
    assert options["max_drop"] == "0.01" and options["keep_best"] == "off"
    assert options["dataset"] == "the built-in model's own"
    assert options["formats"] == "8.5, 6.4, 4.2, 8.auto, 6.auto, 4.auto"
    assert options["help_all"] == ""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", [50, 80, 200])
def test_examples_can_be_pasted(page, width):
    count = 0
    for name in LEAVES:
        for line in page(name, width=width).replace(" \\\n", " ").splitlines():
            if line.startswith("  chop "):
                found = words_of(" ".join(line.split()).removeprefix("chop "))
                assert "(" not in line.partition("#")[0]
                count += found is not None and parse(*found) is not None
    assert count > 50


def test_groups_take_help_all_too(page):
    for name in ("", "search", "bench", "sweep"):
        assert page(name, "--help-all") == page(name)


def test_a_text_is_cut_at_a_phrase():
    assert one_line("Epochs of QAT. With 0 none.", 30) == "Epochs of QAT."
    assert one_line("Number of rows, spread over all rows.", 25) == "Number of rows ..."
    assert one_line("Formats (a, b, c), or files.", 16) == "Formats ..."


@pytest.mark.parametrize("name", ["", "search"])
def test_a_missing_command_is_answered_by_the_page(name, page, capsys):
    text = page(name)
    with pytest.raises(SystemExit) as ended:
        app(name.split(), prog_name="chop")
    assert ended.value.code == 2 and capsys.readouterr().out == text


def test_the_package_is_a_command():
    done = programs.run("chop", "--version")
    assert (done.returncode, done.stdout) == (0, programs.chop("--version"))
    done = programs.run("chop", "search", "shwo")
    assert done.returncode == 2 and "Did you mean 'show'" in done.stderr
