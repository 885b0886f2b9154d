"""The job that emits a circuit: its result, its page and its folder."""

import json
import math
import multiprocessing
import re
import shutil
from functools import partial

import pytest
import torch
from torch import nn

from chop import runs
from chop.actions.emit.job import emit
from chop.actions.emit.lower import accuracy_sentence
from chop.actions.emit.page import build_tiles, dataflow_chart, utilization_chart
from chop.actions.emit.report import _blocks, _placed_sentence, _sentence, _warnings
from chop.actions.emit.settings import EmitConfig
from chop.actions.emit.timing import circuit_timing
from chop.base.files.locks import LOCK_FILE
from chop.base.files.temporary import temporary_beside
from chop.errors import ConfigError, UnavailableError, VerificationError
from chop.hardware.costs.synth import synthesize
from chop.hardware.design.emit import emit as emit_design
from chop.ir.graph import MaseGraph
from chop.report.document import read_document
from chop.report.report import Note
from chop.workloads.workload import Workload
from tests.actions.emit.circuits import SETTINGS, workload
from tests.networks import Made

pytestmark = pytest.mark.tools("verilator", "iverilog", "yosys")
PLACED = {"frequency_mhz": 147.06, "device": "ecp5-85", "samples_per_second": 9191250}


def test_a_circuit_equals_the_model_on_every_output(emitted):
    out, result = emitted
    assert result["pytorch"] == {"outputs": 36, "different": 0, "largest": 0.0, "operators": []}
    assert "RTL = PyTorch, bit for bit: 36 outputs of 12 samples" in (out / "report.md").read_text()
    kinds = [row["kind"] for row in result["components"]]
    assert kinds == ["IntegerLinear", "Requantize", "IntegerReLU", "IntegerLinear"]
    assert json.loads((out / "result.json").read_text())["interval"] == result["interval"]
    assert "<svg" in (out / "dataflow.svg").read_text()


def test_the_report_says_how_an_output_code_becomes_a_class(emitted):
    report = " ".join((emitted[0] / "report.md").read_text().split())
    assert "The value of an output is its code times the value of a code." in report
    assert "an output element for each class, and the largest value is its answer." in report
    top = (emitted[0] / "rtl/top.sv").read_text()
    assert "// Hold rst_ni low for four cycles." in top and "beat p // lanes." in top


@pytest.mark.parametrize(("seeds", "has_median"), [(1, False), (2, False), (3, True)])
def test_a_median_is_that_of_several_seeds(seeds, has_median):
    rows = [{"seed": seed, "mhz": 147.06} for seed in range(1, seeds + 1)]
    placed = {**PLACED, "speed_grade": "6", "seeds": rows, "tools": {"yosys": "0.23"}}
    sentence = _placed_sentence({**placed, "critical_path": {}})
    assert ("median over seeds" in sentence) == has_median
    assert ("the lower of two seeds (147.1, 147.1 MHz)" in sentence) == (seeds == 2)
    assert "147.1 MHz after routing on ecp5-85, speed grade 6, " in sentence


def test_the_page_has_the_verdict_the_numbers_and_the_dataflow(emitted):
    out, result = emitted
    page = read_document(out)
    assert page.verdict.startswith("RTL = PyTorch, bit for bit: 36 outputs") and not page.warnings
    tiles = {tile.label: tile.value for tile in page.tiles}
    assert tiles["equal outputs"] == 4 * 36 + 2 * 6
    assert tiles["interval (cycles)"] == result["verification"][0]["interval"]
    assert tiles["multipliers"] == sum(row["multipliers"] for row in result["components"]) > 0
    assert "clock after routing" not in tiles
    bars, chart = page.charts
    cycles = {bar.label: bar.parts for bar in bars.bars}
    assert cycles == {row["component"]: (row["cycles"],) for row in result["components"]}
    assert list(bars.limits.values()) == [result["interval"]]
    readers = {node.path[0]: [chart.nodes[k].path[0] for k in node.reads] for node in chart.nodes}
    assert [node.lines[:2] for node in chart.nodes if node.lines[0].startswith("instance")] == [
        (f"instance u_{row['component']}", row["module"]) for row in result["components"]
    ]
    host, fifo = "x_to_s8f5", "first_in_0_buffer"
    assert (readers[host], readers[fifo], readers["first"]) == ([], [host], [fifo])
    assert chart.nodes[-1].kind == "output" and len(chart.nodes[-1].reads) == 1


