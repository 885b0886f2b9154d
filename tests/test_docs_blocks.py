"""Blocks of pages that are neither Python nor lines of `chop`: each has a test, some here."""

import re
import shlex
import subprocess
import tomllib

import pytest
import yaml

from chop.base.plugins import GROUPS
from chop.cli.app import INTERRUPTED, TERMINATED, app
from tests.actions.evaluate.test_tasks import CHOICE
from tests.cli.test_shown_commands import parse, words_of
from tests.pages import PAGES, RESULTS, ROOT, get_name

BLOCK = re.compile(
    r"^```(?P<kind>\w*)\n(?P<fenced>.*?)^```$|(?P<indented>(?:^ {4}[^\n]*\n|^\n(?= {4}))+)",
    re.MULTILINE | re.DOTALL,
)
SET_UP = ("pip install ", "apt-get install ", "make ", "python3 -m venv ", ". .venv/bin/activate")
COURSE, DOCS, HERE = "tests/test_course.py", "tests/test_docs.py", "tests/test_docs_blocks.py"
LITEX = "tests/hardware/test_litex.py"
RUN = "tests/test_docs_outputs.py"
ENTRY_POINTS = ("how-to/a-package-of-your-own", '[project.entry-points."chop.formats"]')
TESTED = {
    ("course", "python docs/run_course.py"): COURSE,
    ("guide/compress", "saved integer 6.auto (PTQ): "): RUN,
    ENTRY_POINTS: HERE,
    ("guide/circuit", "iverilog -g2012 -s testbench"): DOCS,
    ("guide/circuit-testbench", "iverilog -g2012 -s bench"): DOCS,
    ("guide/circuit", "python examples/litex/soc.py runs/board"): LITEX,
    ("guide/circuit-soc", "python examples/litex/soc.py runs/emit\n"): LITEX,
    ("guide/circuit-soc", "python examples/litex/soc.py runs/emit --target"): LITEX,
    ("guide/circuit-soc", "sample 0, fc3: class 7"): LITEX,
    (
        "guide/circuit-dot-products",
        "python benchmarks/dot_products.py",
    ): "tests/hardware/design/test_dot_products.py",
    ("guide/compress", "PoorFitWarning: 14 of 14 layers"): RUN,
    ("guide/export-onnx", "import onnxruntime_genai"): "tests/export/onnx/test_genai.py",
    ("guide/export-onnx", "import openvino_genai"): "tests/export/onnx/test_genai.py",
    ("guide/export-qonnx", "import hls4ml"): "tests/export/test_qonnx.py",
    ("guide/export-qonnx", "import torch\nfrom brevitas"): "tests/export/test_brevitas.py",
    (
        "guide/import",
        "cache = chop.QuantizedCache.from_checkpoint(model)",
    ): "tests/export/compressed_tensors/test_reader.py",
    ("guide/evaluate-models", "task: my_task"): HERE,
    ("guide/search-compare", "for mode in none compress"): HERE,
    ("guide/search-workers", "#!/bin/bash"): HERE,
    ("guide/search-workers", "apiVersion: batch/v1"): HERE,
    ("guide/shard", "plan       weights (kB)"): RUN,
    ("guide/shard", "torchrun --nproc-per-node 2 --no-python"): HERE,
    ("guide/shard-python", "torchrun --nproc-per-node 2 program.py"): HERE,
    ("guide/shard", "#SBATCH --nodes=2"): HERE,
    ("guide/shard-python", 'model = meta_model("./my-llama")'): RUN,
    ("guide/shard", "config = DistributedConfig("): RUN,
}
"""Page and what a block begins with -> the file that tests it."""
FORMULAS = {
    ("guide/circuit-dot-products", "sum over blocks of"),
    ("guide/evaluate-models", "perplexity = exp("),
}


def blocks(page):
    """Kind and text of every block of code; of an indented one the kind is empty."""
    for found in BLOCK.finditer(page.read_text()):
        if found["indented"] is None:
            yield found["kind"], found["fenced"]
        else:
            yield "", re.sub(r"^ {4}", "", found["indented"], flags=re.M).strip("\n")


def runs_or_sets_up(line):
    return not line.strip() or line.lstrip().startswith(("chop ", *SET_UP))


def others():
    """Pages with blocks that neither `test_docs` nor `test_readme_commands` runs."""
    for page in PAGES:
        for kind, text in blocks(page):
            if kind != "python" and not all(map(runs_or_sets_up, text.splitlines())):
                yield get_name(page), text


def block(page, beginning):
    (text,) = [text for name, text in others() if name == page and text.startswith(beginning)]
    return text


