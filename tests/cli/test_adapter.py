import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, get_args, get_type_hints

import pytest
import typer

from chop.actions.bench.settings import BenchModelConfig
from chop.actions.compress.settings import CompressConfig
from chop.actions.search.format_settings import FormatSettings
from chop.actions.search.settings import NasConfig, PrecisionConfig, SensitivityConfig
from chop.actions.shard.settings import ShardConfig
from chop.base.docstrings import entries
from chop.cli.adapter import CommandGroup, build_command
from chop.cli.app import app
from chop.cli.command import Command, load
from chop.cli.help import default_text
from chop.cli.settings_file import read_settings
from chop.cli.values import read_value
from chop.errors import ConfigError
from chop.runs import as_json
from chop.studies.settings import (
    BenchAttentionConfig,
    BenchCompileConfig,
    BenchDequantizeConfig,
    StudyConfig,
)
from chop.workloads.settings import WorkloadConfig
from tests import programs
from tests.subcases import subcases

ROOT = typer.main.get_command(app)
CONTEXT = ROOT.make_context("chop", ["doctor"], resilient_parsing=True)


def commands(group=ROOT, path=()):
    """Every command and group below `chop` by its words."""
    for name in group.list_commands(CONTEXT):
        found = group.get_command(CONTEXT, name)
        yield " ".join((*path, name)), found
        if isinstance(found, CommandGroup):
            yield from commands(found, (*path, name))


COMMANDS = dict(commands())
LEAVES = [name for name, found in COMMANDS.items() if not isinstance(found, CommandGroup)]
FLAGS = {"as_json", "verbose", "quiet", "help", "help_all"}


def table():
    """Every `Command` by its words."""
    groups = {"": ROOT, **{n: c for n, c in COMMANDS.items() if isinstance(c, CommandGroup)}}
    return {
        f"{path} {name}".strip(): command
        for path, group in groups.items()
        for name, command in group.table.items()
    }


def test_all_commands_are_found():
    assert {"compress", "demo", "sweep prune", "search resume", "bench softmax"} < set(LEAVES)
    assert set(table()) == set(LEAVES)


@subcases("name", LEAVES)
def test_every_option_shows_its_default_and_has_a_help(name):
    for parameter in COMMANDS[name].params:
        assert parameter.help and parameter.help[0] == parameter.help[0].upper()
        if parameter.required or parameter.name in ("help", "help_all"):
            continue
        default = default_text(parameter)
        assert default and "None" not in default, parameter.name


@subcases("name", [name for name, command in table().items() if command.settings])
def test_options_are_the_fields_with_their_defaults_and_entries(name):
    command = table()[name]
    cls, texts = load(command.settings), entries(load(command.settings))
    options = {parameter.name: parameter for parameter in COMMANDS[name].params}
    names = [f.name for f in fields(cls) if not command.only or f.name in command.only]
    assert "figures" in options
    assert ("trust_code" in options) == (bool({"model", "models"} & set(names)))
    common = {"config", "figures", "imports", "trust_code", "run_folder"}
    assert set(options) - FLAGS - common == set(names)
    for f in fields(cls):
        if f.name not in names:
            continue
        told, option = texts[f.name], options[f.name]
        assert option.help[1:] == told.partition(" Default: ")[0][1:]
        if isinstance(f.default, int | float | str) and f.name not in command.defaults:
            assert option.default == f.default
        elif f.default is None:
            assert f"{option.show_default}." == told.partition(" Default: ")[2]


@pytest.mark.parametrize("name", [*LEAVES, *sorted(set(COMMANDS) - set(LEAVES))])
@pytest.mark.sampled(3)
def test_short_help_is_the_same_as_long_help(name, capsys):
    told = []
    for option in ("-h", "--help"):
        with pytest.raises(SystemExit) as ended:
            app([*name.split(), option], prog_name="chop")
        assert ended.value.code == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] and f"chop {name}" in told[0]


