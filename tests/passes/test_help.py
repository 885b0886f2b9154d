"""The help of every pass is what it takes and gives back."""

import dataclasses
import importlib
import inspect
import pickle
import re
import shutil
import typing
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.base.docstrings import entries, split_section
from chop.errors import ConfigError
from chop.ir.graph import Provenance
from chop.passes import module as module_passes
from chop.passes.base import PASSES, NoConfig, graph_pass
from chop.passes.documentation import pass_docstring, settings_lines, type_text
from tests.subcases import subcases

OURS = {name: run for name, run in PASSES.items() if run.__module__.startswith("chop.")}
ON_MODULES = {
    name: run
    for name, run in vars(module_passes).items()
    if name.endswith("_pass") and run.__module__.startswith("chop.passes.module.")
}
FORMATS = {"name": "integer", "width": 8, "frac_width": 4}
QUANTIZE = {"by": "type", "linear": {"config": FORMATS}}


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.inner = nn.LayerNorm(4)
        self.first = nn.Linear(4, 8)
        self.act = nn.ReLU()
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.last(self.act(self.first(self.inner(x))))


@cache
def _graph():
    torch.manual_seed(0)
    mg = MaseGraph(Convolution().eval(), dummy_in={"x": torch.randn(3, 1, 6, 6)})
    return passes.add_common_metadata_analysis_pass(mg)[0]


def graph():
    return _graph().copy()


@cache
def _all_quantized():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    mg = MaseGraph(layers.eval(), dummy_in={"input": torch.randn(3, 4)})
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    return passes.quantize_transform_pass(mg, {**QUANTIZE, "relu": {"config": FORMATS}})[0]


def all_quantized():
    """A graph whose operators are all quantized."""
    return _all_quantized().copy()


def after(*names, **settings):
    """A graph that went through some passes."""

    def make():
        mg = graph()
        for name in names:
            mg, _ = PASSES[name](mg, settings.get(name))
        return mg

    return make


BATCHES = [{"x": torch.randn(4, 1, 6, 6)} for _ in range(2)]
quantized = after("quantize_transform_pass", quantize_transform_pass=QUANTIZE)
adapted = after("insert_lora_adapter_transform_pass")
described = after("add_hardware_metadata_analysis_pass", "add_software_metadata_analysis_pass")
PROJECT = {"project_dir": "project"}


def emitted():
    """A graph whose circuit was written into the working folder."""
    for name in OURS:
        if name.startswith("emit_"):
            PASSES[name](all_quantized(), PROJECT)
    return all_quantized()


RUNS: dict[str, list[tuple[Any, Any]]] = {
    **{name: [(graph, None)] for name in OURS if name.endswith("_analysis_pass")},
    "add_natural_sparsity_metadata_analysis_pass": [(graph, {"dummy_in": BATCHES[0]})],
    "hook_inspection_analysis_pass": [(graph, {"quiet": True})],
    "profile_statistics_analysis_pass": [
        (graph, {"target_weight_nodes": ["linear"], "weight_statistics": {"range_min_max": {}}})
    ],
    "report_sparsity_analysis_pass": [(graph, {"batches": BATCHES})],
    "verify_hardware_metadata_analysis_pass": [(described, None)],
    "verify_software_metadata_analysis_pass": [(described, None)],
    "verify_metadata_analysis_pass": [(described, None)],
    "export_interface_pass": [(graph, {"to": "onnx", "path": "model.onnx"})],
    "export_onnx_interface_pass": [(graph, {"path": "model.onnx"})],
    "awq_transform_pass": [(graph, {"batches": BATCHES, "weight": "mxint:width=4"})],
    "calibrate_transform_pass": [(quantized, {"batches": BATCHES})],
    "conv_bn_fusion_transform_pass": [(graph, None)],
    **{name: [(all_quantized, PROJECT)] for name in OURS if name.startswith("emit_")},
    "run_cosim_analysis_pass": [(emitted, {**PROJECT, "simulator": "icarus"})],
    "freeze_transform_pass": [
        (quantized, None),
        (quantized, {"compile": "aot", "path": "model.pt2"}),
    ],
    "fuse_attention_transform_pass": [(graph, None)],
    "fuse_linear_activation_transform_pass": [(graph, None)],
    "fuse_lora_weights_transform_pass": [(adapted, None)],
    "fuse_rms_norm_transform_pass": [(graph, None)],
    "gptq_transform_pass": [(quantized, {"batches": BATCHES})],
    "insert_lora_adapter_transform_pass": [(graph, None)],
    "learned_rounding_transform_pass": [(quantized, {"batches": BATCHES, "steps": 2})],
    "lower_to_integer_transform_pass": [
        (
            all_quantized,
            {"batches": [{"input": torch.randn(3, 4), "labels": torch.zeros(3).long()}]},
        )
    ],
    "pack_transform_pass": [(quantized, {"silent": True})],
    "prune_transform_pass": [
        (graph, {"weight": {"sparsity": 0.5}, "activation": {"sparsity": 0.5}}),
        (graph, {"weight": {"sparsity": 0.5, "granularity": "channel"}}),
    ],
    "prune_detach_hook_transform_pass": [(graph, None)],
    "quantize_transform_pass": [(graph, QUANTIZE)],
    "raise_granularity_transform_pass": [(graph, None)],
    "rotate_transform_pass": [(graph, {"merge": False})],
    "resharding_transform_pass": [(graph, {"plan": "megatron"})],
    "autosharding_analysis_pass": [(graph, {"mesh": 2, "compare": False})],
    "share_scales_transform_pass": [(quantized, None)],
    "smoothquant_transform_pass": [(graph, {"batches": BATCHES})],
}
"""For each pass graphs and settings whose runs together show every key of its `info`."""


