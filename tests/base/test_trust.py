"""Code that a file names runs only where the command line names it, or says that it may."""

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from chop.actions.bench.job import bench_model
from chop.actions.bench.settings import BenchModelConfig
from chop.actions.evaluate.job import evaluate
from chop.actions.evaluate.settings import EvaluateConfig
from chop.actions.search.job import run_search
from chop.actions.search.manage import export_best, resume_search, work_for
from chop.base.files.documents import dump_toml
from chop.base.trust import check_code, code_names, confirmation, trust_code, trust_named
from chop.cli.app import app
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.models import load_model

EVIL = """from pathlib import Path
Path("mark").touch()
from torch import nn
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(2, 2))
"""
REFUSED = "names the code 'evil.py:Net', and code named by files does not run"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder that somebody else made: a file of code, rows, and a run that names both."""
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text(EVIL)
    rows = [f"{i / 40},{1 - i / 40},{i // 20}" for i in range(40)]
    Path("rows.csv").write_text("\n".join(["a,b,label", *rows]))
    settings = {"model": "evil.py:Net", "dataset": "rows.csv"}
    Path("run").mkdir()
    Path("run/result.json").write_text(json.dumps({"config": settings, "saved": {}}))
    MaseGraph(nn.Sequential(nn.Linear(2, 2)), dummy_in={"input": torch.ones(3, 2)}).export(
        "run/model"
    )
    Path("r.toml").write_text(dump_toml({**settings, "formats": ["8.auto"], "qat_epochs": 0}))
    return tmp_path


def told(*arguments):
    """The exit code of a command and what it said, in one line."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    error = done.exception
    said = f"{done.output} {error if isinstance(error, ConfigError) else ''}"
    return done.exit_code, " ".join(said.split())


DOORS = {
    "evaluate": ("evaluate", "run", "--out", "out"),
    "bench": ("bench", "model", "--compressed", "run", "--out", "out"),
    "compress": ("compress", "--config", "r.toml"),
    "lower": ("lower", "--config", "r2.toml"),
    "emit": ("emit", "--config", "r2.toml"),
    "shard": ("shard", "--config", "model.toml"),
    "compile": ("bench", "compile", "--config", "models.toml"),
    "generate": ("bench", "generate", "--config", "model.toml"),
    "dequantize": ("bench", "dequantize", "--config", "model.toml"),
    "precision": ("search", "precision", "--config", "r2.toml"),
    "sensitivity": ("search", "sensitivity", "--config", "r2.toml"),
    "nas": ("search", "nas", "--config", "r2.toml"),
    "sweep quantize": ("sweep", "quantize", "--config", "r2.toml"),
    "sweep prune": ("sweep", "prune", "--config", "r2.toml"),
    "bench of a file": ("bench", "model", "--config", "run.toml"),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("door", DOORS)
def test_code_that_a_file_names_does_not_run(door, here):
    Path("r2.toml").write_text(dump_toml({"model": "evil.py:Net", "dataset": "rows.csv"}))
    Path("model.toml").write_text(dump_toml({"model": "./evil.py:Net"}))
    Path("models.toml").write_text(dump_toml({"models": ["cnn", "evil.py:Net"]}))
    Path("run.toml").write_text(dump_toml({"compressed": "run"}))
    code, said = told(*DOORS[door])
    assert code and "names the code '" in said and "--trust-code" in said
    assert not Path("mark").exists()


def test_an_export_leaves_out_the_rows_that_need_the_code(here):
    _, said = told("export", "run", "--to", "pt2", "--out", "out")
    assert not Path("mark").exists()
    code, said = told("export", "run", "--to", "pt2", "--dataset", "rows.csv", "--out", "out")
    assert code and REFUSED in said and not Path("mark").exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "more", [("--trust-code",), ("--model", "evil.py:Net"), ("--model", "./run/../evil.py:Net")]
)
def test_code_that_the_command_line_names_runs(more, here):
    command = ("compress", "--config", "r.toml", "--force", "--bench-seconds", 0, *more)
    _, said = told(*command)
    assert Path("mark").exists() and "names the code" not in said


def test_another_model_on_the_command_line_trusts_nothing(here):
    assert "names the code" not in told("compress", "--config", "r.toml", "--model", "mlp")[1]
    assert REFUSED in told("evaluate", "run", "--reference", "other.py:Net")[1]
    assert REFUSED in told("evaluate", "run", "--reference", "evil.py:Other")[1]
    assert not Path("mark").exists()


def test_an_evaluation_takes_the_float_model_for_the_name(here):
    _, said = told("evaluate", "run", "--reference", "evil.py:Net", "--out", "out")
    assert Path("mark").exists() and "names the code" not in said


def test_a_manifest_is_such_a_file(here):
    command = ("compress", "--config", "r.toml", "--trust-code", "--force", "--out", "mine")
    told(*command, "--keep-best", "--bench-seconds", 0)
    Path("mark").unlink()
    assert Path("mine/manifest.json").is_file()
    for command in (("evaluate", "mine"), ("sweep", "prune", "--from", "mine", "--out", "out")):
        code, said = told(*command)
        assert code and f"'{here}/mine/manifest.json' {REFUSED}" in said.replace(
            "'mine/", f"'{here}/mine/"
        )
        assert not Path("mark").exists()


