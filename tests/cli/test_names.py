"""Names of tables stand in one place: help, errors, completions and pages are made of them."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chop.cli.adapter import build_command
from chop.cli.app import Commands, app
from chop.cli.names import FILE, OPTIONS, TABLES, completions, known
from chop.errors import ConfigError
from chop.export.targets import TARGETS, target
from chop.formats import REGISTRY, Integer, get_format
from chop.passes import PASSES
from chop.search.registry import SAMPLERS, sampler_row
from chop.train import TASKS
from chop.train.task import Task
from chop.train.tasks import check_metric_name, find_task
from docs.write_names import BLOCK, BLOCKS, page, registered
from tests.sources import parse_file

ROOT = Path(__file__).parents[2]
DOCS = [path for path in (ROOT / "docs").rglob("*.md") if path.name != "formats.md"]
SOURCES = [
    path
    for folder in ("cli", "actions", "workloads")
    for path in (ROOT / "src/chop" / folder).rglob("*.py")
]


def test_files_are_written_of_the_tables():
    assert FILE.read_text() == registered(), "run python -m docs.write_names"
    written = set()
    for path in DOCS:
        text = path.read_text()
        assert page(text) == text, f"{path}: run python -m docs.write_names"
        written |= {found[2] for found in BLOCK.finditer(text)}
    assert written == set(BLOCKS)


def test_every_option_of_the_table_is_one():
    commands = [build_command(command, name) for name, command in Commands.table.items()]
    options = {each.name for command in commands for each in command.params}
    assert set(OPTIONS.values()) == set(TABLES)
    assert {"formats", "task", "metric", "to", "method", "model"} <= options & set(OPTIONS)


@pytest.fixture
def added():
    """Rows that a program adds, in no file of chop: group, command, its option, name."""
    metric = TASKS["regression"].metric
    further = {"metric_abc": replace(metric, name="metric_abc")}
    task = Task("task-abc", metric, lambda x, y: x.sum(), metrics=further)
    kind = type("Abc", (Integer,), {"name": "format_abc", "aliases": ()})
    SAMPLERS["sampler_abc"] = lambda space, seed: None
    TARGETS["target-abc"] = TARGETS["pt2"].__class__(
        "target-abc", "Abc", "integer", "chop", "", "", lambda *_: {}, lambda _: None
    )
    TASKS["task-abc"] = task
    REGISTRY.setdefault("format_abc", kind)
    yield [
        ("formats", "compress", "--formats", "format_abc"),
        ("samplers", "search precision", "--sampler", "sampler_abc"),
        ("targets", "export", "--to", "target-abc"),
        ("tasks", "compress", "--task", "task-abc"),
        ("metrics", "compress", "--metric", "metric_abc"),
    ]
    for table in (REGISTRY, SAMPLERS, TARGETS, TASKS):
        for name in [name for name in table if name[-3:] == "abc"]:
            del table[name]


def test_what_a_program_adds_is_in_help_and_completions(added):
    for group, command, option, name in added:
        whole = CliRunner().invoke(app, [*command.split(), "--help-all"])
        text = " ".join(whole.output.split())
        choices = (
            text.partition(f"{option} TEXT")[2].partition("Choices: ")[2].partition("[default")[0]
        )
        assert name in choices, (group, choices)
        short = CliRunner().invoke(app, [*command.split(), "--help"]).output
        assert name in " ".join(short.split()), group
        complete = completions(group)
        assert complete(name[:-2]) == [name], group
        assert complete(f"8.auto,{name[:-2]}") == [f"8.auto,{name}"]


def test_a_completion_of_a_shell_has_them(added, monkeypatch):
    for group, command, option, name in added:
        typed = f"chop {command} {option} {name[:-1]}"
        found = CliRunner().invoke(
            app,
            prog_name="chop",
            env={
                "_CHOP_COMPLETE": "complete_bash",
                "COMP_WORDS": typed,
                "COMP_CWORD": str(len(typed.split()) - 1),
            },
        )
        assert name in found.output, (group, found.output)


def test_errors_name_the_nearest_of_them(added):
    asks = {
        "format_abd": get_format,
        "sampler_abd": sampler_row,
        "target-abd": target,
        "task-abd": find_task,
        "metric_abd": check_metric_name,
    }
    for (_, _, _, name), (wrong, ask) in zip(added, asks.items(), strict=True):
        with pytest.raises(ConfigError, match=f"did you mean '{name}'"):
            ask(wrong)


def test_a_pass_that_a_program_adds_is_named_by_an_error():
    from chop.pipelines import Pipeline

    def smooth_abc_transform_pass(mg, pass_args=None):
        return mg, {}

    PASSES["smooth_abc_transform_pass"] = smooth_abc_transform_pass
    try:
        with pytest.raises(ConfigError, match="did you mean 'smooth_abc_transform_pass'"):
            Pipeline(["smooth_abd_transform_pass"])
    finally:
        del PASSES["smooth_abc_transform_pass"]


def test_help_has_the_names_of_modules_that_are_imported(tmp_path, monkeypatch):
    (tmp_path / "names_abc.py").write_text(
        "from chop.search.registry import SAMPLERS\n"
        "def sampler_of_file(space, seed): ...\n"
        "SAMPLERS['sampler_of_file'] = sampler_of_file\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        given = ["search", "nas", "--import", "names_abc", "--help"]
        assert "sampler sampler_of_file (names_abc)" in CliRunner().invoke(app, given).output
    finally:
        del SAMPLERS["sampler_of_file"]


# --- no second list -------------------------------------------------------------------------------

GROUPS = {**{group: set(known(group)) for group in TABLES}, "passes": set(PASSES.own_rows())}
for group in ("operators", "models", "datasets"):  # ordinary words, and examples of commands
    del GROUPS[group]
WORD = r"[A-Za-z][\w-]*"
BETWEEN = r"(?:, (?:and |or )?| and | or |\||/)"
LISTED = re.compile(rf"{WORD}(?:{BETWEEN}{WORD})+")


def listed(text):
    """Names of one table that stand behind one another, three or more."""
    text = re.sub(r"\[/?\w*\]|[`'\"*]", "", text)
    for _ in range(3):
        text = re.sub(r"\s*\([^()]*\)", "", text)
    for found in LISTED.finditer(" ".join(text.split())):
        words = re.split(BETWEEN, found[0])
        for group, members in GROUPS.items():
            run = []
            for word in [*words, None]:
                if word in members:
                    run.append(word)
                elif len({*run}) > 2:
                    yield group, ", ".join(run)
                    run = []
                else:
                    run = []


def column(text):
    """Names of one table that begin the lines of a paragraph, three or more."""
    firsts = re.findall(rf"^\s*(?:[-|*]|\[bold\]) ?`?({WORD})", text, re.M)
    for group, members in GROUPS.items():
        found = [name for name in firsts if name in members]
        if len({*found}) > 2:
            yield group, ", ".join(found)


def lists_of_source(path):
    for node in ast.walk(parse_file(path)):
        texts = []
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts = node.value.split("\n\n")
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            texts = [_joined(node.elts)]
        elif isinstance(node, ast.Dict):
            texts = [_joined(node.keys)]
        for text in texts:
            yield from listed(text)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from column(node.value.replace("\n\n", "\n"))


def _joined(nodes):
    return ", ".join(str(x.value) for x in nodes if isinstance(x, ast.Constant))


def lists_of_page(path):
    text = re.sub(r"^```.*?^```|^ {4}.*?$", "", BLOCK.sub("", path.read_text()), flags=re.M | re.S)
    for paragraph in text.split("\n\n"):
        yield from listed(paragraph)
        yield from column(paragraph)


DEFINED = {
    ("ptq.py", "smoothquant, awq, rotate, gptq, learned_rounding"),  # METHODS itself
    ("chance.py", "balanced_accuracy, f1, roc_auc"),  # metrics that judge a rare class
    ("next_steps.py", "compressed-tensors, gguf, gptq"),  # by preference for language models
}
FACTS = {
    # Results of searches, ranked.
    ("course.md", "block_minifloat, mxfp, nvfp4, scale_integer, mxint"),
    ("course.md", "block_minifloat, log, block_fp, binary_residual"),
    ("course.md", "block_fp, minifloat_ieee, block_log, minifloat_denorm"),
    ("course.md", "binary_residual, ternary, binary"),
    ("course.md", "sensitivity, tpe, random"),
    ("export.md", "compressed-tensors, gptq, gguf, qonnx"),  # engines are not timed
    ("export.md", "onnx, openvino, pt2, compressed-tensors, gguf"),  # measured
    ("export-gguf.md", "mxint, group_affine, mxfp, nvfp4, k_quant"),  # types in the file
    ("export-gguf.md", "mxint, mxfp, group_affine"),  # formats that llama.cpp ran
    ("export-onnx.md", "group_integer, mxint, group_affine"),  # groups of MatMulNBits
    ("export-qonnx.md", "integer, binary, ternary"),  # exact in hls4ml
    ("export-qonnx.md", "integer, scale_integer, binary, ternary"),  # nodes of formats
    ("export-vllm.md", "mxint, fp8, mxfp, nvfp4"),  # first cells of a table of layouts
    ("export-vllm.md", "mxint, group_integer, scale_integer, integer"),
    ("export-vllm.md", "scale_integer, integer, fp8"),
    ("import.md", "group_integer, scale_integer, mxfp, nvfp4, fp8"),  # formats of read layers
    ("import.md", "fp8, nvfp4, scale_integer"),
    ("import.md", "k_quant, mxfp, nvfp4"),
    ("masks.md", "scale_integer, nvfp4, nf4, binary, block_fp"),  # formats that cannot be causal
    ("mase.md", "binary_residual, integer, binary, mxint"),  # in the place of parts of MASE
    ("passes.md", "scale_integer, binary, binary_residual, ternary"),  # learned scales
    ("run-files.md", "onnx, compressed-tensors, gptq"),  # files and folders of targets
    ("shard-python.md", "mxint, block_fp, mxfp"),  # examples of blocks
    (
        "passes.md",
        "freeze_transform_pass, rotate_transform_pass, prune_transform_pass, "
        "insert_lora_adapter_transform_pass, fuse_rms_norm_transform_pass, export_interface_pass",
    ),  # more on some passes
}
"""Lists of pages that say something of some names, and not which names there are."""


def test_sources_have_no_second_list():
    assert {(path.name, each[1]) for path in SOURCES for each in lists_of_source(path)} == DEFINED


def test_pages_have_no_second_list():
    assert {(path.name, each[1]) for path in DOCS for each in lists_of_page(path)} == FACTS


@pytest.mark.parametrize(
    "text",
    [
        'HELP = """Targets: onnx, openvino and gguf."""',
        'def f():\n    """Sampler: tpe, nsga2 or random."""',
        'NAMES = ("classification", "binary", "regression")',
        'ROWS = {"mxint": 1, "mxfp": 2, "nvfp4": 3}',
        'HELP = """[bold]onnx[/] (a)\n\n[bold]gguf[/] (b)\n\n[bold]pt2[/] (c)"""',
        'HELP = """Method: smoothquant (ranges), awq (scales (of channels)), gptq (errors)."""',
        'USED = "accuracy|f1|mse"',
    ],
)
def test_a_second_list_is_found(text, tmp_path):
    (tmp_path / "help.py").write_text(text)
    assert list(lists_of_source(tmp_path / "help.py")) != []
    page = "| target |\n| --- |\n| `onnx` | a |\n| `gguf` | b |\n| `pt2` | c |\n"
    (tmp_path / "page.md").write_text(page)
    assert list(lists_of_page(tmp_path / "page.md")) == [("targets", "onnx, gguf, pt2")]
    (tmp_path / "page.md").write_text(f"<!-- targets -->\n{page}<!-- end -->\n")
    assert list(lists_of_page(tmp_path / "page.md")) == []