def described_keys(run):
    """The keys of `info` that the help lists, as patterns: words in capitals stand for any text."""
    text = split_section(run.__doc__, "Returns")[1]
    return [re.sub("[A-Z]{2,}", ".+", key) for key in re.findall(r"^ {8}(\w+): \S", text, re.M)]


def config_of(function):
    """The type of the settings, as the function inside a pass has it."""
    return typing.get_type_hints(inspect.unwrap(function))["config"]


def get_fields(config):
    return [f for f in dataclasses.fields(config) if f.metadata.get("is_setting", True)]


def test_every_pass_is_run_below():
    """Fails for a new pass until it has a row in `RUNS`."""
    assert set(RUNS) == set(OURS)


@pytest.mark.parametrize("name", sorted(RUNS))
@pytest.mark.sampled(3)
def test_info_has_the_keys_that_the_help_lists(name, tmp_path, monkeypatch, recwarn):
    monkeypatch.chdir(tmp_path)
    if name.startswith("export_"):
        pytest.importorskip("onnxscript")
    if name == "run_cosim_analysis_pass" and shutil.which("iverilog") is None:
        pytest.skip("needs iverilog")
    patterns = described_keys(PASSES[name])
    found = set()
    for make, settings in RUNS[name]:
        found |= set(PASSES[name](make(), settings)[1])
    undescribed = [k for k in found if not any(re.fullmatch(p, k) for p in patterns)]
    missing = [p for p in patterns if not any(re.fullmatch(p, k) for k in found)]
    assert (undescribed, missing) == ([], [])
    assert ("    the graph and `info`: nothing." in PASSES[name].__doc__) == (not patterns)


@subcases("name", sorted(OURS))
def test_signature_and_types_are_those_of_the_call(name):
    run = OURS[name]
    signature = inspect.signature(run)
    assert list(signature.parameters) == ["mg", "pass_args", "graph", "inplace"]
    assert signature.return_annotation == tuple[MaseGraph, dict[str, Any]]
    assert signature.parameters["mg"].default is None
    assert signature.parameters["inplace"].default is False
    hints = {"mg": MaseGraph | None, "pass_args": Any, "graph": MaseGraph | None, "inplace": bool}
    assert typing.get_type_hints(run) == {**hints, "return": tuple[MaseGraph, dict[str, Any]]}
    assert (run.__name__, run.__qualname__) == (name, name)
    assert getattr(importlib.import_module(run.__module__), name) is run
    assert pickle.loads(pickle.dumps(run)) is run
    assert f"def {name}(" in inspect.getsource(inspect.unwrap(run))


@subcases("name", sorted(OURS))
def test_settings_that_a_pass_does_not_have_are_refused(name):
    mg = quantized() if RUNS[name][0][0] is quantized else graph()
    with pytest.raises(ConfigError, match="no_such_key"):
        OURS[name](mg, {"no_such_key": 1})


