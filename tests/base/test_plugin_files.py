"""Files, runs and `chop doctor` name the packages that extensions are from."""

import pytest

from chop.base import plugins
from chop.base.plugins import GROUPS, PluginError
from chop.base.plugins import files as plugin_files
from chop.errors import ConfigError
from chop.formats import parse_format
from chop.search.registry import SAMPLERS, sampler_row
from tests.base.test_plugins import FORMAT


def test_files_with_a_name_alone_say_which_package_it_is_of(install, monkeypatch):
    install("mypkg", "0.3", "def climb(space, seed): ...", {"samplers": {"climb": "mypkg:climb"}})
    assert sampler_row("climb") and plugins.names_in_use()["samplers"]["climb"] == "mypkg 0.3"
    record = {"samplers": {"climb": "mypkg 0.3"}}
    with plugin_files.naming_packages(record, "study 'a'"):  # nothing is missing
        sampler_row("climb")
    del SAMPLERS["climb"]
    monkeypatch.setattr(plugins.registry, "entry_points", lambda group: {})
    monkeypatch.setattr(plugin_files, "entry_points", lambda group: {})
    for version, message in (
        (None, "mypkg 0.3, which is not installed: pip install mypkg"),
        ("0.2", r"mypkg 0.3, and mypkg 0.2 is installed .*: pip install 'mypkg==0.3'"),
    ):
        monkeypatch.setattr(
            plugin_files, "_installed_version", lambda name, version=version: version
        )
        expected = f"^study 'a': the sampler 'climb' is from the package {message}"
        with (
            pytest.raises(PluginError, match=expected),
            plugin_files.naming_packages(record, "study 'a'"),
        ):
            sampler_row("climb")
    for other in (None, {}, [3], {"samplers": 3}, {"samplers": {"climb": 3}}, {"x": record}):
        with pytest.raises(ConfigError, match="choose"), plugin_files.naming_packages(other, "a"):
            sampler_row("climb")
    with pytest.raises(ConfigError, match="^lr: 3$"), plugin_files.naming_packages(record, "a"):
        raise ConfigError("lr: 3")


def test_a_format_of_another_version(install):
    install("mypkg", "0.4", FORMAT, {"formats": {"plain": "mypkg:Plain"}})
    stored = {"name": "plain", "package": "mypkg 0.3", "width": 4, "frac_width": 1}
    with pytest.warns(UserWarning, match="'plain' may differ: the file was made with mypkg 0.3"):
        assert parse_format(stored).width == 4
    message = (
        "key 'depth'.*made with mypkg 0.3, and mypkg 0.4 is installed: pip install 'mypkg==0.3'"
    )
    with pytest.raises(PluginError, match=message):
        parse_format({**stored, "depth": 3})
    renamed = {**stored, "name": "even"}
    message = (
        "'even' is from the package mypkg 0.3, and mypkg 0.4 is installed and has none of that"
    )
    with pytest.raises(PluginError, match=message):
        parse_format(renamed)
    same = {**stored, "package": "mypkg 0.4"}
    assert parse_format(same).width == 4  # a warning would be an error


def test_a_failed_run_tells_its_plugins(install, tmp_path):
    from chop.runs import read_manifest, start

    install("mypkg", "0.3", "def climb(space, seed): ...", {"samplers": {"climb": "mypkg:climb"}})
    with pytest.raises(ValueError, match="bad"), start("emit", {}, tmp_path / "run"):
        sampler_row("climb")
        raise ValueError("bad")
    found = read_manifest(tmp_path / "run")
    assert found.state == "failed" and found.environment["plugins"]["mypkg"] == "0.3"
    assert found.plugin_names["samplers"]["climb"] == "mypkg 0.3"


def test_doctor_lists_every_group(install):
    from chop.actions.doctor import _optional_parts, _plugins

    points = {group: {f"odd-{group}": "mypkg:ROW"} for group in GROUPS}
    install("mypkg", "0.3", "ROW = None", points)
    found = {finding.what: finding for finding in _plugins()}
    assert found.keys() == {f"{noun} odd-{group}" for group, noun in GROUPS.items()}
    assert all("got None of mypkg 0.3" in finding.detail for finding in found.values())
    assert _optional_parts()["gguf"] == "chop export --to gguf"


def test_doctor_names_what_a_package_has_declared_wrongly(install):
    from chop.actions.doctor import OK, WRONG, _plugins

    source = """
        from dataclasses import replace
        from chop.export.targets import TARGETS
        from chop.train import TASKS
        from chop.hardware.design.components import COMPONENTS
        TARGET, TASK, CIRCUIT = TARGETS["pt2"], TASKS["regression"], COMPONENTS["Table"]
        def climb(space, seed): ...
    """
    points = {
        "targets": {"other": "mypkg:TARGET"},
        "tasks": {"other": "mypkg:TASK"},
        "components": {"Other": "mypkg:CIRCUIT"},
        "passes": {"other": "mypkg:climb"},
        "samplers": {"tpe": "mypkg:climb", "climb": "mypkg:climb"},
        "format": {"plain": "mypkg:climb"},
    }
    install("mypkg", "0.3", source, points)
    found = {finding.what: (finding.state, finding.detail) for finding in _plugins()}
    assert found.pop("sampler climb") == (OK, "mypkg 0.3")
    assert {state for state, _ in found.values()} == {WRONG}
    assert "declare it as 'pt2'" in found["export target other"][1]
    assert "declare it as 'regression'" in found["task other"][1]
    assert "declare it as 'Table'" in found["circuit component Other"][1]
    assert "declare it as 'climb'" in found["pass other"][1]
    assert "by mypkg 0.3 and by chop" in found["sampler tpe"][1]
    assert "mypkg 0.3: did you mean 'chop.formats'?" in found["group chop.format"][1]
