import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from chop.actions.doctor import examine
from chop.cli import execute, main
from chop.cli.execute import _plain_warnings
from chop.models import load_model
from chop.runs.interrupt import terminable
from tests.cli.test_adapter import COMMANDS
from tests.programs import chop


def test_the_command_is_installed():
    command = Path(sys.executable).with_name("chop")
    done = subprocess.run([command, "--help"], capture_output=True, text=True, check=True)
    assert "compress" in done.stdout


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


def test_the_best_format_is_saved_on_request_where_none_is_within_the_drop(tmp_path):
    command = ["compress", "--model", "mlp", "--formats", "4.2", "--qat-epochs", 0]
    command += ["--bench-seconds", 0, "--out", tmp_path, "--keep-best"]
    told = " ".join(chop(*command).split())
    assert "because of --keep-best" in told
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


def terminate(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)


@pytest.mark.parametrize(
    "command, where, kept",
    [
        (
            ["compress", "--qat-epochs", 0],
            "actions.compress.whole.measure",
            "no results were saved",
        ),
        (
            ["sweep", "quantize"],
            "workloads.workload.fit",
            r"2 finished points are saved in .*jsonl",
        ),
        (["sweep", "quantize"], "workloads.load.load_trained", "0 finished points are saved"),
        (["sweep", "prune"], "actions.sweep.experiment.raise_to_graph", "0 finished points"),
        (["search", "nas"], "actions.search.job.find_job", "no results were saved"),
        (["search", "precision"], "workloads.load.load_workload", "no trial was finished"),
        (["search", "sensitivity"], "workloads.load.load_workload", "0 finished points are saved"),
        (["bench", "model"], "actions.bench.job.load_workload", "no results were saved"),
    ],
)
@pytest.mark.parametrize(("end", "expected"), [(stop, 130), (terminate, 143)])
@pytest.mark.sampled(1)
def test_what_is_stopped_by_hand_or_by_a_batch_system_says_what_is_kept(
    end, expected, command, where, kept, tmp_path, monkeypatch, main_ends
):
    monkeypatch.setattr(f"chop.{where}", end)
    code, printed = main_ends(*command, "--model", "mlp", "--out", tmp_path)
    assert code == expected
    assert re.search(f"Interrupted: {kept}|Interrupted: .*{kept}", printed)
    assert "Traceback" not in printed
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_ends_forked_processes_at_once_and_is_left_where_others_handle_it():
    with terminable():
        child = os.fork()
        if not child:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with terminable():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("command", ["compress", "sweep quantize", "search nas", "bench softmax"])
def test_a_line_is_there_before_anything_is_imported(command, monkeypatch, main_ends, capsys):
    monkeypatch.setitem(sys.modules, "chop.config", None)
    with pytest.raises(ImportError):
        main_ends(*command.split())
    assert capsys.readouterr().err == "loading PyTorch and transformers ...\n"


def test_help_wraps_by_the_width_of_the_terminal():
    by_hand = re.compile(r"(?<!\n)\n(?!\n)")
    assert [name for name, found in COMMANDS.items() if by_hand.search(found.help)] == []


@pytest.mark.parametrize("width", [60, 100])
def test_help_fills_its_lines_and_no_more(width, monkeypatch, main_ends, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys, "argv", ["chop", "search", "precision", "--help-all"])
    with pytest.raises(SystemExit):
        main()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    first = next(line for line in lines if "A trial chooses" in line)
    assert len(first.rstrip()) > width - 15


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("compress --seed 99999999999999999999", "seed: got 99999999999999999999, expected 0 to"),
        ("compress --seed -1", "seed: got -1, expected 0 to 4294967295."),
        ("compress --device meta", "device 'meta' is not available here; choose from: cpu"),
        ("sweep prune --device mps", "device 'mps' is not available here; choose from: cpu"),
        (
            "bench softmax --device meta --quick",
            "device 'meta' is not available here; choose from: cpu",
        ),
        ("search precision --budget bits=abc", "budgets.bits: expected float, got 'abc'"),
        ("search precision --budget bits=0", "budgets: bits: got 0, expected more than 0"),
        ("search precision --budget bits=0.1", "budgets: bits=0.1 cannot be met: with the small"),
        ("search precision --budget activation_bits=1", "activation_bits=1 cannot be met"),
        ("search nas --budget accuracy=1.5", "accuracy: got 1.5, expected 0 to 1"),
        (
            "search nas --model vit --field hidden_size=-32",
            "hidden_size: expected 0 or more, such as 48",
        ),
    ],
)
@pytest.mark.sampled(3)
def test_values_that_cannot_be_are_one_sentence_before_anything_runs(
    arguments, message, main_ends, tmp_path, monkeypatch
):
    monkeypatch.setattr("chop.search.study.Search.run", lambda *a, **k: pytest.fail("it ran"))
    untrained = lambda name, **settings: load_model(name)  # noqa: E731
    monkeypatch.setattr("chop.workloads.load.load_trained", untrained)
    model = [] if "vit" in arguments or "bench" in arguments else ["--model", "mlp"]
    code, printed = main_ends(*arguments.split(), *model, "--out", tmp_path / "out")
    assert code == 2 and "Traceback" not in printed
    assert message in printed.partition("ConfigError: ")[2]