@subcases("name", sorted(OURS))
def test_the_help_has_every_setting_with_type_and_default(name):
    run = OURS[name]
    config = config_of(run)
    hints, texts = typing.get_type_hints(config), entries(config)
    arguments = " ".join(split_section(run.__doc__, "Args")[1].split())
    for f in get_fields(config):
        given = f.default if f.default is not dataclasses.MISSING else None
        if f.default_factory is not dataclasses.MISSING:
            given = f.default_factory()
        is_required = f.default is dataclasses.MISSING is f.default_factory
        default = "required" if is_required else f"default {given!r}"
        line = f"{f.name} ({type_text(hints[f.name])}, {default}): {texts[f.name]}"
        assert line in arguments
    assert ("no settings" in arguments) == (not get_fields(config))


@pytest.mark.parametrize("name", sorted(ON_MODULES))
def test_the_help_of_passes_on_modules(name, capsys):
    run = ON_MODULES[name]
    module = Convolution()
    settings = {"quantize_module_transform_pass": QUANTIZE}.get(name)
    _, info = run(module, settings)
    capsys.readouterr()
    assert sorted(info) == sorted(described_keys(run))
    help(run)
    shown = capsys.readouterr().out
    assert f"{name}(" in shown and "tuple[" in shown.partition("\n\n")[2]
    assert "'" not in shown.splitlines()[2]  # no annotation is a string
    expected = {"report_trainable_parameters_analysis_pass": "depth (int | None, default 3): max"}
    assert expected.get(name, "pass_args:") in shown
    assert pickle.loads(pickle.dumps(run)) is run


def test_help_shows_nested_settings_and_leaves_out_what_users_do_not_set(capsys):
    help(passes.prune_transform_pass)
    shown = capsys.readouterr().out
    assert "        weight (WeightPruning | None, default None): see `WeightPruning`." in shown
    assert "            sparsity (float | Mapping[str, float] | None, default None): share" in shown
    help(passes.quantize_transform_pass)
    shown = capsys.readouterr().out
    assert "by (Literal['type', 'name', 'regex_name'], default 'type'): kind" in shown
    assert "flat mapping of `by`, `default` and rules" in shown
    assert "where (" not in shown
    assert "        quantized: number of nodes." in shown


@dataclass(frozen=True)
class OwnConfig:
    """Settings.

    Attributes:
        rate: a share,
            0 to 1.
        names: which.
    """

    rate: float
    names: list[str] = field(default_factory=list)
    undescribed: int = 3
    inner: str = field(default="", metadata={"is_setting": False})


def test_the_text_of_a_users_pass():
    def function(mg, config):
        """Does it.

        More on it.

        Returns:
            count: how
                many.

        Raises:
            GraphError: never.
        """

    text = pass_docstring(function, OwnConfig, {"mg": "the graph.", "pass_args": ""}, "the graph")
    assert (
        text
        == """\
Does it.

More on it.

Args:
    mg: the graph.
    pass_args: settings by name:
        rate (float, required): a share, 0 to 1.
        names (list[str], default []): which.
        undescribed (int, default 3):
Returns:
    the graph and `info`, by key:
        count: how many.

Raises:
    GraphError: never.
"""
    )


def test_free_text_on_what_is_returned_is_kept():
    def function(mg, config):
        """Does it.

        Returns: `{"count": how
            many}`.
        """

    text = pass_docstring(function, NoConfig, {"mg": "the graph."}, "the graph")
    assert text.endswith("""Returns:
    the graph and `info`: `{"count": how many}`.
""")
    function.__doc__ = None
    assert pass_docstring(function, NoConfig, {}, "it") == "Args:\nReturns:\n    it and `info`.\n"


def test_passes_without_words_or_types_work_too():
    @dataclass(frozen=True)
    class Local:
        rate: "NowhereKnown" = 1  # noqa: F821

    def settings(mapping):
        return Local()

    try:
        for number, config in enumerate((settings, lambda mapping: mapping)):

            def function(mg, config):
                return {"config": config}

            function.__name__ = f"unnamed_{number}_analysis_pass"
            run = graph_pass(config=config)(function)
            assert "no settings" in run.__doc__
            mg, info = run(graph(), {})
            assert isinstance(mg.provenance[-1], Provenance) and "config" in info
        assert list(settings_lines(Local, 0)) == ["rate (NowhereKnown, default 1):"]
    finally:
        for name in [name for name in PASSES if name.startswith("unnamed_")]:
            del PASSES[name]