def test_the_report_and_the_source_tell_what_each_port_takes(emitted):
    out, _ = emitted
    ports = json.loads(read(out, "design.json"))
    report, top = read(out, "report.md"), read(out, "rtl/top.sv")
    comments = " ".join(re.findall(r"^ *// (.*)$", top, re.MULTILINE))
    assert max(map(len, top.split(");")[0].splitlines())) <= 100
    for port in ports["ports"]:
        codes = ports["codes"][port["name"]]
        step = f"2^{math.log2(codes['step']):.0f}"
        row = next(x for x in report.splitlines() if x.startswith(f"| {port['name']} | "))
        assert row.split(" | ")[3:6] == [str(port[key]) for key in ("lanes", "width", "beats")]
        assert f" | {step} | " in row and row.endswith("from the first element to the last |")
        (said,) = re.findall(rf"put {port['name']}: .*?last\.", comments)
        assert f"{port['lanes']} lane of {port['width']} bits" in said
        assert f"{port['beats']} beats a sample" in said and f"Value of a code: {step}." in said


def test_latency_is_told_in_cycles_and_in_microseconds(emitted):
    out, result = emitted
    first, timing = result["verification"][0], result["timing"]
    # Samples follow one another at the interval, and nothing stalls.
    assert first["latency"] + 11 * result["interval"] == first["cycles"]
    assert timing["latency_us"] == first["latency"] / 100 and not timing["is_placed"]
    line = f"| latency, first beat in to last beat out | {first['latency']} | "
    assert line in read(out, "report.md")
    assert "100 MHz (assumed)" in read(out, "report.md")
    tile = next(tile for tile in read_document(out).tiles if tile.label == "latency")
    assert tile.value == pytest.approx(first["latency"] / 100)
    assert abs(timing["planned_latency_cycles"] - first["latency"]) <= 0.05 * first["latency"]
    stalled = {row["profile"]: row["latency"] for row in result["verification"][1:4]}
    assert timing["stalled_latency_cycles"] == stalled and min(stalled.values()) >= first["latency"]
    report = read(out, "report.md")
    assert f"| latency, stalls: slow reader | {stalled['slow_reader']} | " in report
    assert stalled["bursts"] == first["latency"] and "latency, stalls: bursts" not in report

    placed = circuit_timing(
        emit_design(MaseGraph.from_checkpoint(out / "model"), 12), [first], PLACED, 1
    )
    assert placed["latency_us"] == first["latency"] / 147.06 and placed["is_placed"]


@pytest.mark.parametrize("device, is_other", [("ecp5-25", True), ("xc7a100t", False)])
def test_counts_for_another_family_than_the_device_say_so(device, is_other, emitted):
    result = {**emitted[1], "resources": [{"module": "all", "lut": 3}]}
    result |= {"config": {**result["config"], "device": device}}
    design = emit_design(MaseGraph.from_checkpoint(emitted[0] / "model"), 12)
    texts = [block.text for block in _blocks("points", result, design) if isinstance(block, Note)]
    assert any(f"These numbers are not for {device}." in text for text in texts) == is_other


def test_stalls_without_effect_are_mentioned(emitted):
    result = emitted[1]
    assert not _warnings(result)
    none, uniform, slow, bursts, *icarus = result["verification"]
    rows = [none, uniform, slow, {**bursts, "cycles": none["cycles"]}, *icarus]
    (warning,) = _warnings({**result, "verification": rows})
    assert warning.startswith(
        f"Stalls 'bursts' had no effect in verilator: the simulation took {none['cycles']} cycles"
    )


def test_a_bottleneck_is_marked_only_where_there_is_one(emitted):
    mg = MaseGraph.from_checkpoint(emitted[0] / "model")
    assert not [node for node in read_document(emitted[0]).charts[-1].nodes if node.marks]
    design = emit_design(mg, 12, folds={"first": 24})
    assert [part.plan.cycles for part in design.netlist.instances] == [24, 4, 4, 12]
    assert marked(dataflow_chart(design)) == marked(dataflow_chart(design, simulated=24.0))
    assert marked(dataflow_chart(design)) == ["first"]
    late = dataflow_chart(design, simulated=30.0)
    assert marked(late) == [] and "bottleneck" not in late.marks


