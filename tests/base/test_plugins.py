"""Registries of names that other packages extend, by entry points and by imports."""

import re
import subprocess
import sys
from importlib import metadata

import pytest
from typer.testing import CliRunner

from chop.base import plugins
from chop.base.plugins import (
    GROUPS,
    REGISTRIES,
    PluginError,
    Registry,
    clear_entry_points,
    find_registry,
)
from chop.base.plugins import files as plugin_files
from chop.cli.app import app
from chop.cli.settings_file import read_settings
from chop.errors import CheckpointError, ConfigError, options_in_messages
from chop.formats import REGISTRY, formats, get_format, parse_format
from chop.search.registry import SAMPLERS, SamplerRow, sampler_row
from chop.workloads.settings import WorkloadConfig

FORMAT = """
    from dataclasses import dataclass
    from typing import ClassVar
    from chop.formats import Integer

    @dataclass(frozen=True)
    class Plain(Integer):
        name: ClassVar[str] = "plain"
        aliases: ClassVar[tuple[str, ...]] = ()
"""


def test_a_name_is_known_before_its_package_is_imported(install):
    install("mypkg", "0.3", FORMAT, {"formats": {"plain": "mypkg:Plain"}})
    assert "plain" in REGISTRY and "plain" in list(REGISTRY) and "mypkg" not in sys.modules
    assert parse_format({"name": "plain", "width": 4, "frac_width": 1}).width == 4
    assert REGISTRY.package("plain") == "mypkg 0.3" and REGISTRY.package("integer") is None
    assert plugins.plugins_in_use()["mypkg"] == "0.3"
    assert get_format("plain") in formats()


def test_a_package_that_fails_stops_only_those_who_need_it(install):
    install("broken", "1.0", "import nothing_of_this_name", {"formats": {"odd": "broken:Odd"}})
    with pytest.raises(PluginError, match=r"'odd' of broken 1.0 cannot be imported \(ModuleNot"):
        get_format("odd")
    assert get_format("integer").name == "integer"
    with pytest.warns(UserWarning, match="broken 1.0 cannot be imported"):
        assert "odd" not in [kind.name for kind in formats()]


def test_a_package_with_a_name_of_chop(install):
    install("mypkg", "0.3", "def hill(space, seed): ...", {"samplers": {"tpe": "mypkg:hill"}})
    with pytest.raises(ConfigError, match=r"'tpe' is defined twice, by mypkg 0.3 and by chop"):
        sampler_row("tpe")
    assert sampler_row("random")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("group", "name", "source", "message"),
    [
        (
            "formats",
            "plain",
            "Plain = 3",
            "expected a subclass of NumberFormat, got 3",
        ),
        ("formats", "other", FORMAT.replace("Plain", "Odd"), "declare it as 'plain'"),
        ("samplers", "climb", "Odd = 3", "a SamplerRow, or a function or class"),
        ("samplers", "climb", "", "cannot be imported"),
    ],
)
def test_an_entry_point_of_another_kind(group, name, source, message, install):
    install(
        "mypkg", "0.3", source, {group: {name: "mypkg:Odd" if "Odd" in source else "mypkg:Plain"}}
    )
    registry = REGISTRY if group == "formats" else SAMPLERS
    with pytest.raises(PluginError, match=message):
        registry[name]


def test_rows_may_be_sampler_rows_or_what_makes_samplers(install):
    source = """
        from chop.search.registry import SamplerRow

        class Climb:
            def __init__(self, space, seed): ...

        ROW = SamplerRow(Climb, max_goals=1)
    """
    install("mypkg", "0.3", source, {"samplers": {"row": "mypkg:ROW", "make": "mypkg:Climb"}})
    assert SAMPLERS["row"].max_goals == 1
    assert isinstance(SAMPLERS["make"], SamplerRow)


def test_a_program_adds_rows_and_may_define_them_again():
    registry = Registry("samplers")
    for _ in range(2):  # as in a notebook, whose cell is run twice

        def climb(space, seed):
            return None

        registry["climb"] = climb
    with pytest.raises(ConfigError, match="'climb' is defined twice, by tests"):
        registry["climb"] = test_a_program_adds_rows_and_may_define_them_again
    del registry["climb"]
    assert "climb" not in registry and len(registry) == 0