def test_help_imports_neither_torch_nor_transformers():
    code = (
        "import sys, typer.main\n"
        "from chop.cli.app import app\n"
        "def build(command):\n"
        "    for name in getattr(command, 'commands', ()):\n"
        "        build(command.get_command(None, name))\n"
        "build(typer.main.get_command(app))\n"
        "print([m for m in ('torch', 'transformers', 'optuna', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_choices_are_those_of_the_registries():
    from chop.bench.timing import METHODS
    from chop.problems.mixed_precision.candidates import Rule
    from chop.problems.mixed_precision.layer_sensitivity import METRICS
    from chop.problems.nas.architecture import SQUARE_LAYERS
    from chop.problems.nas.compression import Mode
    from chop.studies.attention_implementations import DTYPES, MASKS
    from chop.studies.compile import MODES
    from chop.studies.decoding import FORMATS

    def choices(cls, name):
        return get_args(inspect.get_annotations(cls, eval_str=True)[name])

    assert choices(NasConfig, "compression") == get_args(Mode)
    assert choices(FormatSettings, "rule") == get_args(Rule)
    assert choices(BenchCompileConfig, "modes")[0] == Literal[tuple(MODES)]
    assert choices(BenchDequantizeConfig, "formats")[0] == Literal[tuple(FORMATS)]
    assert choices(BenchAttentionConfig, "dtypes")[0] == Literal[tuple(DTYPES)]
    assert choices(BenchAttentionConfig, "masks")[0] == Literal[tuple(MASKS)]
    assert choices(StudyConfig, "method") == METHODS
    assert NasConfig.square_layers == tuple(SQUARE_LAYERS)
    assert SensitivityConfig.metrics == METRICS
    from chop.kernels.matmul_precision import MatmulPrecision

    for cls in (WorkloadConfig, StudyConfig, BenchModelConfig, ShardConfig):
        assert choices(cls, "matmul_precision") == (MatmulPrecision, type(None))


@dataclass(frozen=True)
class Settings:
    """Settings of a command.

    Attributes:
        sizes: sizes of things.
        shares: share per name. Default: none.
        mode: way to work.
        quick: less work.
        rate: speed. Default: fast.
        rows: number of rows.
    """

    sizes: tuple[int, ...] = (1, 2)
    shares: dict[str, float] = field(default_factory=dict)
    mode: Literal["one", "two"] = "one"
    quick: bool = False
    rate: float | None = None
    rows: int = 8


def run(arguments, tmp_path, capsys, toml="", **settings):
    found = []
    command = Command(found.append, f"{__name__}:Settings", is_slow=False, **settings)
    sys.modules[__name__] = sys.modules[Settings.__module__]
    if toml:
        (tmp_path / "run.toml").write_text(toml)
        arguments = [*arguments, "--config", str(tmp_path / "run.toml")]
    with pytest.raises(SystemExit):
        build_command(command, "try")(arguments)
    return found[0] if found else capsys.readouterr().err


def test_lists_take_commas_and_repeats(tmp_path, capsys):
    assert run(["--sizes", "3,4", "--sizes", "5"], tmp_path, capsys).sizes == (3, 4, 5)
    assert run([], tmp_path, capsys) == Settings()


def test_per_cent_and_words_for_numbers_are_refused_with_a_number(tmp_path, capsys):
    error = " ".join(run(["--rate", "1.5%"], tmp_path, capsys).replace("│", "").split())
    assert "got '1.5%', expected a number; for per cent, write 0.015." in error
    error = " ".join(run(["--rate", "x"], tmp_path, capsys).replace("│", "").split())
    assert "got 'x', expected a number." in error
    error = " ".join(run(["--rows", "1.5"], tmp_path, capsys).replace("│", "").split())
    assert "got '1.5', expected a whole number." in error
    assert run(["--rows", "3"], tmp_path, capsys).rows == 3


def test_options_of_the_command_line_are_no_settings_of_a_file(tmp_path, capsys):
    with pytest.raises(ConfigError, match="'trust_code' is no setting: pass --trust-code as an"):
        run([], tmp_path, capsys, toml="trust_code = true")


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (r'mode = "data\table"', r"mode: TOML reads \\t in .*write data/table\. A backslash"),
        (r'shares = {a = ["b", "runs\new"]}', r"toml: a: TOML reads \\n in .*; write runs/new"),
        (r'mode = "data\users"', "not valid TOML: .*write paths with /, since a backslash"),
        ("trials = 20", "'trials' is a setting of chop search nas, chop search precision, chop"),
        ("siz = 20", "unknown key 'siz': did you mean 'sizes'"),
    ],
)
def test_files_with_escapes_or_settings_of_another_command(toml, message, tmp_path, capsys):
    with pytest.raises(ConfigError, match=message):
        run([], tmp_path, capsys, toml=toml)