def marked(chart):
    return [node.path[0] for node in chart.nodes if "bottleneck" in node.marks]


def test_few_rows_have_no_accuracy(emitted):
    out, result = emitted
    report = read(out, "report.md")
    right = round(12 * result["accuracy"]["integer"])
    assert f"integer {right}. These are too few rows for an accuracy" in report
    assert "95 %" not in report[report.index("Right answers on 12 test rows: float ") :]
    many = {"accuracy": {"float": 0.5}, "accuracy_interval_95": {"float": (0.4, 0.6)}}
    assert accuracy_sentence(many, 100).startswith("Accuracy on 100 test rows: float 50.00%")
    assert accuracy_sentence({"accuracy": {}}, 100) == ""


def test_the_dataflow_tells_how_full_fifos_were(emitted):
    out, result = emitted
    chart = read_document(out).charts[-1]
    depths = {fifo["name"]: fifo["depth"] for fifo in json.loads(read(out, "design.json"))["fifos"]}
    fills = {row["profile"]: row["fills"] for row in result["verification"][:4]}
    fifos = [node for node in chart.nodes if node.kind == "FIFO"]
    assert [node.path[0] for node in fifos] == list(depths) == list(fills["none"])
    for node in fifos:
        name = node.path[0]
        held = [fills[profile][name] for profile in fills]
        assert all(0 < count <= depths[name] for count in held)
        assert node.brief == f"FIFO, held {held[0]} of {depths[name]}"
        assert f"held at most {held[2]}, stalls: slow reader" in node.lines
    assert [row["fills"] for row in result["verification"][4:]] == [{}, {}]  # of Icarus


def test_the_slowest_path_is_marked_where_a_part_of_it_is(emitted):
    mg = MaseGraph.from_checkpoint(emitted[0] / "model")
    design = emit_design(mg, 12, folds={"first": 24})
    path = ["first_in_0_buffer", "first", "act_in_0_buffer", "no_such"]
    chart = dataflow_chart(design, path=path)
    marked = [node.path[0] for node in chart.nodes if "critical path" in node.marks]
    # The skid buffer ahead of the activation is no box: it is where the activation is.
    assert marked == ["first", "act", "first_in_0_buffer"]
    assert chart.marks.keys() == {"bottleneck", "critical path"}


def test_every_output_is_told_by_simulation(emitted):
    out, result = emitted
    table = next(
        b for b in read_document(out).blocks if getattr(b, "title", "").startswith("Equal")
    )
    assert table.columns[1:] == tuple(
        f"{row['simulator']}, {row['profile'].replace('_', ' ')}" for row in result["verification"]
    )
    ports, streams = table.values
    assert ports[0] == "last" and list(ports[1:]) == [
        row["equal"] for row in result["verification"]
    ]
    assert streams[1:] == (len(json.loads(read(out, "design.json"))["streams"]),) * 6


def read(out, name):
    return (out / name).read_text()


def test_the_clock_is_among_the_numbers_of_a_placed_circuit(emitted):
    used = {"MULT18X18D": {"used": 39, "available": 156}, "DCC": {"used": 0, "available": 0}}
    result = {**emitted[1], "placement": {**PLACED, "utilization": used}}
    clock, pace = build_tiles(result)[-2:]
    assert (clock.label, str(clock.value), clock.note) == (
        "clock after routing",
        "147.1 MHz",
        "ecp5-85",
    )
    assert str(pace.value) == "9,191,250"
    result["device"] = [{"resource": "dsp", "estimated": 78, "there": 156}]
    chart = utilization_chart(result)
    shares = {bar.label: bar.parts for bar in chart.bars}
    assert shares == {"dsp, estimated": (0.5,), "MULT18X18D, placed": (0.25,)}


