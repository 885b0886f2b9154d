"""The page of the course: its commands parse, what they promise is made, answers stay short."""

import dataclasses
import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest

from chop.cli import adapter
from chop.cli.app import app
from tests import programs
from tests.subcases import subcases

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/course.md"
LONGEST_ANSWER = 10
FIRST = "chop sweep quantize"
"""What `--from` starts from."""


def load_runner():
    spec = importlib.util.spec_from_file_location("run_course", ROOT / "docs/run_course.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RUNNER = load_runner()
ITEMS = [*RUNNER.items(PAGE.read_text())]
COMMANDS = [*dict.fromkeys(item.command for item in ITEMS)]


def by_programs(words):
    """Runs a command in a process that has imported the libraries."""
    program = programs.COMMAND if words[0] == "chop" else ROOT / words[1]
    arguments = words[1:] if words[0] == "chop" else words[2:]
    done = programs.run(program, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def parsed(monkeypatch):
    """Settings of commands, which are parsed and not run."""
    found, execute = [], adapter.execute

    def parse_only(command, ctx, given):
        kept = {"run": found.append, "exit_code": lambda result: 0, "is_slow": False}
        execute(dataclasses.replace(command, **kept), ctx, given)

    monkeypatch.setattr(adapter, "execute", parse_only)
    return found


def test_every_lab_and_tutorial_is_on_the_page():
    scripts = {f"examples/{each.name}" for each in (ROOT / "examples").glob("*_[0-9]*.py")}
    assert len(scripts) == 14
    assert scripts == {word for c in COMMANDS for word in c.split() if word.endswith(".py")}
    assert len(ITEMS) > 25 and all(item.makes for item in ITEMS)
    assert RUNNER.SMALL.keys() == {*COMMANDS}


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("chop ")])
def test_commands_parse_as_they_stand_and_as_they_are_run_here(command, parsed, tmp_path):
    item = next(item for item in ITEMS if item.command == command)
    for words in (shlex.split(command), item.small(tmp_path)):
        with pytest.raises(SystemExit) as ended:
            app(words[1:], prog_name="chop")
        assert ended.value.code == 0
    usual, small = parsed
    assert type(usual) is type(small) and small.out == tmp_path != usual.out


@subcases("command", [c for c in COMMANDS if c.startswith("python ")])
def test_scripts_have_the_options_that_they_are_run_with(command, tmp_path):
    item = next(item for item in ITEMS if item.command == command)
    text = (ROOT / command.split()[1]).read_text()
    options = {word for word in item.small(tmp_path) if word.startswith("--")}
    assert options and all(f'"{option}"' in text for option in options)


def test_answers_have_at_most_ten_lines():
    paragraphs = PAGE.read_text().split("\n\n")
    answers = [text for text in paragraphs if text.startswith("**")]
    assert len(answers) >= 25
    assert all(text.split("**")[1].endswith("?") for text in answers)
    assert [text for text in answers if len(text.splitlines()) > LONGEST_ANSWER] == []
    assert sum(bool(re.search(r"\d", text)) for text in answers) >= 18


def test_a_run_is_the_page_with_its_figures(tmp_path):
    text = (
        "| item | command | makes |\n| --- | --- | --- |\n"
        "| curves | `chop bench linear` | `a.svg`, `t.md` |\n\n[More](bench.md).\n"
    )
    ran = []

    def execute(words):
        ran.append(words)
        folder = Path(words[-1])
        (folder / "a.svg").touch()
        (folder / "t.md").touch()

    folders = RUNNER.run(text, tmp_path, execute)
    assert ran == [["chop", "bench", "linear", "--quick", "--out", f"{tmp_path}/bench-linear"]]
    page = "\n".join(RUNNER.with_figures(text, folders, tmp_path))
    more = f"[More]({PAGE.parent}/bench.md)."
    assert f"\n\n![curves](bench-linear/a.svg)\n\n\n{more}" in page
    assert RUNNER.run(text, tmp_path, execute, ["chop demo"]) == {} and len(ran) == 1
    with pytest.raises(FileNotFoundError, match="chop bench linear: made no b.png"):
        RUNNER.run(text.replace("a.svg", "b.png"), tmp_path, execute)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.tools("verilator", "iverilog", "yosys", "c++")
@pytest.mark.parametrize("command", COMMANDS)
def test_all_of_the_page_is_made(command, tmp_path):
    text = PAGE.read_text()
    needed = [FIRST, command] if "--from" in command else [command]
    folders = RUNNER.run(text, tmp_path, by_programs, needed)
    page = "\n".join(RUNNER.with_figures(text, folders, tmp_path))
    pictures = [n for i in ITEMS if i.command == command for n in i.makes if n.endswith("svg")]
    assert not pictures or f"]({RUNNER.get_folder(command)}/" in page
