import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chop.cli import main
from tests.programs import chop


def test_the_command_is_installed():
    command = Path(sys.executable).with_name("chop")
    done = subprocess.run([command, "--help"], capture_output=True, text=True, check=True)
    assert "compress" in done.stdout


def test_help_teaches():
    assert all(name in chop("--help") for name in ("compress", "demo", "doctor"))
    text = chop("compress", "--help")
    options = (
        "--model",
        "--dataset",
        "--config",
        "--out",
        "--seed",
        "--device",
        "Examples",
        "result.json",
    )
    assert all(option in text for option in options)


def test_compress_reads_toml_and_options_win(tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(
        'model = "mlp"\nformats = ["4.2", "8.auto"]\nqat_epochs = 0\nseed = 3\n'
        "max_drop = 0.1\nbench_seconds = 0\n"
    )
    out = tmp_path / "out"
    text = chop("compress", "--config", config, "--out", out, "--formats", "8.6")
    assert "saved" in text
    result = json.loads((out / "result.json").read_text())
    assert [row["format"] for row in result["rows"]] == ["float", "integer 8.6"]
    assert result["config"]["seed"] == 3


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--model", "vitt"], "did you mean 'vit'"),
        (["--formats", "8"], "expected width.fraction"),
        (["--config", "none.toml"], "does not exist"),
    ],
)
def test_mistakes_are_one_line(arguments, message, tmp_path):
    error = chop("compress", "--out", tmp_path / "out", *arguments, code=2)
    assert message in " ".join(error.split())
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_a_drop_that_no_format_keeps_within_has_an_exit_code_of_its_own(tmp_path):
    command = ["compress", "--model", "mlp", "--formats", "4.2", "--qat-epochs", 0]
    command += ["--bench-seconds", 0, "--out", tmp_path]
    chop(*command, code=3)
    assert not (tmp_path / "model.pt").exists()
    told = " ".join(chop(*command, "--keep-best").split())
    assert "because --keep-best asks for it" in told
    assert (tmp_path / "model.pt").exists()


@pytest.fixture
def main_ends(monkeypatch, capsys):
    """Runs a command in this process: its exit code, and what it printed."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["chop", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code, " ".join((printed.out + printed.err).split())

    return run


def stop(*args, **kwargs):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "command, where, kept",
    [
        (["compress", "--qat-epochs", 0], "compress.measure", "no results were written to"),
        (
            ["sweep", "quantize"],
            "sweep.experiment.fit",
            r"2 finished points are kept in .*jsonl; t",
        ),
        (["sweep", "prune"], "sweep.experiment.raise_to_graph", "0 finished points are kept in"),
        (["search", "nas"], "search.job.find_job", "nothing was written"),
        (["search", "precision"], "subject.load_subject", "or chop search resume"),
        (["search", "sensitivity"], "subject.load_subject", "nothing was written"),
        (["bench", "model"], "bench.load_subject", "nothing was written"),
    ],
)
def test_what_is_stopped_by_hand_says_what_is_kept(
    command, where, kept, tmp_path, monkeypatch, main_ends
):
    job = importlib.import_module(f"chop.actions.{where.rpartition('.')[0]}")
    monkeypatch.setattr(job, where.rpartition(".")[2], stop)
    code, printed = main_ends(*command, "--model", "mlp", "--out", tmp_path)
    assert code == 130
    assert re.search(f"Interrupted: {kept}|Interrupted: .*{kept}", printed)
    assert "Traceback" not in printed


@pytest.mark.parametrize("command", ["compress", "sweep quantize", "search nas", "bench softmax"])
def test_a_line_is_there_before_anything_is_imported(command, monkeypatch, main_ends, capsys):
    monkeypatch.setitem(sys.modules, "chop.config", None)
    with pytest.raises(ImportError):
        main_ends(*command.split())
    assert capsys.readouterr().err == "loading PyTorch and transformers ...\n"


def test_exit_codes_are_in_the_help():
    told = " ".join(chop("--help").split())
    assert "Exit codes" in told and "3 no format kept within" in told and "130 stopped" in told


def test_unknown_keys_of_a_file_are_named(tmp_path):
    config = tmp_path / "run.toml"
    config.write_text('modle = "mlp"\n')
    assert "did you mean 'model'" in " ".join(chop("compress", "--config", config, code=2).split())


def test_doctor_lists_packages():
    text = chop("doctor")
    assert "torch" in text
    assert "ok" in text


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["precision", "--goals", "acuracy"], "did you mean 'accuracy'"),
        (["nas", "--field", "num_layers"], "expected name=value"),
    ],
)
def test_mistakes_in_searches_are_one_line(arguments, message):
    error = chop("search", *arguments, code=2)
    assert message in " ".join(error.split())
    assert "Traceback" not in error
