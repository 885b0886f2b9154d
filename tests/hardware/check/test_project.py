"""Projects that others wrote: names and sizes are looked at, and code that is run is announced."""

import json
import warnings
from dataclasses import asdict, replace

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.actions.emit.simulate import simulate
from chop.errors import CheckpointError, VerificationError
from chop.hardware.check import project as projects
from chop.hardware.check import verify
from chop.hardware.check.project import DESIGN, ForeignCodeWarning, PortCodes, read_project
from chop.hardware.check.verify import simulate_project
from tests.hardware import tiny

CODES = {
    port.name: PortCodes(port.name, 1.0, -1, 1, 1, (size,), tuple(range(size)))
    for port in tiny.PORTS
    for size in [port.lanes * port.beats]
}


def write(folder, change=lambda document: None):
    document = json.loads(json.dumps(asdict(replace(tiny.PROJECT, codes=CODES))))
    change(document)
    (folder / DESIGN).write_text(json.dumps(document))
    (folder / "vectors").mkdir(exist_ok=True)
    for port in tiny.PORTS:
        (folder / "vectors" / f"{port.name}.hex").write_text("0\n" * port.beats)
    return folder


FIFO = {"name": "f", "source": "joined", "target": "probe", "depth": 3}
HOSTILE = {
    "command": lambda d: d.update(top="top; exec -- touch ran"),
    "wrapper": lambda d: d.update(wrapper="top; exec -- touch ran"),
    "option": lambda d: d.update(top="-f"),
    "lines": lambda d: d.update(top="top\nendmodule"),
    "path": lambda d: d["ports"][0].update(name="../../x"),
    "text": lambda d: d["streams"][0].__setitem__(0, 'joined; initial $system("x");'),
    "wide": lambda d: d["ports"][0].update(width=10**9),
    "no_beats": lambda d: d["ports"][0].update(beats=0),
    "negative": lambda d: d["streams"][0].__setitem__(1, -5),
    "endless": lambda d: d.update(interval=10**18),
    "fifo": lambda d: d.update(fifos=[FIFO | {"source": 'x; initial $system("x");'}]),
    "no_depth": lambda d: d.update(fifos=[FIFO | {"depth": 0}]),
    "no_ports": lambda d: d.update(ports=[]),
    "no_codes": lambda d: d["codes"].pop("a"),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_names_and_sizes_that_no_design_has_are_refused(change, tmp_path):
    assert read_project(write(tmp_path, lambda d: d.update(fifos=[FIFO]))).top == "top"
    with pytest.raises(CheckpointError, match=r"design.json' cannot be read: "):
        read_project(write(tmp_path, change))


def test_a_missing_module_names_the_pass_that_writes_it(tmp_path, monkeypatch):
    message = "%Error: rtl/top.sv:45:3: Cannot find file containing module: 'chop_skid'"
    monkeypatch.setattr(verify, "source_messages", lambda *args: [("verilator", message)])
    folder = with_source(write(tmp_path))
    with pytest.raises(VerificationError, match="'chop_skid'; emit_internal_rtl_transform_pass"):
        verify.check_sources(folder, read_project(folder))


@pytest.mark.parametrize(
    "run",
    [
        lambda folder: simulate_project(folder, "verilator"),
        lambda folder: simulate(project_dir=folder, skip_build=True, skip_test=True),
        lambda folder: simulate(project_dir=folder, skip_build=True),
    ],
    ids=("simulate_project", "simulate", "simulate_all"),
)
def test_code_of_others_is_announced_before_it_is_run(run, tmp_path, monkeypatch):
    monkeypatch.setattr("chop.hardware.check.verify.run_check", lambda *args: args)
    monkeypatch.setattr("chop.hardware.check.verify.asdict", lambda row: row)
    with pytest.warns(ForeignCodeWarning, match="is compiled and runs with your permissions"):
        run(with_source(write(tmp_path)))
    own = tmp_path / "own"
    own.mkdir()
    source = with_source(write(own)) / "rtl" / "top.sv"
    monkeypatch.setattr(projects, "_written", {projects._mark("rtl/top.sv", source.read_bytes())})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(own)


def with_source(folder, name="top.sv"):
    (folder / "rtl").mkdir(exist_ok=True)
    (folder / "rtl" / name).write_text("module top; endmodule\n")
    return folder


PASSES = ("emit_verilog_top_transform_pass", "emit_internal_rtl_transform_pass")


@pytest.fixture
def small_integers():
    mg = MaseGraph(nn.Sequential(nn.Linear(4, 2)), dummy_in={"input": torch.randn(3, 4)})
    fixed = {"config": {"name": "integer", "width": 4, "frac_width": 2}}
    return passes.quantize_transform_pass(mg, {"by": "type", "linear": fixed})[0]


def emit_by(names, mg, folder):
    for name in names:
        getattr(passes, f"emit_{name}_transform_pass")(mg, {"project_dir": folder})


OTHERS = {
    "memories": (("bram",), "top.sv"),
    "vectors": (("cocotb",), "top.sv"),
    "modules": (("internal_rtl",), "top.sv"),
    "top": (("verilog_top",), "chop_relu.sv"),
    "one more": (("verilog_top", "internal_rtl", "bram", "cocotb"), "more.sv"),
    "changed": (("verilog_top", "internal_rtl"), "top.sv"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("names", "foreign"), OTHERS.values(), ids=OTHERS)
def test_a_source_of_others_is_announced_beside_files_of_ours(
    names, foreign, small_integers, tmp_path
):
    emit_by(names, small_integers, tmp_path)
    with_source(tmp_path, foreign)
    with pytest.warns(ForeignCodeWarning, match=f"rtl/{foreign}': this process did not write"):
        projects.warn_if_foreign(tmp_path)


@pytest.mark.parametrize("where", ["in place", "moved", "linked"])
def test_what_this_process_wrote_is_not_of_others(where, small_integers, tmp_path):
    project = tmp_path / "project"
    emit_by(("verilog_top", "internal_rtl", "bram", "cocotb"), small_integers, project)
    if where == "moved":
        project = project.rename(tmp_path / "elsewhere")
    if where == "linked":
        (tmp_path / "link").symlink_to(project)
        project = tmp_path / "link"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        projects.warn_if_foreign(project)


def test_a_source_that_cannot_be_read_is_one_sentence(tmp_path):
    (with_source(tmp_path) / "rtl" / "gone.sv").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"a source of .* cannot be read: .*gone\.sv"):
        projects.warn_if_foreign(tmp_path)


@pytest.mark.parametrize("first", PASSES)
def test_the_sources_are_found_where_mase_has_them(first, small_integers, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (first, *PASSES):
        getattr(passes, name)(small_integers, {})
    project = tmp_path / ".mase" / "top"
    found = sorted(path.name for path in (project / "hardware" / "rtl").glob("*.sv"))
    assert "top.sv" in found and len(found) > 1
    assert found == sorted(path.name for path in (project / "rtl").glob("*.sv"))
    moved = project.rename(tmp_path / "elsewhere")
    assert (moved / "hardware" / "rtl" / "top.sv").read_text().startswith("//")


@pytest.mark.parametrize("what", ["a folder", "a link"])
def test_sources_of_another_program_stay_with_a_warning(what, small_integers, tmp_path):
    other = tmp_path / "hardware" / "rtl"
    other.parent.mkdir()
    (other.mkdir if what == "a folder" else lambda: other.symlink_to(tmp_path / "gone"))()
    with pytest.warns(UserWarning, match="does not link to the project's sources"):
        passes.emit_verilog_top_transform_pass(small_integers, {"project_dir": tmp_path})
    assert (tmp_path / "rtl" / "top.sv").exists() and other.is_symlink() is (what == "a link")
