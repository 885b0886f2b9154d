import contextlib
import dataclasses
import json
import multiprocessing
import os
import random
import shlex
import shutil
import signal
import sqlite3
import sys
import traceback
import types
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from chop import runs
from chop.actions.search import job as jobs
from chop.actions.search.job import SearchConfig, SearchJob, get_settings, run_search
from chop.actions.search.manage import export_best, resume_search, show_search, work_for
from chop.base.files.documents import dump_toml
from chop.cli.app import app
from chop.config import load_toml
from chop.errors import ConfigError, UnavailableError, WriteError
from chop.report.charts.chart import Axis, Bar, BarChart
from chop.report.report import Report, figure
from chop.runs import read_manifest
from chop.search import Choice, Constraint, Goal, Search, SearchSpace
from chop.search.ledger import Ledger
from chop.search.reading import choice_rows, load_search
from chop.search.result import OUTCOMES
from chop.search.storage import open_engine
from tests.unprivileged import NEEDS_ROOT, as_nobody

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

    goals = (Goal("accuracy"), Constraint("bits", 7))
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


def counted(rows):
    return [BarChart(f"{rows} trials", Axis("trials"), (Bar("measured", (rows,)),))]


class Toy:
    def __init__(self, config):
        self.search = prepare(config)


def report(subject, result):
    counts = {"result.json": lambda path: path.write_text(json.dumps(result.counts))}
    rows = [dict(trial.values) for trial in result.measured]
    draw = {"counts.svg": figure(counted, len(rows))}
    return Report("toy", {}, result, rows, draw, files=counts, result_file="")


def export(config, chosen):
    return {
        "model": config.model,
        "formats": [],
        "layers": {name: {"weight": text} for name, text in chosen.items()},
    }


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    job = SearchJob("toy", ToyConfig, Toy, report, export)
    monkeypatch.setitem(sys.modules, "toy_job", types.SimpleNamespace(JOB=job))
    monkeypatch.setitem(jobs.JOB_MODULES, "toy", "toy_job")
    return job


@pytest.fixture
def begun(toy, tmp_path):
    run_search(toy, ToyConfig(out=tmp_path / "toy"))
    return tmp_path / "toy"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "change",
    [
        "document = json_remove(document, '$.config.fc1')",
        "document = json_set(document, '$.config', json('[]'))",
        "document = json_set(document, '$.told', 'x')",
        "document = json_set(document, '$.values.bits', 'x')",
        "outcome = 'zzz'",
    ],
)
def test_a_row_that_was_altered_is_damage(change, begun):
    with contextlib.closing(sqlite3.connect(begun / "search.db")) as connection:
        connection.execute(f"UPDATE chop_trials SET {change} WHERE number = 3")
        connection.commit()
    with pytest.raises(UnavailableError, match="is damaged.*trial 3 has"):
        show_search(str(begun))


def test_a_killed_job_is_resumed_from_what_its_study_knows(toy, tmp_path):
    config = ToyConfig(out=tmp_path / "toy", kill_at=4, limit=7, seed=5)
    process = multiprocessing.get_context("fork").Process(target=run_search, args=(toy, config))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    noted, result = load_search(str(config.out))
    assert noted["job"].items() >= {"name": "toy", "settings": get_settings(config)}.items()
    assert read_manifest(config.folder).state == "interrupted"
    assert result.counts == {"measured": 3, "running": 1}
    finished = resume_search(str(config.out))
    assert [trial.begun for trial in finished.trials] == [1, 1, 1, 2, 1, 1]
    assert finished.measured[:3] == result.measured
    manifest = read_manifest(config.folder)
    assert (manifest.kind, manifest.state, len(manifest.rows)) == ("search toy", "finished", 6)
    assert manifest.settings["limit"] == 7
    assert json.loads((config.folder / "result.json").read_text()) == finished.counts
    assert resume_search(str(config.out), trials=8, workers=2).counts["measured"] == 8


