import json
import re
import shlex
from pathlib import Path

import typer.main

from chop.cli.app import app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "bench.md"


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(blocks) == 1
    exec(blocks[0], {})
    record = json.loads((tmp_path / "runs/bench/linear.json").read_text())
    assert [variant["name"] for variant in record["variants"]] == ["float32", "MXINT8"]
    assert record["variants"][1]["prepare_seconds"] > 0
    assert 0 < record["variants"][1]["largest_difference"] < 0.1
    assert "Times of one call (in turns" in capsys.readouterr().out


def test_commands_take_the_options_that_are_shown():
    group = typer.main.get_command(app).get_command(None, "bench")
    commands = {name: group.get_command(None, name) for name in group.list_commands(None)}
    texts = [PAGE.read_text(), *(command.help or "" for command in commands.values())]
    shown = re.findall(r"^ *chop bench (.*?)(?: {3}.*)?$", "\n".join(texts), re.M)
    assert len(shown) >= 5
    for words in (shlex.split(text, comments=True) for text in shown):
        commands[words[0]].make_context(words[0], words[1:])