def test_the_manifest_has_every_simulation_and_every_file(emitted):
    out, _ = emitted
    manifest = runs.read_manifest(out)
    assert (manifest.kind, manifest.state) == ("emit", "finished")
    ran = [(row["simulator"], row["profile"], row["samples"]) for row in manifest.rows]
    profiles = ("none", "uniform", "slow_reader", "bursts")
    assert ran == [
        *(("verilator", profile, 12) for profile in profiles),
        *(("icarus", profile, 2) for profile in profiles[:2]),
    ]
    assert all(row["equal"] == 3 * row["samples"] for row in manifest.rows)
    assert all(row["cycles"] > 0 and row["version"] and row["seed"] == 0 for row in manifest.rows)
    first = manifest.rows[0]
    assert abs(first["interval"] - first["planned"]) <= 0.03 * first["planned"]
    files = {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()}
    assert {artifact.path for artifact in manifest.artifacts} == files - {"manifest.json"}
    assert {"rtl/top.sv", "memory/first_weight.hex", "vectors/x.hex", "design.json"} <= files


@pytest.mark.parametrize("error", [VerificationError("planted"), KeyboardInterrupt()], ids=type)
@pytest.mark.long
def test_a_run_that_fails_leaves_what_was_there(error, emitted, tmp_path, monkeypatch):
    def fails(*args):
        raise error

    monkeypatch.setattr("chop.hardware.check.emitted.run_check", fails)
    with pytest.raises(type(error)):
        emit(EmitConfig(out=tmp_path / "new", **SETTINGS), workload())
    assert list(tmp_path.iterdir()) == []
    before = shutil.copytree(emitted[0], tmp_path / "old")
    manifest = (before / "manifest.json").read_bytes()
    with pytest.raises(type(error)):
        emit(EmitConfig(out=before, **SETTINGS), workload())
    assert [p.name for p in tmp_path.iterdir()] == ["old"]
    assert (before / "manifest.json").read_bytes() == manifest


