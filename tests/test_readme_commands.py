"""The README's command lines run as they stand there, section by section."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from chop.data import load_dataset
from chop.data.tokenizer import get_tokenizer
from chop.train import load_trained
from tests import programs

README = Path(__file__).resolve().parents[1] / "README.md"
IN_BLOCKS = r"^chop [^#\n]*"
IN_SENTENCES = r"`(chop demo|chop(?: [a-z][\w-]*)*(?: (?:--|\S*/)[^`]*))`"
NOT_RUN = {
    "chop --install-completion": "changes the settings of the user's shell",
}
SECONDS = 3000


def command_lines():
    """Title of a section -> its command lines, in their order."""
    found = {}
    for section in re.split(r"^#{2,3} ", README.read_text(), flags=re.M):
        title, text = section.partition("\n")[::2]
        lines = re.finditer(f"{IN_BLOCKS}|{IN_SENTENCES}", text, re.M)
        commands = [" ".join((line[1] or line[0]).split()) for line in lines]
        commands = [line for line in commands if line not in NOT_RUN]
        if commands:
            found[title] = commands
    return found


COMMANDS = command_lines()


def my_bert():
    load_trained("bert-tiny").save_pretrained("my-bert")
    get_tokenizer("bert-tiny").save_pretrained("my-bert")


def my_data():
    Path("my-data").mkdir()
    for name, split in load_dataset("reviews").items():
        split.to_csv(f"my-data/{name}.csv", index=False)


def my_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8}
    LlamaForCausalLM(LlamaConfig(vocab_size=256, **sizes, **heads)).save_pretrained("my-llama")


def two_searches():
    for name in ("a", "b"):
        shutil.copytree("runs/search/precision", f"runs/{name}")


NEEDED = {
    "./my-bert": my_bert,
    "./my-data": my_data,
    "./my-llama": my_llama,
    "runs/a": two_searches,
}
"""What the reader is to have -> what makes it."""


def test_all_command_lines_are_found():
    lines = [line for section in COMMANDS.values() for line in section]
    for part in (
        "bench generate",
        "sweep prune",
        "shard --memory 190kB --run",
        "emit --check-only",
    ):
        assert any(line.startswith(f"chop {part}") for line in lines)
    assert "chop search resume runs/search/precision" in lines and len(lines) > 25
    assert set(NEEDED) <= {word for line in lines for word in line.split()}
    assert not [line for line in lines if re.search(r"\b[A-Z]{3,}\b", line)]  # names to fill in


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.tools("verilator", "iverilog", "c++")
@pytest.mark.parametrize("title", COMMANDS)
def test_command_lines_run_as_they_stand(title, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line in COMMANDS[title]:
        if "--clean" in line:
            monkeypatch.setenv("CHOP_CACHE", str(tmp_path / "cache"))
        words = shlex.split(line)
        for word in words:
            if word in NEEDED and not Path(word).exists():
                NEEDED[word]()
        done = programs.run(programs.COMMAND, *words[1:], timeout=SECONDS)
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
        assert "Traceback" not in done.stderr
