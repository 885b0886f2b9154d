import json
import socket
import sys
import threading
import time
import types
import urllib.request

import optuna
import pytest
from typer.testing import CliRunner

from chop.cli.app import app
from chop.errors import ConfigError, UnavailableError
from chop.search import Choice, Constraint, Goal, Search, SearchSpace, optuna_view
from chop.search.optuna_view import export_study, serve_dashboard
from tests.connections import optuna_storage

SPACE = SearchSpace(tuple(Choice(f"c{i}", {"1": 1, "2": 2, "3": 3}) for i in range(2)))


def make(out, name="toy"):
    def measure(config, report):
        values = SPACE.values(config)
        report(0, float(values["c0"]))
        return {"score": float(values["c0"] * values["c1"]), "size": float(values["c1"])}

    goals = (Goal("score"), Constraint("size", 2))
    return Search(SPACE, measure, goals, sampler="grid", out=out, name=name)


def by_params(trials):
    return {(t.params["c0"], t.params["c1"]): t.value for t in trials}


def expected(result):
    return {(t.config["c0"], t.config["c1"]): t.values["score"] for t in result.measured}


@pytest.fixture
def begun(tmp_path):
    return make(tmp_path / "out").run(until=5, progress=False)


@pytest.mark.long
def test_an_exported_study_is_an_ordinary_one(begun, tmp_path):
    assert export_study(str(tmp_path / "out"), tmp_path / "a b%.db") == 5
    with optuna_storage(tmp_path / "a b%.db") as storage:
        study = optuna.load_study(study_name="toy", storage=storage)
        assert by_params(study.trials) == expected(begun)
        assert study.best_value == begun.best.values["score"]  # its constraints are Optuna's too
        assert study.trials[0].user_attrs["values"] == dict(begun.trials[0].values)
        assert study.direction == optuna.study.StudyDirection.MAXIMIZE
        assert study.trials[0].intermediate_values == {0: 1.0}


def test_an_export_replaces_nothing(begun, tmp_path):
    before = (tmp_path / "out" / "search.db").read_bytes()
    with pytest.raises(ConfigError, match="already exists"):
        export_study(str(tmp_path / "out"), tmp_path / "out" / "search.db")
    assert (tmp_path / "out" / "search.db").read_bytes() == before
    with pytest.raises(UnavailableError, match="no search found in"):
        export_study(str(tmp_path / "nowhere"), tmp_path / "x.db")
    assert not (tmp_path / "x.db").exists()


def test_the_command_exports_by_the_name_of_the_file(begun, tmp_path):
    arguments = ["search", "export", str(tmp_path / "out"), str(tmp_path / "x.db")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    with optuna_storage(tmp_path / "x.db") as storage:
        assert optuna.get_all_study_names(storage) == ["toy"]
    refused = CliRunner().invoke(app, [*arguments[:3], str(tmp_path / "y.db"), "--trial", "1"])
    assert isinstance(refused.exception, ConfigError) and not (tmp_path / "y.db").exists()


def test_the_dashboard_sees_what_happens_meanwhile(begun, tmp_path, monkeypatch, capsys):
    """A server of ours, which looks at what it is given to serve."""
    monkeypatch.setattr(optuna_view, "FOLLOW_SECONDS", 0.05)
    seen = {}

    def run_server(storage, host, port):
        seen["at"] = (host, port)
        study = optuna.load_study(study_name="toy", storage=storage)
        seen["first"] = by_params(study.trials)
        seen["expected"] = expected(make(tmp_path / "out").run(until=8, progress=False))
        make(tmp_path / "out", "later").run(until=2, progress=False)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and len(optuna.get_all_study_names(storage)) < 2:
            time.sleep(0.05)
        later = optuna.load_study(study_name="later", storage=storage)
        while time.monotonic() < deadline and (
            len(later.trials) < 2 or by_params(study.trials) != seen["expected"]
        ):
            time.sleep(0.05)
        seen["then"] = by_params(study.trials)
        seen["later"] = len(later.trials)

    stub = types.SimpleNamespace(run_server=run_server)
    monkeypatch.setitem(sys.modules, "optuna_dashboard", stub)
    serve_dashboard(str(tmp_path / "out"), port=1234)
    assert seen["at"] == ("127.0.0.1", 1234) and "http://127.0.0.1:1234" in capsys.readouterr().out
    assert seen["first"] == expected(begun)
    assert seen["then"] == seen["expected"] and len(seen["then"]) == 8 and seen["later"] == 2


def test_a_dashboard_that_is_not_installed_is_one_sentence(begun, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna_dashboard", None)
    with pytest.raises(UnavailableError, match=r"pip install .*\[dashboard\]'"):
        serve_dashboard(str(tmp_path / "out"))


def test_the_real_dashboard(begun, tmp_path):
    pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is not installed")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UnavailableError, match="in use; choose another port with --port"):
            serve_dashboard(str(tmp_path / "out"), port=port)
    served = threading.Thread(
        target=serve_dashboard, args=(str(tmp_path / "out"), "toy", "127.0.0.1", port), daemon=True
    )
    served.start()

    def get(path):
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                    return json.load(answer)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    (study,) = get("/api/studies")["study_summaries"]
    assert study["study_name"] == "toy"
    trials = get(f"/api/studies/{study['study_id']}?after=0")["trials"]
    found = sorted(trial["values"][0] for trial in trials)
    assert found == sorted(expected(begun).values())