@pytest.mark.parametrize("run", [evaluate, bench_model])
def test_programs_say_that_files_may_name_code(run, here):
    config = {
        evaluate: EvaluateConfig("run"),
        bench_model: BenchModelConfig(compressed=Path("run")),
    }
    with pytest.raises(ConfigError, match=f"{REFUSED}.*with chop.base.trust.trust_code"):
        run(config[run])
    assert not Path("mark").exists()
    with trust_code(), contextlib.suppress(ConfigError):
        run(config[run])
    assert Path("mark").exists()


def test_a_program_names_code_by_calling(here):
    load_model("evil.py:Net")
    assert Path("mark").exists()


def test_trusted_code_may_use_other_code(here):
    Path("good.py").write_text(
        "from chop.models import load_model\ndef make(): return load_model('evil.py:Net')\n"
    )
    with trust_named({"model": "good.py:make"}):
        load_model("good.py:make")
        assert Path("mark").exists()
        with pytest.raises(ConfigError, match="the command line does not"):
            load_model("evil.py:Net")


def test_the_outermost_context_decides():
    with trust_named(["a.py:Net"]):
        with trust_code(), pytest.raises(ConfigError, match="names the code"):
            check_code("b.py:Net", "file")
        check_code({"x": [{"y": "a.py:Net"}]}, "file")
    with pytest.raises(ConfigError, match="names the code"):
        check_code("timm:resnet18", "file")


def test_names_of_code_are_found_at_any_depth():
    settings = {"a": ["x.py:y", {"b": Path("z.py:w")}], "c": 1, "d": None, "e": b"q.py:r"}
    assert list(code_names(settings)) == ["x.py:y", "z.py:w"]
    assert (confirmation("timm:x"), confirmation("vit")) == (" --trust-code", "")


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The folder of a search that somebody made."""
    from chop.actions.search.precision import JOB

    out = tmp_path_factory.mktemp("begun") / "s"
    run_search(
        JOB, JOB.config(model="mlp", out=out, trials=1, sampler="random", formats=("8.mse",))
    )
    return out


@pytest.fixture
def search(here, begun):
    """A copy of the search in the current folder, and the function that alters its settings."""
    shutil.copytree(begun, "s")

    def alter(**settings):
        pairs = ", ".join(f"'$.job.settings.{key}', '{value}'" for key, value in settings.items())
        with contextlib.closing(sqlite3.connect("s/search.db")) as connection:
            connection.execute(f"UPDATE chop_studies SET document = json_set(document, {pairs})")
            connection.commit()

    return alter


def test_a_storage_is_such_a_file(search):
    search(model="evil.py:Net", dataset="rows.csv")
    for command in (("resume", "s"), ("worker", "s"), ("export", "s", "best.toml")):
        code, said = told("search", *command)
        assert code and REFUSED in said
    for program in (resume_search, work_for):
        with pytest.raises(ConfigError, match=REFUSED):
            program("s")
    with pytest.raises(ConfigError, match=REFUSED):
        export_best("s", Path("best.toml"))
    assert not Path("mark").exists()
    told("search", "resume", "s", "--trust-code")
    assert Path("mark").exists()


@pytest.mark.long
def test_a_storage_has_nothing_written_elsewhere(search, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "x"
    file = Path("s/search.db").absolute()
    search(storage=f"sqlite:///{file}", out=other)
    code, said = told("search", "resume", "s", "--trials", 2)
    assert code and f"outside the current folder, to '{other}'" in said and not other.exists()
    assert told("search", "resume", "s", "--trials", 2, "--out", other)[0] == 0
    assert (other / "precision/best.json").is_file()


def test_a_stopped_search_says_what_its_resumption_needs(begun, monkeypatch, tmp_path):
    from chop.actions.search.job import _resume_note
    from chop.actions.search.precision import JOB

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("chop.actions.search.job.finished_trials", lambda url, study: 1)
    own = {"model": "net.py:Net", "dataset": "rows.csv"}
    config = JOB.config(**own, out=Path("a"))
    note = _resume_note(config, 0)
    assert note.startswith("finished trials are saved. To resume, run the same command, or: ")
    assert note.endswith(": chop search resume a/precision --trust-code")
    config = JOB.config(**own, out=Path("a"), storage="b/x.db")
    assert _resume_note(config, 0).endswith(" --name precision --trust-code --out a")
    config = JOB.config(model="mlp", out=Path("b/c"), storage="b/x.db")
    assert _resume_note(config, 0).endswith(" --name precision")


@pytest.mark.parametrize("key", ["out", "storage"])
def test_a_toml_file_has_nothing_written_elsewhere(key, here, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    Path("link").symlink_to(other)
    for place in (other / "x.db", "../x.db", "link/x.db", "~/x.db"):
        Path("w.toml").write_text(dump_toml({"model": "mlp", key: str(place)}))
        code, said = told("search", "precision", "--config", "w.toml")
        assert code and "outside the current folder" in said and f"--{key}" in said
    assert not list(other.iterdir())


def test_a_toml_file_names_no_server(here):
    Path("w.toml").write_text(dump_toml({"model": "mlp", "storage": "postgresql://u:pw@h/db"}))
    code, said = told("search", "precision", "--config", "w.toml")
    assert (
        code
        and "writes trials to a server" in said
        and "--storage URL" in said
        and "pw" not in said
    )


def test_a_place_on_the_command_line_wins(here, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    Path("w.toml").write_text(dump_toml({"model": "mlp", "out": "/nowhere"}))
    command = ("compress", "--config", "w.toml", "--formats", "8.auto", "--qat-epochs", 0)
    assert told(*command, "--bench-seconds", 0, "--out", other / "x")[0] == 0
    assert (other / "x/result.json").is_file()