def test_keys_of_a_file_may_be_written_like_options(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("qat-epochs = 2\nformat = '8.auto'\n")
    assert read_settings(file, {}, CompressConfig) == {"qat_epochs": 2, "formats": "8.auto"}
    file.write_text("qat-epochs = 2\nqat_epochs = 3\n")
    with pytest.raises(ConfigError, match="'qat_epochs' is given twice"):
        read_settings(file, {}, CompressConfig)


def test_a_comma_before_a_field_does_not_divide_a_value():
    hint = tuple[str, ...]
    assert read_value(["integer:width=4,frac=2,8.4"], hint) == ["integer:width=4,frac=2", "8.4"]


def test_options_win_over_the_file_and_defaults_do_not(tmp_path, capsys):
    toml = 'sizes = [7]\nmode = "two"\nquick = true\nrate = 2.5'
    assert run([], tmp_path, capsys, toml) == Settings((7,), {}, "two", True, 2.5)
    given = run(["--mode", "one", "--no-quick", "--rate", "1"], tmp_path, capsys, toml)
    assert given == Settings((7,), {}, "one", False, 1.0)


def test_values_of_mappings_are_json_or_text():
    assert read_value(["a=1,b", "c=2"], dict[str, tuple[object, ...]] | None) == {
        "a": [1, "b"],
        "c": [2],
    }
    nested = read_value(['fc={"weight": "4.auto"}'], dict[str, dict[str, str]])
    assert nested == {"fc": {"weight": "4.auto"}}


@subcases("name", LEAVES)
def test_mappings_show_an_example_that_can_be_read(name):
    for option in COMMANDS[name].params:
        if not (option.metavar or "").startswith("NAME="):
            continue
        example = re.search(r"Example: (?:`(.*?)`|'(.*?}+)')\.", option.help)
        assert example, option.name
        command = table()[name]
        hint = get_type_hints(command.source)[option.name]
        (value,) = read_value([example[1] or example[2]], hint).values()
        assert option.metavar == "NAME=JSON" or not isinstance(value, dict)


def test_json_is_all_of_standard_output(tmp_path):
    done = programs.run(
        programs.COMMAND, "sweep", "prune", "--model", "mlp", "--methods", "l1-norm", "--sparsity",
        "0.5", "--finetune-epochs", 0, "--out", tmp_path, "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["command"] == "chop sweep prune"
    assert document["settings"]["methods"] == ["l1-norm"]
    assert document["settings"]["out"] == str(tmp_path)
    assert [row["method"] for row in document["result"]] == ["l1-norm"]
    told = ("accuracy against sparsity", "loading PyTorch", "loading mlp")
    assert all(text in done.stderr for text in told)


def test_json_comes_with_the_exit_code_and_not_with_an_error(tmp_path):
    command = ["compress", "--model", "mlp", "--formats", "4.2", "--qat-epochs", 0, "--json"]
    command += ["--bench-seconds", 0, "--out", tmp_path]
    done = programs.run(programs.COMMAND, *command)
    assert done.returncode == 3 and json.loads(done.stdout)["result"]["saved"] is None
    assert not (tmp_path / "model.pt").exists()
    done = programs.run(programs.COMMAND, "search", "show", tmp_path, "--json")
    assert done.returncode == 2 and done.stdout == ""


def test_quiet_leaves_results(tmp_path):
    command = ["sweep", "prune", "--model", "mlp", "--methods", "l1-norm", "--sparsity", "0.5"]
    command += ["--finetune-epochs", 0, "--out"]
    quiet = programs.run(programs.COMMAND, *command, tmp_path, "--quiet")
    assert quiet.stderr == "" and "loading" not in quiet.stdout
    assert "accuracy against sparsity" in quiet.stdout


def test_verbose_shows_debug_messages(tmp_path, capsys):
    import logging

    log = logging.getLogger("chop.tests")
    command = Command(lambda: log.debug("a detail"), help="Log a line.", is_slow=False)
    for arguments, is_shown in (([], False), (["-v"], True)):
        with pytest.raises(SystemExit):
            build_command(command, "try")(arguments)
        assert ("a detail" in capsys.readouterr().err) == is_shown


def test_version():
    from chop import __version__

    assert programs.chop("--version") == f"chop {__version__}\n"


@pytest.mark.long
def test_shells_complete_commands_options_and_choices():
    def completed(words):
        environ = {**os.environ, "_CHOP_COMPLETE": "complete_bash", "COMP_WORDS": f"chop {words}"}
        environ["COMP_CWORD"] = str(len(words.split(" ")))
        command = [sys.executable, "-c", "from chop.cli.app import app; app(prog_name='chop')"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
        return done.stdout.split()

    assert completed("sea") == ["search"]
    assert completed("search nas --comp") == ["--compression", "--compression-epochs"]
    assert completed("sweep prune --scope gl") == ["global"]


def test_questions_and_keys_keep_their_text_and_urls_lose_their_secrets():
    found = as_json({"why?? ://x": "what?? see http://u:PW@host/a?key=PW, is it?"})
    assert found == {"why?? ://x": "what?? see http://...@host/a?... is it?"}
    assert "PW" not in str(as_json({"http://u:PW@host/a?key=PW": 1}))


@pytest.mark.parametrize("words", ["--help", "compress --help"])
@pytest.mark.sampled(1)
def test_the_command_line_works_without_docstrings(words):
    run = [sys.executable, "-OO", "-m", "chop.cli", *words.split()]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 0 and "Usage" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "words, nearest",
    [
        ("comprss", "compress"),
        ("serch", "search"),
        ("search precison", "precision"),
        ("bench attenton", "attention"),
        ("sweep quantze", "quantize"),
    ],
)
def test_mistyped_commands_name_the_nearest_in_every_group(words, nearest, capsys):
    with pytest.raises(SystemExit) as ended:
        app(words.split(), prog_name="chop")
    told = " ".join(capsys.readouterr().err.split())
    assert ended.value.code == 2
    assert f"No such command '{words.split()[-1]}'. Did you mean '{nearest}'" in told


@pytest.mark.parametrize("words", ["bench run", "run"])
def test_a_folder_in_the_place_of_a_command_is_named(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    with pytest.raises(SystemExit) as ended:
        app(words.split(), prog_name="chop")
    message = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert ended.value.code == 2
    assert "'run' is a file or folder: write a command before it, of" in message


def test_arguments_are_whole_and_options_are_cut_at_commas(capsys):
    found = []

    def compare(paths: tuple[str, ...], /, *, labels: tuple[str, ...] = ()) -> None:
        """Compare.

        Args:
            paths: files.
            labels: names. Default: none.
        """
        found.extend((paths, labels))

    with pytest.raises(SystemExit):
        build_command(Command(compare, is_slow=False), "try")(["a,b", "c", "--labels", "d,e"])
    assert found == [("a,b", "c"), ("d", "e")]


@pytest.mark.parametrize("words", ["--json -q doctor", "doctor -q --json"])
def test_output_flags_stand_before_or_after_the_command(words):
    done = programs.run(programs.COMMAND, *words.split())
    assert json.loads(done.stdout)["command"] == "chop doctor"
    assert "chop doctor" in done.stderr


@pytest.mark.parametrize("words", ["-q search resume x", "search resume x -q"])
def test_quiet_commands_say_nothing_of_loading(words):
    done = programs.run(programs.COMMAND, *words.split())
    assert done.returncode == 2 and "loading PyTorch" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [["compress", "--out", ""], ["compress", "--config", ""], ["search", "compare", "--out", ""]],
)
def test_empty_paths_are_refused(words, capsys):
    with pytest.raises(SystemExit) as ended:
        app(words, prog_name="chop")
    assert ended.value.code == 2
    assert "got an empty text" in " ".join(capsys.readouterr().err.split())


def test_options_that_few_need_are_listed_last():
    command = build_command(Command(print, "chop.actions.search.settings:PrecisionConfig"), "x")
    panels = {each.name: getattr(each, "rich_help_panel", None) for each in command.params}
    shown = [name for name, panel in panels.items() if panel not in ("More options", "Output")]
    assert len(shown) <= 19  # --config, --help and --help-all among them
    assert {"model", "dataset", "out", "trials", "formats", "goals", "budgets"} <= {*shown}
    order = [panel == "More options" for name, panel in panels.items() if panel != "Output"]
    assert panels["lr"] == panels["tokenizer"] == "More options"
    assert sorted(order[: order.index(True)]) == [False] * order.index(True)
    assert panels.keys() >= {each.name for each in fields(PrecisionConfig)}
