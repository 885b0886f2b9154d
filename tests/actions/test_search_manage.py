import json
import multiprocessing
import os
import signal
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from chop.actions.search import job as jobs
from chop.actions.search.job import Job, SearchConfig, run_job, settings_of
from chop.actions.search.manage import (
    choice_rows,
    export_best,
    load_search,
    resume_search,
    show_search,
    toml,
    work_for,
)
from chop.cli.app import app
from chop.config import load_toml
from chop.errors import ConfigError, UnavailableError
from chop.search import Choice, Goal, Search, SearchSpace

SPACE = SearchSpace(tuple(Choice(f"fc{i}", {"4.mse": 4, "8.mse": 8}) for i in range(3)))


@dataclass(frozen=True)
class ToyConfig(SearchConfig):
    """A job without a model."""

    JOB_NAME: ClassVar[str] = "toy"
    out: Path = Path("runs/toy")
    sampler: str = "grid"
    trials: int = 6
    kill_at: int = 0


def prepare(config):
    asked = []

    def measure(chosen, report):
        asked.append(chosen)
        if len(asked) == config.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        bits = sum(SPACE.values(chosen).values()) / 3
        return {"accuracy": bits / 8 - 0.3 * (chosen["fc1"] == "4.mse"), "bits": bits}

    goals = (Goal("accuracy"), Goal("bits", "minimize", budget=7))
    return Search(
        SPACE,
        measure,
        goals,
        sampler=config.sampler,
        storage=config.storage,
        out=config.out,
        name=config.study,
        seed=config.seed,
    )


def write(config, search, result):
    config.folder.mkdir(parents=True, exist_ok=True)
    (config.folder / "result.json").write_text(json.dumps(result.counts))


def export(config, chosen):
    return {
        "model": config.model,
        "formats": [],
        "layers": {name: {"weight": text} for name, text in chosen.items()},
    }


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    job = Job("toy", ToyConfig, prepare, write, export)
    monkeypatch.setitem(sys.modules, "toy_job", types.SimpleNamespace(JOB=job))
    monkeypatch.setitem(jobs.JOB_MODULES, "toy", "toy_job")
    return job


@pytest.fixture
def begun(toy, tmp_path):
    run_job(toy, ToyConfig(out=tmp_path / "toy"))
    return tmp_path / "toy"


def test_a_killed_job_is_resumed_from_what_its_study_knows(toy, tmp_path):
    config = ToyConfig(out=tmp_path / "toy", kill_at=4, limit=7, seed=5)
    process = multiprocessing.get_context("fork").Process(target=run_job, args=(toy, config))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    noted, result = load_search(str(config.out))
    assert noted["job"] == {"name": "toy", "settings": settings_of(config)}
    assert result.counts == {"measured": 3, "running": 1}
    finished = resume_search(str(config.out))
    assert [trial.begun for trial in finished.trials] == [1, 1, 1, 2, 1, 1]
    assert finished.measured[:3] == result.measured
    assert json.loads((config.folder / "result.json").read_text()) == finished.counts
    assert resume_search(str(config.out), trials=8, workers=2).counts["measured"] == 8


def test_a_worker_needs_the_storage_alone(begun, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    search = prepare(ToyConfig(out=begun))
    search.note_job("toy", {**settings_of(ToyConfig(out=begun)), "trials": 8})
    result = work_for(str(begun / "search.db"))
    assert len(result.measured) == 8 == len({t.key for t in result.measured})


def test_show_needs_no_job(begun, capsys):
    result = show_search(str(begun))
    text = capsys.readouterr().out
    assert result.best.values["bits"] <= 7
    assert "measured" in text and "within budgets" in text and "importance" in text
    assert f"{result.best.values['accuracy']:.6g}" in text
    rows = {row["choice"]: row for row in choice_rows(result, SPACE)}
    assert rows["fc1"]["best"] == result.best.config["fc1"] == "8.mse"
    assert rows["fc1"]["options tried"] == "2 of 2" and rows["fc1"]["importance"] is None


def test_export_writes_what_compress_reads(begun, tmp_path):
    _, result = load_search(str(begun))
    export_best(str(begun), tmp_path / "best.toml")
    written = load_toml(tmp_path / "best.toml")
    assert written == export(ToyConfig(), result.best.config)
    header = (tmp_path / "best.toml").read_text().splitlines()[0]
    assert header.startswith(f"# Trial {result.best.number} of study toy: accuracy ")
    other = result.measured[0]
    export_best(str(begun), tmp_path / "other.toml", trial=other.number)
    assert load_toml(tmp_path / "other.toml")["layers"]["fc0"]["weight"] == other.config["fc0"]


def test_toml_is_read_back(tmp_path):
    settings = {
        "text": 'a "quoted" \\ text',
        "number": 0.5,
        "truth": True,
        "list": ["a", 2],
        "none": None,
        "layers": {"a.b": {"weight": "mxint:width=4"}, "c": {"data_in": "8.auto"}},
        "more": {"x": {"y": 1}, "z": 2},
    }
    (tmp_path / "x.toml").write_text(toml(settings))
    assert load_toml(tmp_path / "x.toml") == {k: v for k, v in settings.items() if v is not None}


def test_mistakes_are_named(begun, tmp_path):
    with pytest.raises(UnavailableError, match="there is no search in"):
        show_search(str(tmp_path / "nowhere.db"))
    with pytest.raises(ConfigError, match="did you mean 'toy'"):
        show_search(str(begun), "toyy")
    with pytest.raises(ConfigError, match="trial 99"):
        export_best(str(begun), tmp_path / "x.toml", trial=99)
    prepare(ToyConfig(out=begun, name="other")).run(until=1, progress=False)
    with pytest.raises(ConfigError, match="several studies, name one: other, toy"):
        show_search(str(begun))
    with pytest.raises(ConfigError, match="was begun by a program"):
        resume_search(str(begun), "other")
    wrong = {"workers": 0, "sampler": "tpee", "pruner": "ascha", "storage": "redis://x"}
    for name, value in wrong.items():
        with pytest.raises(ConfigError, match=name):
            ToyConfig(**{name: value})


def test_the_commands(begun, tmp_path):
    def chop(*arguments):
        run = CliRunner().invoke(app, ["search", *map(str, arguments)], catch_exceptions=False)
        assert run.exit_code == 0
        return run.output

    jobs = ("nas", "precision", "sensitivity")
    for command in (*jobs, "resume", "show", "export", "worker"):
        assert command in chop("--help")
        assert "Example" in chop(command, "--help")
    assert "choices of the best" in chop("show", begun)
    chop("resume", begun, "--trials", "7")
    assert load_search(str(begun))[1].counts["measured"] == 7
    chop("export", begun, tmp_path / "best.toml")
    assert load_toml(tmp_path / "best.toml")["formats"] == []
