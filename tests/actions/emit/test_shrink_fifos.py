"""FIFOs of an emitted circuit that are shrunk to what simulation stored, and verified again."""

import json
import re
import shutil

import pytest
import torch
from torch import nn

from chop import passes, runs
from chop.actions.emit.job import emit
from chop.actions.emit.settings import EmitConfig
from chop.errors import ConfigError, VerificationError
from chop.hardware.check.project import Fifo, Project, describe_project
from chop.hardware.check.verify import Verification, checks
from chop.hardware.design.emit import emit as emit_design
from chop.hardware.folds import shrink
from chop.hardware.folds.shrink import needed_depth, shrunk_depths, verify_shrunk
from chop.ir.graph import MaseGraph
from chop.report.document import read_document
from chop.workloads.workload import Workload

needs_tools = pytest.mark.tools("verilator", "iverilog", "yosys")
SETTINGS = {
    "fold": 32,
    "samples": 10,
    "icarus_samples": 1,
    "synthesis": False,
    "calibration_rows": 40,
    "force": True,  # the models are not trained
    "shrink_fifos": True,
}
RESIDUAL = "add_in_0_buffer"


class Residual(nn.Module):
    """Two paths that meet again; the direct one waits for two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.act, self.second = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(x + self.second(self.act(self.first(x))))


def workload():
    torch.manual_seed(0)
    x, labels = torch.randn(60, 8), torch.arange(60) % 3
    return Workload.of(Residual(), (x[:40], labels[:40]), (x[40:], labels[40:]), device="cpu")


@pytest.fixture(scope="module")
def shrunk(tmp_path_factory):
    """A circuit whose FIFOs were shrunk, and its result; not to be changed."""
    out = tmp_path_factory.mktemp("emit") / "residual"
    return out, emit(EmitConfig(out=out, **SETTINGS), workload())


def depths_of(folder):
    """Of the top module and of `design.json`, which agree."""
    found = json.loads((folder / "design.json").read_text())["fifos"]
    text = (folder / "rtl" / "top.sv").read_text()
    written = re.findall(r"chop_fifo #\([^;]*?\.DEPTH\((\d+)\)[^;]*?\) u_(\w+)", text)
    assert {name: int(depth) for depth, name in written} == {f["name"]: f["depth"] for f in found}
    return {fifo["name"]: fifo["depth"] for fifo in found}


@pytest.mark.long
@needs_tools
def test_fifos_are_as_deep_as_needed_and_the_circuit_as_fast(shrunk):
    out, result = shrunk
    rows = {row["name"]: row for row in result["fifos"]["depths"]}
    plan = describe_project(emit_design(MaseGraph.from_checkpoint(out / "model"), 32)).fifos
    assert [(row["name"], row["planned"]) for row in rows.values()] == [
        (fifo.name, fifo.depth) for fifo in plan
    ]
    assert {name: row["kept"] for name, row in rows.items()} == depths_of(out)
    assert all(row["kept"] == min(row["used"] + 2, row["planned"]) for row in rows.values())
    assert rows[RESIDUAL]["used"] > 8  # a sample, which the first layer takes in as a whole
    assert rows[RESIDUAL]["kept"] < rows[RESIDUAL]["planned"]
    assert all(
        row["saved_bits"] == (row["planned"] - row["kept"]) * row["bits"] for row in rows.values()
    )
    assert result["fifos"]["kept_because"] == ""
    full = result["verification"][0]
    assert full["interval"] == full["planned"] == 32
    for row in result["verification"][:4]:
        assert all(count <= rows[name]["kept"] for name, count in row["fills"].items())
    estimated = {row["resource"]: row for row in result["fifos"]["estimated"]}
    assert estimated["lut"]["kept"] < estimated["lut"]["planned"]
    assert estimated["dsp"]["kept"] == estimated["dsp"]["planned"]


@pytest.mark.long
@needs_tools
def test_the_manifest_has_planned_and_kept_depths_beside_fills(shrunk):
    out, result = shrunk
    manifest = runs.read_manifest(out)
    assert manifest.settings["shrink_fifos"] is True
    by_name = {
        f"{kind}_depths": {row["name"]: row[kind] for row in result["fifos"]["depths"]}
        for kind in ("planned", "kept")
    }
    for row in manifest.rows:
        found = {name: row.get(name) for name in by_name}
        assert found == (by_name if row["simulator"] == "verilator" else dict.fromkeys(by_name))


@pytest.mark.long
@needs_tools
def test_the_page_tells_depths_and_what_they_save(shrunk):
    out, result = shrunk
    page, rows = read_document(out), result["fifos"]["depths"]
    tables = {table.title: table for table in page.blocks if hasattr(table, "title")}
    assert [values[0] for values in tables["Depths of FIFOs, in beats"].values] == [
        row["name"] for row in rows
    ]
    assert "Estimated for 7-series with planned and final depths" in tables
    planned, kept = (sum(row[kind] for row in rows) for kind in ("planned", "kept"))
    bits = sum(row["saved_bits"] for row in rows)
    sentence = f"{len(rows)} FIFOs hold {kept} beats instead of {planned}, which saves {bits} bits"
    assert sentence in (out / "report.md").read_text()
    fifos = [node for node in page.charts[-1].nodes if node.kind == "FIFO"]
    assert [node.brief.split(" of ")[1] for node in fifos] == [str(row["kept"]) for row in rows]


@pytest.mark.long
@needs_tools
def test_checks_of_shrunk_circuits_can_be_repeated_and_depths_are_compared(shrunk, tmp_path):
    out, result = shrunk
    assert emit(EmitConfig(out=out, check_only=True))["verification"] == result["verification"]
    copied = shutil.copytree(out, tmp_path / "copy")
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["settings"]["shrink_fifos"] = False
    (copied / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(
        VerificationError, match="differs from the file that chop .* emits for the model"
    ):
        emit(EmitConfig(out=copied, check_only=True))


def ran(check, interval, fills):
    return Verification(
        "verilator", "5", check.profile.name, 0, 4, 12, 100, 40, interval, 32, fills
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("used", "interval", "reason"),
    [
        (1, 32.0, ""),
        (1, 32.4, ""),
        (1, 33.0, "with smaller ones a sample takes 33.0 cycles, not 32.0"),
        (1, None, "smaller ones fail: 4 samples: timeout"),
        (1000, 32.0, "no FIFO has room to spare"),
        (-1, 32.0, "4 samples are too few to measure their fill levels"),
    ],
)
def test_depths_are_kept_by_what_verification_says(used, interval, reason, tmp_path, monkeypatch):
    mg = MaseGraph(nn.Sequential(nn.Linear(6, 4)), dummy_in={"input": torch.randn(2, 6)})
    design, written = emit_design(quantized(mg), 6), []
    assert all(fifo.parameters["DEPTH"] > 3 for fifo in design.fifos) and design.fifos
    growing = used < 0

    def fills(samples):
        return {fifo.name: samples if growing else used for fifo in design.fifos}

    def run_checks(folder, project, codes, planned):
        return [ran(check, 32.0, fills(check.samples)) for check in planned]

    def verify(folder, project, codes, planned):
        written.append({fifo.name: fifo.depth for fifo in project.fifos})
        if interval is None and written[-1] != own:
            raise VerificationError("4 samples: timeout")
        return [ran(check, interval, fills(check.samples)) for check in planned]

    monkeypatch.setattr(shrink, "run_checks", run_checks)
    monkeypatch.setattr(shrink, "verify", verify)
    own = {fifo.name: fifo.parameters["DEPTH"] for fifo in design.fifos}
    found = verify_shrunk(tmp_path, design, {}, checks(4, 0))
    assert found.reason == reason and len(found.verification) == 4
    depths = {fifo.name: needed_depth(used, own[fifo.name]) for fifo in design.fifos}
    assert {fifo.name: fifo.kept for fifo in found.fifos} == (own if reason else depths)
    assert written == [depths] * (used == 1) + [own] * bool(reason)
    top = tmp_path / "rtl" / "top.sv"
    assert top.exists() == (used == 1)
    assert all(fifo.is_growing == growing for fifo in found.fifos)
    if top.exists():
        assert all(f".DEPTH({depth})" in top.read_text() for depth in written[-1].values())


def quantized(mg):
    from chop import passes

    integer = {"config": {"name": "integer", "width": 8, "frac_width": 5}}
    found, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": integer})
    lowered, _ = passes.lower_to_integer_transform_pass(
        found, {"batches": [{"input": torch.randn(4, 6)}]}
    )
    return lowered


def test_a_fifo_that_stores_more_with_time_keeps_its_depth():
    fifos = tuple(Fifo(name, "a", "b", 90) for name in ("steady", "growing", "full"))
    project = Project("top", (), (), 1, {}, fifos)
    used = {"steady": 10, "growing": 10, "full": 90}
    half = {"steady": 10, "growing": 9, "full": 90}
    assert shrunk_depths(project, used, half) == {"steady": 12, "growing": 90, "full": 90}


@pytest.mark.parametrize("planned", [3, 7, 49, 50, 51, 200])
def test_a_shrunk_fifo_has_a_word_more_than_it_stored(planned):
    for used in range(1, planned + 1):
        depth = needed_depth(used, planned)
        words = depth - (1 if depth < 50 else 2)  # of the memory of chop_fifo
        assert depth <= planned and (words > used or depth == planned)


def test_one_sample_is_refused():
    with pytest.raises(ConfigError, match="shrink_fifos: 1 sample is too few"):
        EmitConfig(samples=1, shrink_fifos=True)
    with pytest.raises(ConfigError, match="simulate 2 or more"):
        shrink.check_samples(1)


def test_a_circuit_without_fifos_is_verified_once(tmp_path, monkeypatch):
    model, x = nn.Sequential(nn.Linear(8, 3)), torch.randn(4, 8)
    config = {"config": {"name": "integer", "width": 8, "frac_width": 5}}
    mg = MaseGraph(model, dummy_in={"input": x})
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": config})
    design = emit_design(quantized, 1)
    simulated = []
    monkeypatch.setattr(shrink, "verify", lambda *given: simulated.append(given) or ["passed"])
    found = verify_shrunk(tmp_path, design, {}, [])
    assert design.fifos == [] and len(simulated) == 1
    assert found.design is design and found.verification == ["passed"] and found.fifos == ()