def test_every_block_has_a_test():
    known = {key: block(*key) for key in (*TESTED, *FORMULAS)}
    assert sorted(others()) == sorted((page, text) for (page, _), text in known.items())
    assert all((ROOT / file).is_file() for file in TESTED.values())


def test_entry_points_of_the_page_are_those_of_the_example():
    page = tomllib.loads(block(*ENTRY_POINTS))["project"]["entry-points"]
    example = tomllib.loads((ROOT / "examples/plugin/pyproject.toml").read_text())
    assert page == example["project"]["entry-points"]
    assert {group.removeprefix("chop.") for group in page} <= set(GROUPS)


def test_what_sets_up_names_extras_and_targets_that_there_are():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    pages = "\n".join(page.read_text() for page in PAGES)
    lists = re.findall(r"mase-chop\[([\w,-]+)\]", pages)
    named = {name for each in lists for name in each.split(",")}
    assert len(named) > 5 and named <= extras["optional-dependencies"].keys()
    made = set(re.findall(r"(?:^|`)make (\w[\w-]*)", pages, re.M))
    assert len(made) >= 3 and made <= {*targets}


@pytest.mark.parametrize("key", [key for key in TESTED if key[1].startswith(("#", "for ", "tor"))])
def test_scripts_for_clusters_are_of_bash(key):
    subprocess.run(["bash", "-n"], input=block(*key), text=True, check=True)


def test_options_of_torchrun_are_its_own():
    from torch.distributed.run import get_args_parser

    pages = (ROOT / f"docs/guide/{name}.md" for name in ("shard", "shard-python"))
    text = "".join(page.read_text() for page in pages).replace("\\\n", "")
    lines = re.findall(r"torchrun (--[^\n]*)", text)
    parsed = [get_args_parser().parse_args(shlex.split(line)) for line in lines]
    assert sorted(each.training_script for each in parsed) == ["chop", "chop", "program.py"]
    for each in parsed:
        assert each.no_python == (each.training_script == "chop")
        if each.no_python:
            name, words = words_of(shlex.join(each.training_script_args))
            assert name == "shard" and parse(name, words)


def test_the_job_of_kubernetes_starts_a_worker(monkeypatch):
    job = yaml.safe_load(block("guide/search-workers", "apiVersion"))
    (worker,) = job["spec"]["template"]["spec"]["containers"]
    (storage,) = worker["env"]
    monkeypatch.setenv(storage["name"], "postgresql://chop@db/chop")
    name, words = words_of(shlex.join(worker["command"][1:]))
    assert job["kind"] == "Job" and worker["command"][0] == "chop" and name == "search worker"
    assert parse(name, words).params["url"] == "postgresql://chop@db/chop"


def test_the_task_is_like_one_that_is_asked():
    task = yaml.safe_load(block("guide/evaluate-models", "task"))
    asked = yaml.safe_load(CHOICE.format(folder="/data"))
    own = {"task", "dataset_kwargs"}
    assert own <= task.keys() <= asked.keys()
    assert [key for key in task.keys() - own if task[key] != asked[key]] == []
    assert task["dataset_kwargs"]["data_files"].keys() == {task["test_split"]}


def test_exit_codes_are_those_that_the_help_tells():
    page = (ROOT / "docs/guide/commands.md").read_text()
    told = " ".join(app.info.epilog.split()).partition("Exit codes[/]: ")[2].partition(".")[0]
    codes = re.findall(r"(?:^|; )(\d+) ", told)
    assert codes == ["0", "1", "2", "3", str(INTERRUPTED), str(TERMINATED)]
    assert codes == re.findall(r"^\| (\d+) \|", page, re.M)


def test_commands_of_the_results_have_the_options_that_they_show():
    text = re.sub(r"\\\n\s*", "", "\n".join(page.read_text() for page in RESULTS))
    lines = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)).splitlines()
    commands = [re.sub(r"\s+[(\[].*$", "", line) for line in lines]
    ours = [line.removeprefix("chop ") for line in commands if line.startswith("chop ")]
    scripts = re.findall(r"^(?:\w+=\S+ )*python (\S+\.py)(.*)", "\n".join(commands), re.M)
    assert len(ours) > 20 and len(scripts) > 40
    for line in ours:
        parse(*words_of(line))
    for script, arguments in scripts:
        source = get_source(ROOT / script)
        options = [word for word in shlex.split(arguments, comments=True) if word.startswith("--")]
        assert [word for word in options if f'"{word}"' not in source] == [], script


def get_source(script):
    """A script with the modules beside it that it imports."""
    text = script.read_text()
    beside = [
        script.parent / f"{name}.py" for name in re.findall(r"^from (\w+) import", text, re.M)
    ]
    return "\n".join([text, *(file.read_text() for file in beside if file.is_file())])
