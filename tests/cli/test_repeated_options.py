"""Options that are given twice: lists are joined, and nothing is dropped."""

import re
from pathlib import Path

import pytest

from chop.cli.app import app
from chop.cli.words import note_missing_options
from tests.cli.test_adapter import COMMANDS, LEAVES
from tests.subcases import subcases


@subcases("name", LEAVES)
def test_no_repeated_option_is_dropped(name):
    """Lists are joined, a second text is refused; of numbers and paths the last one counts."""
    command, required = COMMANDS[name], ["x" for p in COMMANDS[name].params if p.required]
    parser = command.make_parser(command.make_context(name, [], resilient_parsing=True))
    for option in command.params:
        if option.param_type_name != "option" or option.is_flag:
            continue
        given = [word for text in "12" for word in (option.opts[0], text)]
        if option.multiple:
            assert parser.parse_args([*given])[0][option.name] == ["1", "2"]
            continue
        if option.type_descriptor.annotation is not str:
            assert parser.parse_args([*given])[0][option.name] == "2"
            continue
        with pytest.raises(Exception, match=f"{option.opts[0]} was passed twice: pass it once"):
            command.make_context(name, [*required, *given])


@pytest.mark.parametrize(
    "words",
    [
        ["sweep", "quantize", "--widths", "4", "--widths", "8"],
        ["search", "precision", "--widths=4", "--widths=8"],
        ["emit", "--formats", "8.auto", "--format", "4.auto"],
        ["compress", "--figures", "png", "--figures", "pdf"],
    ],
)
def test_a_command_with_a_repeated_option_ends_with_the_sentence(words, capsys):
    with pytest.raises(SystemExit) as ended:
        app(words, prog_name="chop")
    assert ended.value.code == 2 and "was passed twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["compress", "--formats", "8.auto,", "4.auto"], "--formats: write its list without"),
        (["sweep", "prune", "--methods", "l1-norm", ",wanda"], "--methods: write its list without"),
        (["shard", "--model", "cnn", "--memory", "4", "GB"], "without a blank, as in --memory 4GB"),
        (["shard", "runs/lm", "--memory=512", "MiB"], "without a blank, as in --memory 512MiB"),
        (["lower", "--rows", "1", "000"], "without a blank, as in --rows 1000"),
        (["emit", "cnn", "--fold", "4", "000", "000"], "without a blank, as in --fold 4000000"),
        (["bench", "model", "--seconds", "500", "ms"], "one number without 'ms', in the option's"),
        (
            ["compress", "--max-drop", "1", "%"],
            "without '%', in the .* unit, as in --max-drop 0.01",
        ),
        (["ui", "--host", "0.0.0.0"], "The server listens on this machine only"),
        (["ui", "--bind=0.0.0.0"], "ssh -L PORT:127.0.0.1:PORT THIS-MACHINE"),
        (
            ["compress", "--formats", "8.auto", "4.auto"],
            "--formats: write a list with commas, as in 8.auto,4.auto",
        ),
        (
            ["export", "cnn", "--formats", "4.auto"],
            r"No such option: --formats \(Possible options: ",
        ),
        (["compress", "--bits", "8"], "No such option: --bits. Use --formats."),
        (["compress", "--bs=8"], "No such option: --bs. Use --batch-size."),
        (["sweep", "quantize", "--wbits", "8"], "No such option: --wbits. Use --widths."),
        (["shard", "--gpus", "2"], "No such option: --gpus. Use --mesh."),
        (["compress", "--sav", "x"], r"No such option: --sav (?!\(Possible)"),
        (["compress", "--epochs", "3"], r"--epochs \(Possible options: --qat-epochs"),
        (["compress", "--output", "x"], r"--output \(Possible options: --out"),
        (
            ["evaluate", "cnn", "--sparsity", "0.5"],
            "--sparsity. Other commands have it: chop sweep",
        ),
        (["export", "runs/x", "--reference", "net.py:Net"], "names, pass --trust-code."),
        (["compress", "--formats=8.auto", "4.auto", "6.auto"], "as in 8.auto,4.auto,6.auto"),
        (["compress", "--class-names", "cat", "dog", "a.csv"], "as in cat,dog,a.csv"),
        (["evaluate", "gpt-tiny", "--tasks", "piqa", "copa"], "as in piqa,copa"),
        (["sweep", "prune", "--sparsity", "0.5", "0.9"], "as in 0.5,0.9, and a text"),
        (["sweep", "quantize", "--widths", "4", "8", "--seeds", "3"], "as in 4,8, and a"),
        (["compress", "--overrides", "a=mxint8", "b=mxint4"], "--overrides a=mxint8 --overrides b"),
        (["compress", "--dataset", "a.csv", "b.csv"], "--dataset takes one file or folder: put"),
        (["compress", "--config", "a.csv", "b.csv"], "--config takes one value: leave out b.csv"),
        (["compress", "--dataset", "a.csv", "b.csv", "c.csv"], "put a.csv and b.csv into a folder"),
        (["search", "precision", "runs/x"], "pass the model with --model, and data with"),
        (
            ["sweep", "quantize", "--weights", "a.csv", "b.csv", "c.csv"],
            "--weights takes one value",
        ),
    ],
)
def test_a_second_file_after_an_option_is_named(words, expected, tmp_path, monkeypatch, capsys):
    """The shell writes `--dataset *.csv` as one option and several words."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "b.csv", "c.csv"):
        Path(name).touch()
    with pytest.raises(SystemExit) as ended:
        app(words, prog_name="chop")
    message = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert ended.value.code == 2 and re.search(expected, message)


@pytest.mark.parametrize("name", [["compress"], ["search", "show"]])
def test_help_may_stand_before_a_command(name, capsys):
    for words in (["--help", *name], [*name, "--help"]):
        with pytest.raises(SystemExit) as ended:
            app(words, prog_name="chop")
        assert not ended.value.code
    page = capsys.readouterr().out
    assert page[: len(page) // 2] == page[len(page) // 2 :]


@pytest.mark.parametrize("words", [["--model", "runs/x"], ["--model=runs/x"], ["runs/x"]])
def test_an_argument_may_be_given_like_an_option(words):
    command = COMMANDS["export"]
    command.make_context("export", ["--to", "onnx", *words])
    context = command.make_context("export", [*words, "--to", "onnx"])
    assert (context.params["model"], context.params["to"]) == ("runs/x", ["onnx"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--keep-best", "false"], ("keep_best", False)),
        (["--keep-best=off"], ("keep_best", False)),
        (["--no-keep-best", "No"], ("keep_best", True)),
        (["--keep-best", "true", "--limit", "5"], ("keep_best", True)),
        (["--json", "false"], ("as_json", False)),
        (["--metric", "true"], ("metric", "true")),
    ],
)
def test_a_value_after_a_switch_sets_it(words, expected):
    context = COMMANDS["compress"].make_context("compress", [*words])
    assert context.params[expected[0]] is expected[1] or context.params[expected[0]] == "true"
    assert context.params["run_folder"] is None


def test_options_that_the_command_lacks_are_said_to_be_those_of_others():
    context = COMMANDS["evaluate"].make_context("evaluate", ["cnn"])
    text = "pass --task or --dataset; or run chop compress with --qat-epochs."
    note = note_missing_options(context, text)
    assert note == " evaluate has no --task; chop compress has it."
    assert note_missing_options(context, "pass --dataset or --nonsense") == ""