LONG = "x" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "generate", "--model", LONG),
        ("bench", "model", "--compressed", LONG),
        ("emit", "--check-only", "--out", LONG),
        ("evaluate", LONG),
        ("export", f"./{LONG}/model", "--to", "onnx"),
        ("report", LONG),
        ("search", "compare", LONG, "other"),
        ("search", "precision", "--model", "mlp", "--out", LONG),
        ("shard", "--model", LONG),
        ("sweep", "prune", "--model", "mlp", "--from", LONG),
        ("ui", LONG),
    ],
    ids=lambda arguments: " ".join(word for word in arguments if LONG not in word),
)
@pytest.mark.sampled(6)
def test_a_name_that_no_disk_takes_is_one_sentence(arguments, main_ends, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    code, printed = main_ends(*arguments)
    assert code == 2 and "Traceback" not in printed
    assert re.search(r"ConfigError: 'x+\.\.\. \(30\d characters\)' is too long", printed)


def test_errors_are_neither_markup_nor_escape_codes(main_ends, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    name = tmp_path / "[red]x[/] \x1b[2J.db"
    code, printed = main_ends("search", "show", name)
    assert code == 2 and r"[red]x[/] \x1b[2J.db" in printed
    assert "\x1b" not in printed


def test_exit_codes_are_in_the_help():
    told = " ".join(chop("--help").split())
    assert "Exit codes" in told and "3 no format is within" in told and "130 stopped" in told


def test_unknown_keys_of_a_file_are_named(tmp_path):
    config = tmp_path / "run.toml"
    config.write_text('modle = "mlp"\n')
    assert "did you mean 'model'" in " ".join(chop("compress", "--config", config, code=2).split())


def test_doctor_lists_what_a_user_needs_once():
    findings = [finding.what for finding in examine()]
    assert {"torch", "transformers", "onnx", "triton", "postgres", "verilator"} < set(findings)
    assert len(findings) == len(set(findings))
    assert not {"pytest", "ruff", "mypy", "mase-chop"} & set(findings)
    told = chop("doctor")
    assert "cache folder" in findings and "removed" not in findings
    assert all(f"│ {what} " in told for what in findings)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["precision", "--goals", "acuracy"], "did you mean 'accuracy'"),
        (["nas", "--field", "num_layers"], "expected name=value, such as num_layers=4"),
        (["nas", "--field", "depth=1", "--field", "depth=2"], "'depth' was already set"),
        (["precision", "--budget", "bits=4", "--budget", "bits=3"], "'bits' was already set"),
        (["export", "runs", "README.md"], "'README.md': expected a .toml file"),
    ],
)
def test_mistakes_in_searches_are_one_line(arguments, message):
    error = chop("search", *arguments, code=2)
    assert message in " ".join(error.split())
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("quantize", "chop compress quantizes"),
        ("train", "chop.train.fit"),
        ("benchmark", "chop bench model"),
    ],
)
def test_names_that_people_type_for_a_command(name, told, main_ends):
    code, printed = main_ends(name, "--model", "mlp")
    assert code == 2
    assert told in " ".join(printed.replace("│", " ").split())


def test_warnings_of_the_package_show_no_code():
    usual = warnings.formatwarning
    with _plain_warnings():
        own = warnings.formatwarning("its own", UserWarning, execute.__file__, 3)
        other = warnings.formatwarning("another's", UserWarning, "/lib/other.py", 3)
    assert own == "Warning: its own\n"
    assert other.startswith("/lib/other.py:3: UserWarning: another's")
    assert warnings.formatwarning is usual