@pytest.mark.long
def test_no_metadata_is_read_by_an_import():
    code = (
        "import importlib.metadata as m, chop, chop.formats, chop.passes, chop.train; "
        "from chop.base import plugins; print(plugins.entry_points.cache_info().currsize)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def test_a_format_of_a_module_is_not_to_be_installed():
    remedy = r"import it in Python, or pass --import mymodule\.?$"
    with pytest.raises(PluginError, match=f"from the module mymodule, .* {remedy}") as refused:
        parse_format({"name": "plain", "package": "mymodule", "width": 4})
    with options_in_messages(False):
        assert re.search(remedy, str(refused.value))
    with pytest.raises(PluginError, match="from the package mypkg 0.3, .*: pip install mypkg"):
        parse_format({"name": "plain", "package": "mypkg 0.3", "width": 4})


def test_an_alias_of_a_format_of_a_package(install):
    source = FORMAT.replace("aliases: ClassVar[tuple[str, ...]] = ()", 'aliases = ("smooth",)')
    install("mypkg", "0.3", source, {"formats": {"plain": "mypkg:Plain"}})
    assert get_format("smooth").name == "plain"


def test_the_first_of_two_installations_counts(install, tmp_path):
    (tmp_path / "older").mkdir()
    install("mypkg", "0.2", FORMAT, {"formats": {"plain": "mypkg:Plain"}})
    (tmp_path / "mypkg").rename(tmp_path / "older" / "site")
    sys.path.append(str(tmp_path / "older" / "site"))
    try:
        install("mypkg", "0.3", FORMAT, {"formats": {"plain": "mypkg:Plain"}})
        assert get_format("plain") and REGISTRY.package("plain") == "mypkg 0.3"
    finally:
        sys.path.remove(str(tmp_path / "older" / "site"))


def test_a_clash_stops_only_those_who_use_the_name(install):
    for package in ("onepkg", "twopkg"):
        install(package, "1", FORMAT, {"formats": {"plain": f"{package}:Plain"}})
    install("mypkg", "0.3", FORMAT, {"formats": {"mxint": "mypkg:Plain"}})
    with pytest.warns(UserWarning, match="'plain' is defined twice, by twopkg 1 and by onepkg 1"):
        assert "mxint" in [kind.name for kind in formats()]
    for name in ("plain", "mxint"):
        with pytest.raises(ConfigError, match=f"'{name}' is defined twice"):
            get_format(name)


def test_a_package_that_asks_for_rows_while_it_is_imported(install, recwarn):
    source = """
from chop.search.registry import SAMPLERS, SamplerRow
KNOWN = list(SAMPLERS.values())
ROW = SamplerRow(lambda space, seed: None)
"""
    install("mypkg", "0.3", source, {"samplers": {"odd": "mypkg:ROW"}})
    assert sampler_row("odd").make(None, 0) is None and not recwarn.list


def test_a_package_that_ends_python(install):
    install("mypkg", "0.3", "raise SystemExit(3)", {"samplers": {"odd": "mypkg:ROW"}})
    with pytest.raises(PluginError, match="'odd' of mypkg 0.3 cannot be imported .SystemExit: 3"):
        sampler_row("odd")


def test_packages_of_one_namespace(monkeypatch):
    places = {"acme-formats": "acme.formats:Plain", "acme-passes": "acme.passes.odd:run"}
    entries = [metadata.EntryPoint("x", place, "chop.formats") for place in places.values()]
    dists = [type("D", (), {"name": name, "version": "1"}) for name in places]
    for entry, dist in zip(entries, dists, strict=True):
        vars(entry).update(dist=dist)
    monkeypatch.setattr(plugins.packages, "_all_entry_points", lambda: entries)
    for module, package in {
        "acme.formats.deep": "acme-formats",
        "acme.passes.odd": "acme-passes",
        "acme": "acme-formats",
    }.items():
        assert plugins.get_package(type("Thing", (), {"__module__": module})) == f"{package} 1"


def test_the_cell_of_a_notebook_runs_twice(install):
    def row(factory):
        def make(space, seed):
            return factory

        return SamplerRow(make, max_goals=1)

    for k in range(2):
        SAMPLERS["odd"] = row(k)
    assert SAMPLERS["odd"].make(None, 0) == 1
    with pytest.raises(ConfigError, match="'odd' is defined twice"):
        SAMPLERS["odd"] = SamplerRow(make_other)


def make_other(space, seed):
    return None


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("command", "group", "noun"),
    [
        (["search", "precision"], "samplers", "sampler"),
        (["export"], "targets", "export target"),
        (["compress"], "tasks", "task"),
        (["lower"], "formats", "number format"),
    ],
)
def test_help_names_what_packages_add(command, group, noun, install):
    install("mypkg", "0.3", "raise OSError", {group: {"odd-name": "mypkg:ROW"}})
    for option in ("--help", "--help-all"):
        page = CliRunner().invoke(app, [*command, option])
        assert f"From other packages: {noun} odd-name (mypkg 0.3)" in page.output, page.output


def test_every_group_has_a_registry_of_its_kind():
    assert REGISTRIES.keys() == GROUPS.keys()
    assert [find_registry(group).group for group in GROUPS] == list(GROUPS)


def test_packages_on_the_path_twice_are_one(install, monkeypatch):
    install("mypkg", "0.3", FORMAT, {"formats": {"plain": "mypkg:Plain"}})
    packages = list(metadata.distributions())
    monkeypatch.setattr(metadata, "distributions", lambda: packages * 2)
    clear_entry_points()
    assert get_format("plain").name == "plain"


OPERATOR = """
    import torch
    from torch import nn
    from chop.ir.ops import Operator
    from chop.nn.quantized import QuantizedOperator

    class Scaled(nn.Module):
        def __init__(self, features):
            super().__init__()
            self.weight = nn.Parameter(torch.full((features,), 0.3))

        def forward(self, input):
            return input * self.weight

    class QuantScaled(QuantizedOperator, Scaled):
        operands = ("data_in", "weight")

        def forward(self, input):
            return self.quantize("data_in", input) * self.quantize("weight", self.weight)

    ROW = Operator("scaled", "module", (Scaled,), quantized=QuantScaled)
"""


