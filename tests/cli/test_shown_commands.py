"""Command lines that pages and help texts show: they parse."""

import re
import shlex

import pytest

from tests.cli.test_adapter import COMMANDS, LEAVES
from tests.pages import PAGES, get_name


def shown_on(page):
    """Every `chop ...` of a page: in a line of code, behind a launcher, or in a sentence."""
    text = page.read_text()
    lines = re.findall(r"^(?:.*(?: do | -- |srun ))? *chop ([a-z][^;\n]*)", text, re.M)
    return lines + re.findall(r"`chop ([a-z][^`]*)`", text)


def words_of(shown):
    """Name of the command and its arguments, or None where the name is a group's."""
    words = shlex.split(shown, comments=True)
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in LEAVES:
            return name, words[length:]
    assert " ".join(words) in COMMANDS, shown
    return None


def is_flag(parameter):
    return getattr(parameter, "is_flag", False)


def parse(name, words):
    """The parsed command line; raises at an option that the command does not have.

    The last option may lack its value.
    """
    takes_value = {o for p in COMMANDS[name].params for o in p.opts if not is_flag(p)}
    words = words[:-1] if words and words[-1] in takes_value else words
    return COMMANDS[name].make_context(
        name, [word for word in words if word not in ("--help", "--help-all")]
    )


@pytest.mark.parametrize("page", PAGES, ids=get_name)
def test_commands_take_the_options_that_a_page_shows(page, monkeypatch):
    monkeypatch.setenv("CHOP_STORAGE", "postgresql://chop@db/chop")
    for name, words in filter(None, map(words_of, shown_on(page))):
        # A sentence may name a command without what it needs.
        assert not words or parse(name, words).command is COMMANDS[name]


def test_pages_show_commands_and_a_wrong_option_is_found():
    assert sum(len(shown_on(page)) for page in PAGES) > 100
    name, words = words_of("compress --modell vit")
    with pytest.raises(Exception, match="No such option: --modell") as found:
        parse(name, words)
    assert type(found.value).__name__ == "NoSuchOption"


def test_commands_take_the_options_that_help_shows():
    helps = "\n".join(command.help or "" for command in COMMANDS.values())
    shown = re.findall(r"^ *chop ([a-z].*?)(?: {3}.*)?$", helps, re.M)
    assert len(shown) > 20
    for name, words in filter(None, map(words_of, shown)):
        parse(name, words)