@pytest.mark.long
def test_a_verified_circuit_is_kept_where_yosys_takes_too_long(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("chop.actions.emit.job.synthesize", partial(synthesize, seconds=1e-3))
    settings = {**SETTINGS, "synthesis": True, "samples": 5000, "icarus_samples": 0}
    result = emit(EmitConfig(out=tmp_path / "out", **settings), workload())
    assert result["resources"] == [] and "yosys takes longer" in result["uncounted"]
    (warning,) = read_document(tmp_path / "out").warnings
    assert warning.startswith("yosys takes longer") and "not counted" in warning
    assert len(result["verification"]) == 4
    told = f"samples: there are only {result['samples']} test rows; all are simulated."
    assert result["samples"] < 5000 and told in capsys.readouterr().out


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(
        ConfigError, match=r"has other files \('thesis.tex'\), and chop emit replaces its folder"
    ):
        emit(EmitConfig(out=tmp_path, **SETTINGS), workload())
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_circuit_that_was_built_is_replaced_after_make_clean(copied):
    built = copied / "board" / "build"
    built.mkdir()
    (built / "top.json").write_text("{}")
    message = rf"'board/build/top.json'.* run make -C \S*{copied.name}/board clean, or choose"
    with pytest.raises(ConfigError, match=message):
        emit(EmitConfig(out=copied, **SETTINGS), workload())
    (copied / "notes.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="replaces its folder: choose another folder"):
        emit(EmitConfig(out=copied, **SETTINGS), workload())


def test_models_without_a_circuit_are_refused_before_anything_is_written(tmp_path):
    turned = Made(lambda m, x: m.linear(x.mT).sort(1)[0].flatten(1), linear=nn.Linear(3, 2))
    x, labels = torch.randn(12, 3, 4), torch.arange(12) % 3
    given = Workload.of(turned, (x, labels), (x, labels), device="cpu")
    with pytest.raises(ConfigError, match="no integer form of sort"):
        emit(EmitConfig(out=tmp_path / "out", **SETTINGS), given)
    assert list(tmp_path.iterdir()) == []


def test_tools_that_are_missing_are_named_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="verilator is not installed: apt-get install"):
        emit(EmitConfig(out=tmp_path / "out", **SETTINGS), workload())


def test_files_that_are_put_into_the_folder_while_it_is_emitted_are_kept(
    copied, monkeypatch, capsys
):
    def put(job, config, workload, folder):
        (folder / "report.md").write_text("new")
        (copied / "rtl" / "notes.txt").write_text("years of work")
        (copied / "thesis").mkdir()
        (copied / "thesis" / "a.tex").write_text("years of work")
        return {}

    monkeypatch.setattr("chop.actions.emit.job.run_job", put)
    emit(EmitConfig(out=copied, **SETTINGS), workload())
    files = {path.relative_to(copied).as_posix() for path in copied.rglob("*") if path.is_file()}
    assert files == {"report.md", "rtl/notes.txt", "thesis/a.tex"}
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count("was added while chop emit ran and stays in the folder.") == 2
    with pytest.raises(ConfigError, match="has other files"):
        emit(EmitConfig(out=copied, **SETTINGS), workload())


@pytest.mark.parametrize("moment", ["before", "meanwhile"])
def test_a_lock_in_the_folder_is_nobodys_file(moment, copied, monkeypatch, capsys):
    """As NFS has them, where folders cannot be locked."""

    def put(job, config, workload, folder):
        (copied / LOCK_FILE).touch()
        (folder / "report.md").write_text("new")
        return {}

    if moment == "before":
        (copied / LOCK_FILE).touch()
    monkeypatch.setattr("chop.actions.emit.job.run_job", put)
    emit(EmitConfig(out=copied, **SETTINGS), workload())
    assert [path.name for path in copied.iterdir()] == ["report.md"]
    assert "was added while" not in " ".join(capsys.readouterr().out.split())


def test_a_circuit_whose_successor_was_killed_is_put_back(copied):
    process = multiprocessing.get_context("fork").Process(target=leave_aside, args=(copied,))
    process.start()
    process.join()
    assert not copied.exists()
    assert runs.read_manifest(copied).state == "finished"
    assert (copied / "rtl" / "top.sv").exists()


def leave_aside(out):
    out.rename(temporary_beside(out).with_suffix(".old"))


UNDISTURBED = {"simulator": "verilator", "profile": "none", "cycles": 40}


def test_an_interval_far_from_the_plan_is_said():
    result = {
        "pytorch": {"outputs": 3, "different": 0, "largest": 0.0, "operators": []},
        "samples": 1,
        "accuracy": {},
        "interval": 16,
        "verification": [{"interval": 23.0, **UNDISTURBED}],
    }
    assert "23.0 cycles between samples instead of the planned 16" in _sentence(result)
    result["verification"][0]["interval"] = 16.4
    assert "planned" not in _sentence(result)


def test_the_operator_that_differs_most_from_pytorch_is_named():
    rows = [
        {"name": "norm", "codes": 4290, "different": 499, "largest": 5.0},
        {"name": "gelu", "codes": 3432, "different": 12, "largest": 1.0},
    ]
    compared = {"outputs": 8, "different": 8, "largest": 2.8125, "operators": rows}
    result = {"pytorch": compared, "samples": 4, "accuracy": {}, "interval": 4}
    result["verification"] = [{"interval": 4.0, **UNDISTURBED}]
    expected = "operator 'norm' differs most: 499 of 4,290 codes, by at most 5 steps."
    assert expected in _sentence(result)


@pytest.mark.long
def test_an_unmet_fold_is_a_line_of_the_result_and_of_the_report(tmp_path, emitted):
    assert emitted[1]["unmet_fold"] == {}
    settings = SETTINGS | {"fold": 1, "samples": 2, "icarus_samples": 0}
    result = emit(EmitConfig(**settings, out=tmp_path / "out"), Workload.of(Pooled(), *images()))
    line = "--fold 1 is not met: even in the fastest form 'x' takes 16 cycles, 'pool' takes 16"
    assert result["interval"] == result["unmet_fold"]["nearest"] == 16
    assert line in " ".join((tmp_path / "out/report.md").read_text().split())
    assert any(text.startswith(line) for text in read_document(tmp_path / "out").warnings)


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.pool(x).flatten(1))


def images():
    torch.manual_seed(0)
    rows, labels = torch.randn(60, 1, 4, 4), torch.arange(60) % 3
    return (rows[:40], labels[:40]), (rows[40:], labels[40:])