def test_an_operator_of_a_package(install, tmp_path, monkeypatch):
    import torch

    from chop import MaseGraph, passes
    from chop.ir.ops import OPS, get_class_row, unregister

    install("mypkg", "0.3", OPERATOR, {"operators": {"scaled": "mypkg:ROW"}})
    import mypkg

    try:
        assert get_class_row(mypkg.Scaled).name == "scaled" and OPS.package("scaled") == "mypkg 0.3"
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), mypkg.Scaled(4)).eval()
        x = torch.randn(2, 4)
        mg = MaseGraph(model, dummy_in={"input": x})
        config = {"by": "type", "scaled": {"config": {"name": "mxint", "weight_width": 8}}}
        quantized, info = passes.quantize_transform_pass(mg, config)
        assert info == {"quantized": 1}
        packed, _ = passes.pack_transform_pass(quantized, {"silent": True})
        for name, graph in {"float": mg, "quantized": quantized, "packed": packed}.items():
            graph.export(tmp_path / name)
            read = MaseGraph.from_checkpoint(tmp_path / name)
            assert torch.equal(read.model(x), graph.model(x)), name
        missing = "operator '.*Scaled' is from the package mypkg 0.3, .*: pip install mypkg"
        unregister("scaled")
        monkeypatch.setattr(plugins.registry, "entry_points", lambda group: {})
        monkeypatch.setattr(plugin_files, "_installed_version", lambda name: None)
        for name in ("float", "quantized", "packed"):
            with pytest.raises(CheckpointError, match=missing):
                MaseGraph.from_checkpoint(tmp_path / name)
    finally:
        if "scaled" in OPS:
            unregister("scaled")


COMPONENT = """
    from torch import nn
    from chop.hardware.design.plan import Component

    class IntegerOdd(nn.Module):
        pass

    ROW = Component(IntegerOdd, "chop_odd", lambda site: None)
"""


def test_a_circuit_of_a_package(install):
    from chop.hardware.design.components import COMPONENTS, get_component

    install("mypkg", "0.3", COMPONENT, {"components": {"IntegerOdd": "mypkg:ROW"}})
    import mypkg

    assert get_component(mypkg.IntegerOdd) is mypkg.ROW
    assert get_component(type("IntegerOdd", (), {})) is None
    assert get_component(int) is None
    del COMPONENTS["IntegerOdd"]


TASK = """
    import torch.nn.functional as F
    from chop.train import Metric, Task

    def mean(found, labels):
        return (found - labels).abs().float().mean().item()

    def best(answers, labels):
        return answers.argmax(-1)

    DISTANCE = Metric("class_distance", mean, best, higher_is_better=False)
    FURTHER = {"worst_distance": Metric("worst_distance", mean, best, higher_is_better=False)}
    ORDINAL = Task("ordinal", DISTANCE, F.cross_entropy, is_categorical=True, metrics=FURTHER)
"""


def test_metrics_of_a_task_of_a_package(install):
    import torch

    from chop.problems.mixed_precision.goals import directions
    from chop.train import TASKS, evaluate
    from chop.train.tasks import check_metric_name

    install("mypkg", "0.3", TASK, {"tasks": {"ordinal": "mypkg:ORDINAL"}})
    for name in ("class_distance", "worst_distance"):
        check_metric_name(name)
        assert directions()[name] == "minimize"
    rows = (torch.eye(3), torch.tensor([0, 1, 0]))
    with torch.no_grad():
        assert evaluate(torch.nn.Identity(), rows, task="ordinal") == pytest.approx(2 / 3)
    del TASKS["ordinal"]


@pytest.mark.parametrize("value", ["3", "true", "{a = 1}", "[3]"])
def test_imports_of_a_settings_file_are_a_list_of_modules(value, tmp_path):
    (tmp_path / "c.toml").write_text(f"import = {value}\n")
    with pytest.raises(ConfigError, match="c.toml: import: expected a list of modules, got "):
        read_settings(tmp_path / "c.toml", {}, WorkloadConfig)


PASS = """
    from chop.passes import graph_pass
    from chop.passes.base import NoConfig

    @graph_pass(config=NoConfig)
    def count_nodes_analysis_pass(mg, config):
        return {"nodes": len(mg.nodes)}
"""


def test_a_pass_of_a_package_is_an_attribute_of_passes(install):
    from chop import passes

    points = {"passes": {"count_nodes_analysis_pass": "mypkg:count_nodes_analysis_pass"}}
    install("mypkg", "0.3", PASS, points)
    assert "count_nodes_analysis_pass" in dir(passes) and "mypkg" not in sys.modules
    from chop.passes import count_nodes_analysis_pass

    assert count_nodes_analysis_pass is passes.PASSES["count_nodes_analysis_pass"]
    assert not hasattr(passes, "count_edges_analysis_pass")
    del passes.PASSES["count_nodes_analysis_pass"]