def test_a_worker_needs_the_storage_alone(begun, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    search = prepare(ToyConfig(out=begun))
    search.store_job("toy", {**get_settings(ToyConfig(out=begun)), "trials": 8})
    result = work_for(str(begun / "search.db"))
    assert len(result.measured) == 8 == len({t.key for t in result.measured})


@pytest.mark.parametrize("is_given", [True, False])
def test_a_worker_saves_models_into_the_folder_that_it_is_given(
    is_given, toy, begun, tmp_path, monkeypatch
):
    folders = []

    def noting(config):
        folders.append(config.folder)
        return Toy(config)

    monkeypatch.setitem(toy.__dict__, "load", noting)
    given = ["--out", str(tmp_path / "shared")] if is_given else []
    run = CliRunner().invoke(app, ["search", "worker", str(begun / "search.db"), *given])
    assert run.exit_code == 0, run.output
    assert folders == [(tmp_path / "shared" if is_given else begun) / "toy"]


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


@pytest.mark.parametrize(
    "source, comment",
    [
        ("mypkg 0.3", "# Formats of other packages: pip install mypkg"),
        ("myfmt", "# Formats of modules: import them, --import myfmt"),
    ],
)
def test_an_exported_file_says_where_its_formats_are_from(
    source, comment, toy, begun, tmp_path, monkeypatch
):
    names = {"formats": {"integer": source, "mxint": "unused 1.0"}}
    monkeypatch.setattr("chop.actions.search.manage.names_in_use", lambda: names)
    export_best(str(begun), tmp_path / "plain.toml")
    assert "Formats of" not in (tmp_path / "plain.toml").read_text()
    texts = {"model": "", "formats": ["integer:width=4,frac_width=2"]}
    job = dataclasses.replace(toy, export=lambda *_: texts)
    monkeypatch.setattr(sys.modules["toy_job"], "JOB", job)
    export_best(str(begun), tmp_path / "best.toml")
    assert (tmp_path / "best.toml").read_text().splitlines()[1] == comment


def test_toml_is_read_back(tmp_path):
    settings = {
        "text": 'a "quoted" \\ text',
        "number": 0.5,
        "truth": True,
        "list": ["a", 2],
        "none": None,
        "layers": {"a.b": {"weight": "mxint:width=4"}, "c": {"data_in": "8.auto"}},
        "more": {"x": {"y": 1}, "z": 2},
        'a "key"\n[evil]': "\x1b[2J \x7f \r\n 🙂 \u2028",
    }
    (tmp_path / "x.toml").write_text(dump_toml(settings))
    assert load_toml(tmp_path / "x.toml") == {k: v for k, v in settings.items() if v is not None}


def test_mistakes_are_named(begun, tmp_path):
    with pytest.raises(UnavailableError, match="no search found in"):
        show_search(str(tmp_path / "nowhere.db"))
    with runs.start("compress", {}, tmp_path / "run"):
        pass
    with pytest.raises(UnavailableError, match="run' is from chop compress: expected the output"):
        show_search(str(tmp_path / "run"))
    with pytest.raises(UnavailableError, match="is no search: expected search.db, or the folder"):
        show_search(str(begun / "toy" / "result.json"))
    with pytest.raises(ConfigError, match="did you mean 'toy'"):
        show_search(str(begun), "toyy")
    with pytest.raises(ConfigError, match="trial 99.*best first: 3, 2, 5, 1, 4, 0"):
        export_best(str(begun), tmp_path / "x.toml", trial=99)
    with pytest.raises(ConfigError, match="6 are measured already.* for 2 more, pass 8"):
        resume_search(str(begun), trials=2)
    prepare(ToyConfig(out=begun, name="other")).run(until=1, progress=False)
    with pytest.raises(ConfigError, match="several studies. Give one as name .--name.: other, toy"):
        show_search(str(begun))
    with pytest.raises(ConfigError, match="was started by a Python program"):
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
    assert "choices of the best trial" in chop("show", begun)
    chop("resume", begun, "--trials", "7", "--figures", "pdf")
    assert (begun / "toy" / "counts.pdf").read_bytes().startswith(b"%PDF")
    assert "<!-- 7 trials -->" in (begun / "toy" / "counts.svg").read_text()
    assert load_search(str(begun))[1].counts["measured"] == 7
    chop("export", begun, tmp_path / "best.toml")
    assert load_toml(tmp_path / "best.toml")["formats"] == []


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_moved", [False, True])
def test_a_copied_or_moved_folder_is_gone_on_with_where_it_is(is_moved, toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_search(toy, ToyConfig(out="runs/toy"))
    (shutil.move if is_moved else shutil.copytree)("runs/toy", "copy")
    before = files_of(tmp_path / "runs")
    result = resume_search("copy", trials=8)
    assert len(result.measured) == 8
    assert json.loads(Path("copy/toy/result.json").read_text()) == result.counts
    assert files_of(tmp_path / "runs") == before
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume_search("../copy/toy", trials=8).counts == result.counts
    export_best("../copy", Path("best.toml"))
    assert [path.name for path in Path().iterdir()] == ["best.toml"]


def test_a_search_with_its_storage_elsewhere_writes_where_it_did(toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_search(toy, ToyConfig(out="out", storage="disk/x.db"))
    shutil.rmtree("out")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    resume_search("../disk/x.db")
    assert (tmp_path / "out" / "toy" / "result.json").is_file()
    shutil.copytree(tmp_path / "disk", tmp_path / "copy")
    resume_search("../copy/x.db")
    assert (tmp_path / "copy" / "toy" / "result.json").is_file()


def test_a_storage_elsewhere_is_named_in_commands(toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = ToyConfig(out=tmp_path / "results", storage="disk/x.db", name="a study")
    run_search(toy, config)
    where = config.where
    assert where == f"{tmp_path}/disk/x.db --name 'a study'"
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    shown = CliRunner().invoke(app, ["search", "show", *shlex.split(where)])
    before = files_of(tmp_path / "results")
    written = CliRunner().invoke(app, ["search", "export", *shlex.split(where), "best.toml"])
    assert shown.exit_code == written.exit_code == 0 and "Wrote trial" in written.output
    assert load_toml("best.toml") and files_of(tmp_path / "results") == before
    assert ToyConfig(storage="memory").where == ""


@NEEDS_ROOT
def test_another_users_search_is_shown_and_exported(toy, open_to_all, capfd):
    begun = open_to_all / "toy"
    run_search(toy, ToyConfig(out=begun))
    (open_to_all / "mine").mkdir()
    (open_to_all / "mine").chmod(0o777)
    before = files_of(begun)
    shown = as_nobody(lambda: show_search(str(begun)))
    assert len(shown.measured) == 6 and "choices of the best trial" in capfd.readouterr().out
    path = open_to_all / "mine" / "best.toml"
    assert as_nobody(lambda: export_best(str(begun), path)) == load_toml(path)
    assert files_of(begun) == before
    refused = as_nobody(lambda: resume_search(str(begun), trials=7))
    assert isinstance(refused, WriteError) and "\n" not in str(refused)


EVIL = "a\x1b]0;x\x07\n[evil]\nmodel = 'x' [red]"


def test_names_in_a_storage_that_others_write(begun, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    noted, result = load_search(str(begun))
    engine = open_engine(noted["url"])
    document = Ledger(engine, "toy").document()
    values = {"accuracy": 2, "bits": 1, EVIL: 1}
    for name in (EVIL, "other"):
        ledger = Ledger(engine, name)
        ledger.begin(document)
        row = ledger.claim("k", {"config": result.best.config}, "me", limit=9)
        noted = {"config": result.best.config, "values": values}
        assert ledger.finish(row, "me", "measured", noted)
    engine.dispose()
    show_search(str(begun), EVIL)
    told = capsys.readouterr().out
    assert told.count("[evil]") == 1 and "[red]" in told
    export_best(str(begun), tmp_path / "best.toml", "other")
    assert load_toml(tmp_path / "best.toml") == export(ToyConfig(), result.best.config)
    header = (tmp_path / "best.toml").read_text().splitlines()[0]
    assert "[evil]" in header and "\x1b" not in told + header
    for name in (None, "toyy", EVIL + "x"):
        with pytest.raises(ConfigError) as error:
            show_search(str(begun), name)
        assert str(error.value).isprintable()
    with pytest.raises(ConfigError, match="name of a study"):
        export_best(str(begun), tmp_path / "x.toml", EVIL)


@pytest.mark.parametrize("name", ["a\nb", "../up", "a/b", "x\x1b[2J"])
def test_names_of_studies_are_checked_before_anything_runs(name):
    with pytest.raises(ConfigError, match="name of a study"):
        ToyConfig(name=name)


SERVER = "postgresql://127.0.0.1:1/d?user=u&password=s3cr3t"


def test_passwords_are_neither_kept_nor_told(toy, tmp_path, monkeypatch):
    config = ToyConfig(out=tmp_path, storage=SERVER)
    assert "s3cr3t" not in json.dumps(get_settings(config))

    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setitem(toy.__dict__, "load", stop)
    with pytest.raises(KeyboardInterrupt) as stopped:
        run_search(toy, config)
    (told,) = stopped.value.__notes__
    assert "'postgresql://127.0.0.1:1/d?user=u' --name toy" in told
    assert "s3cr3t" not in "".join(traceback.format_exception(stopped.value))


def test_a_token_of_any_length_is_no_name_of_a_file():
    url = f"postgresql://u:{'s3cr3t' * 300}@127.0.0.1:1/d"
    with pytest.raises(UnavailableError, match="cannot be used") as error:
        show_search(url)
    assert "s3cr3t" not in "".join(traceback.format_exception(error.value))
    with pytest.raises(ConfigError, match="File name too long"):
        show_search("x" * 300)


def test_a_folder_in_out_means_a_study(begun, tmp_path, monkeypatch):
    (begun / "later").mkdir()
    monkeypatch.chdir(begun / "toy")
    for where in (begun / "toy", ".", begun / "toy/", "../toy"):
        assert len(show_search(str(where)).measured) == 6
    for where in (begun / "later", begun / "never"):
        with pytest.raises(ConfigError, match=f"study '{where.name}'"):
            show_search(str(where))
    with pytest.raises(UnavailableError, match="no search found in"):
        show_search(str(begun / "toy" / "search.db"))


@pytest.mark.parametrize("count", [0, 6])
def test_what_is_kept_is_true(count, toy, tmp_path, monkeypatch):
    config = ToyConfig(out=tmp_path / "a b")
    if count:
        run_search(toy, config)
    monkeypatch.setitem(toy.__dict__, "write", None)
    monkeypatch.setitem(
        toy.__dict__, "load", lambda config: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt) as stopped:
        run_search(toy, config)
    (told,) = stopped.value.__notes__
    assert told.startswith("finished trials are saved" if count else "no trial was finished")
    assert (f"resume '{tmp_path}/a b/toy'" in told) is bool(count)


def test_a_worker_takes_its_storage_from_the_environment(begun, monkeypatch):
    search = prepare(ToyConfig(out=begun))
    search.store_job("toy", {**get_settings(ToyConfig(out=begun)), "trials": 7})
    run = CliRunner().invoke(app, ["search", "worker"], env={"CHOP_STORAGE": str(begun)})
    assert run.exit_code == 0, run.output
    assert load_search(str(begun))[1].counts["measured"] == 7


def test_a_home_folder_and_a_working_directory_that_changes(toy, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    run_search(toy, ToyConfig(out="~/runs"))
    assert (tmp_path / "runs" / "toy" / "result.json").is_file()
    assert len(load_search("~/runs/toy")[1].measured) == 6
    monkeypatch.chdir(tmp_path)

    def measure(config, report):
        monkeypatch.chdir("/")
        return {"x": 1.0}

    def save(config, folder):
        (folder / "model").write_text("saved")

    Search(SPACE, measure, Goal("x"), out="own", save=save).run(until=1, progress=False)
    assert len(list((tmp_path / "own").rglob("model"))) == 1


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.sampled(3)
def test_a_storage_with_changed_bytes_is_read_or_one_sentence(seed, begun):
    draw = random.Random(seed)
    file = begun / "search.db"
    content = bytearray(file.read_bytes())
    used = [i for i, byte in enumerate(content) if byte and i > 100]
    for place in draw.sample(used, 40):
        content[place] = draw.randrange(256)
    file.write_bytes(content)
    try:
        _, result = load_search(str(begun))
    except (UnavailableError, ConfigError) as error:
        assert "\n" not in str(error) and "are safe" not in str(error)
    else:
        assert set(result.counts) <= set(OUTCOMES)
