"""The page on searches: its Python runs, and its commands take the options that it shows."""

import re
import shlex
from pathlib import Path

import pytest

from chop.cli.search import LIFE
from tests.cli.test_adapter import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/search.md")


def _commands():
    """Every `chop search ...` of the pages: in a line of code, or in the text."""
    for page in PAGES:
        text = (ROOT / page).read_text()
        found = re.findall(r"^ *(?:srun )?chop search (.*)$", text, re.M)
        for command in found + re.findall(r"`chop search ([^`]*)`", text):
            yield page, shlex.split(command, comments=True)


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/search.md").read_text(), re.S)
    names = {}
    for block in blocks:
        exec(block, names)
    promised = re.findall(r"print\(.*?\)\s+# (.*)", "".join(blocks))
    assert capsys.readouterr().out.splitlines() == promised and len(promised) == 3
    assert (tmp_path / "runs/mine/search.db").is_file()
    assert len(names["study"].trials) == 5


@pytest.mark.parametrize(("page", "words"), list(_commands()), ids=str)
def test_commands_take_the_options_that_are_shown(page, words, monkeypatch):
    monkeypatch.setenv("CHOP_STORAGE", "postgresql://chop@db/chop")
    command = COMMANDS[f"search {words[0]}"]
    command.make_context(words[0], words[1:])  # click raises at an option that it does not know


def test_help_says_what_to_do_next():
    assert all(name in LIFE for name in ("resume", "worker", "show"))
