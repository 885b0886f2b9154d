"""Modules that add rows as they are imported: other processes import them as well."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from chop.actions.search.manage import resume_search
from chop.actions.shard import run as shard_run
from chop.base.plugins import (
    Extensions,
    PluginError,
    import_modules,
    import_options,
    import_plugin,
    imported_modules,
)
from chop.base.plugins.registry import Registry
from chop.base.trust import trust_code, trust_named
from chop.cli.settings_file import read_settings
from chop.errors import ConfigError
from chop.formats import REGISTRY
from chop.workloads.settings import WorkloadConfig
from tests.test_plugin_package import ROOT, run

SOURCE = (ROOT / "examples/plugin/src/mypkg/formats.py").read_text()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Name of a module with a number format, in the current folder."""
    name = "module_with_a_format"
    (tmp_path / f"{name}.py").write_text(SOURCE.replace("int_group", "own_group"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("chop.base.plugins.modules._modules", {})
    monkeypatch.setattr("chop.base.plugins.registry._registries", {REGISTRY})
    yield name
    sys.modules.pop(name, None)
    REGISTRY.pop("own_group", None)


def test_modules_that_add_rows_are_told_to_other_processes(module, monkeypatch):
    import_plugin(module)
    assert imported_modules() == (module,) and import_options() == f" --import {module}"
    monkeypatch.setattr("chop.base.plugins.modules._modules", {})
    assert imported_modules() == (module,)  # an ordinary import, of which only the row tells
    del REGISTRY["own_group"]
    assert imported_modules() == ()


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("mymod.py", ": pass mymod."),
        ("./sub/mymod.py", ": pass sub.mymod."),
        ("one,two.three", ": pass one and two.three, each by itself."),
        (".mymod", "'.mymod'."),
        ("../mymod", "'../mymod'."),
        ("/tmp/mymod.py", "'/tmp/mymod.py'."),
        ("", "got ''."),
    ],
)
def test_files_and_lists_are_no_names_of_modules(text, advice, tmp_path):
    expected = f"expected a module of the current folder .*{re.escape(advice)}$"
    with pytest.raises(PluginError, match=f"^--import: {expected}"):
        import_plugin(text)
    (tmp_path / "c.toml").write_text(f"import = ['{text}']\n")
    with pytest.raises(PluginError, match=f"c.toml: import: {expected}"):
        read_settings(tmp_path / "c.toml", {}, WorkloadConfig)


def test_a_row_that_is_no_class_is_of_the_module_that_adds_it(module, monkeypatch):
    registry = Registry("components")
    code = compile("registry['x'] = (1, 2)\nregistry.update(y=3)", "m.py", "exec")
    exec(code, {"__name__": "json", "registry": registry})
    assert imported_modules() == ("json",)


def test_what_no_process_can_import_is_left_out(module):
    registry = Registry("components")
    for name in ("__main__", "no_such_module", "shadowed"):
        exec("registry[__name__] = 1", {"__name__": name, "registry": registry})
    assert imported_modules() == ()


def test_a_process_of_a_sharded_run_imports_them(module, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(shard_run, "run_here", lambda *given: seen.append("own_group" in REGISTRY))
    monkeypatch.setattr(shard_run.ShardedModel, "of", lambda config: None)
    monkeypatch.setattr(shard_run.ShardingPlan, "read", lambda path: None)
    monkeypatch.setenv("RANK", "1")
    Path("settings.json").write_text("{}")
    Path("modules.json").write_text(json.dumps([module]))
    assert shard_run.run_from(tmp_path) == 0 and seen == [True]


def test_a_module_that_is_gone_is_one_sentence(module):
    with pytest.raises(ConfigError, match="--import no_such: the module cannot be imported"):
        import_modules(["no_such"])


def test_a_file_may_name_modules_only_where_it_is_trusted(module):
    record = Extensions((module,))
    with (
        trust_named({}),
        pytest.raises(ConfigError, match=f"you trust it, chop x --import {module} "),
    ):
        record.load("search.db", "chop x")
    assert module not in sys.modules
    with trust_code():
        record.load("search.db", "chop x")
    assert "own_group" in REGISTRY
    with trust_named({}):
        record.load("search.db", "chop x")  # the command line has imported it


def test_a_resumed_search_names_the_command_line(module, monkeypatch, tmp_path):
    job = {"name": "precision", "settings": {}, "extensions": {"modules": [module]}}
    noted = {"name": "s", "url": f"sqlite:///{tmp_path}/search.db", "job": job}
    loaded = noted, SimpleNamespace(measured=[])
    monkeypatch.setattr("chop.actions.search.manage.load_search", lambda *given: loaded)
    command = rf"chop search resume 'my search' --name s --trials 9 --import {module} "
    with trust_named({}), pytest.raises(ConfigError, match=command):
        resume_search("my search", name="s", trials=9)


@pytest.mark.long
def test_shard_and_search_with_a_module(module, tmp_path):
    formats = "own_group:width=4,own_group:width=8"
    given = ["--import", module, "--model", "mlp", "--formats", formats]
    compress = ["compress", *given, "--qat-epochs", 0, "--out", "c"]
    search = ["search", "precision", *given, "--goals", "accuracy", "--workers", 2, "--trials", 3]
    shard = ["shard", "c", "--import", module, "--plan", "rows", "--run", "--out", "s"]
    for command in (compress, shard, [*search, "--out", "found"]):
        done = run("-m", "chop", *command, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    advice = "chop search export found/precision best.toml --trust-code && chop compress"
    assert f"{advice} --import {module} --config best.toml" in " ".join(done.stdout.split())
    resume = ["-m", "chop", "search", "resume", "found", "--trials", 4]
    refused = " ".join(run(*resume, folder=tmp_path).stderr.split())
    assert f"chop search resume found --trials 4 --import {module}" in refused
    done = run(*resume, "--import", module, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    export = ["search", "export", "found", "best.toml", "--import", module]
    done = run("-m", "chop", *export, folder=tmp_path)
    assert f"chop compress --import {module} --config best.toml" in " ".join(done.stdout.split())
    assert f'import = ["{module}"]' in (tmp_path / "best.toml").read_text()
