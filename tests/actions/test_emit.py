"""The job that emits a circuit, and the checks that can be repeated."""

import hashlib
import json
import math
import multiprocessing
import re
import shutil
import warnings
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from chop import __version__, runs
from chop.actions.emit import _sentence, emit
from chop.actions.emit_page import dataflow_chart, tiles_of, utilization_chart
from chop.actions.emit_timing import timing_of
from chop.actions.lower import accuracy_sentence
from chop.actions.settings.emit import EmitConfig
from chop.actions.simulate import simulate
from chop.errors import CheckpointError, ConfigError, UnavailableError, VerificationError
from chop.files.temporary import temporary_beside
from chop.hardware.emit import emit as emit_design
from chop.hardware.project import ForeignCodeWarning
from chop.hardware.synth import synthesize
from chop.ir.graph import MaseGraph
from chop.report.document import read_document
from chop.workloads.workload import Workload

pytestmark = pytest.mark.tools("verilator", "iverilog", "yosys")
PLACED = {"frequency_mhz": 147.06, "device": "ecp5-85", "samples_per_second": 9191250}
SETTINGS = {
    "fold": 12,
    "samples": 12,
    "icarus_samples": 2,
    "synthesis": False,
    "calibration_rows": 40,
    "force": True,  # the models are not trained
}


class Points(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.act(self.first(x)))


def workload():
    torch.manual_seed(0)
    x, labels = torch.randn(60, 6), torch.arange(60) % 3
    return Workload.of(Points(), (x[:40], labels[:40]), (x[40:], labels[40:]), device="cpu")


@pytest.fixture(scope="module")
def emitted(tmp_path_factory):
    """A verified circuit, and its result; not to be changed."""
    out = tmp_path_factory.mktemp("emit") / "points"
    return out, emit(EmitConfig(out=out, **SETTINGS), workload())


def test_a_circuit_equals_the_model_on_every_output(emitted):
    out, result = emitted
    assert result["pytorch"] == {"outputs": 36, "different": 0, "largest": 0.0}
    assert "RTL = PyTorch, bit for bit: 36 outputs of 12 samples" in (out / "report.md").read_text()
    kinds = [row["kind"] for row in result["components"]]
    assert kinds == ["IntegerLinear", "Requantize", "IntegerReLU", "IntegerLinear"]
    assert json.loads((out / "result.json").read_text())["interval"] == result["interval"]
    assert "<svg" in (out / "dataflow.svg").read_text()


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
    placed = timing_of(emit_design(MaseGraph.from_checkpoint(out / "model"), 12), first, PLACED, 1)
    assert placed["latency_us"] == first["latency"] / 147.06 and placed["is_placed"]


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
    assert f"integer {right}. That is too few rows for an accuracy" in report
    assert "Right answers on 12 test rows: float " in report and "95 %" not in report
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
        assert f"held {held[2]} at most, stalls: slow reader" in node.lines
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
    clock, pace = tiles_of(result)[-2:]
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


def test_checks_can_be_repeated(emitted):
    out, result = emitted
    found = emit(EmitConfig(out=out, check_only=True))
    assert found["verification"] == result["verification"]


def test_what_this_process_emitted_is_simulated_without_a_warning(emitted):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ForeignCodeWarning)
        simulate(project_dir=emitted[0], skip_build=True, skip_test=True)


def swap_words(text):
    """Two different words of a memory, swapped."""
    words = text.split()
    other = next(k for k, word in enumerate(words) if word != words[0])
    words[0], words[other] = words[other], words[0]
    return "\n".join(words) + "\n"


def next_digit(text):
    """The last digit, one higher."""
    digit = format((int(text.strip()[-1], 16) + 1) % 16, "x")
    return text.strip()[:-1] + digit + "\n"


@pytest.fixture
def copied(emitted, tmp_path):
    return shutil.copytree(emitted[0], tmp_path / "copy")


CHANGES = {
    "weight": ("memory/first_weight.hex", swap_words),
    "bias": ("memory/last_bias.hex", next_digit),
    "expected": ("vectors/last.hex", next_digit),
    "source": ("rtl/chop_relu.sv", lambda text: text + "\n"),
    "report": ("report.md", lambda text: text.replace("36", "360")),
}


@pytest.mark.parametrize(("name", "change"), CHANGES.values(), ids=CHANGES)
def test_a_changed_file_fails_the_check(name, change, copied):
    (copied / name).write_text(change((copied / name).read_text()))
    with pytest.raises(VerificationError, match=f"{name}' is not the file of the manifest"):
        emit(EmitConfig(out=copied, check_only=True))


def test_files_that_vanish_or_appear_fail_the_check(copied):
    (copied / "rtl" / "more.sv").write_text("module more; endmodule\n")
    with pytest.raises(VerificationError, match=r"more.sv' is not in the manifest"):
        emit(EmitConfig(out=copied, check_only=True))
    (copied / "rtl" / "more.sv").unlink()
    (copied / "memory" / "first_bias.hex").unlink()
    with pytest.raises(VerificationError, match=r"first_bias.hex' is missing"):
        emit(EmitConfig(out=copied, check_only=True))


def forge(folder, name):
    """The manifest, with the hash of a changed file."""
    manifest = json.loads((folder / "manifest.json").read_text())
    rows = manifest["artifacts"]
    row = next((row for row in rows if row["path"] == name), {"path": name})
    manifest["artifacts"] = [*(each for each in rows if each != row), row]
    content = (folder / name).read_bytes()
    row["sha256"], row["size_bytes"] = hashlib.sha256(content).hexdigest(), len(content)
    (folder / "manifest.json").write_text(json.dumps(manifest))


FOREIGN = {
    "command": ("rtl/chop_relu.sv", lambda text: text + '\ninitial $system("touch {mark}");\n'),
    "hidden": ("rtl/chop_relu.sv", lambda text: f"`ifdef SYNTHESIS\n{HOOK}\n`endif\n{text}"),
    "top": ("rtl/top.sv", lambda text: text.replace("endmodule", f"{HOOK}\nendmodule")),
    "more": ("rtl/more.sv", lambda text: f"module more; {HOOK} endmodule\n"),
    "weight": ("memory/first_weight.hex", lambda text: swap_words(text)),
    "vectors": ("vectors/last.hex", lambda text: next_digit(text)),
    "testbench": ("testbench/testbench.sv", lambda text: HOOK + text),
    "blank": ("design.json", lambda text: text + " "),
    "script": ("design.json", lambda text: text.replace('"top": "top"', '"top": "top; exec -- a"')),
    "path": ("design.json", lambda text: text.replace('"name": "x"', '"name": "../../x"')),
}
HOOK = """initial $c("system(\\"touch ran\\");");"""


@pytest.mark.parametrize(("name", "change"), FOREIGN.values(), ids=FOREIGN)
def test_nothing_is_run_of_a_folder_that_is_not_what_its_model_emits(
    name, change, copied, monkeypatch
):
    def runs_it(*args):
        raise AssertionError("it was run")

    monkeypatch.setattr("chop.hardware.emitted.verify", runs_it)
    text = (copied / name).read_text() if (copied / name).exists() else ""
    (copied / name).write_text(change(text))
    assert (copied / name).read_text() != text
    forge(copied, name)
    said = f"{name}' is not what chop {__version__} emits of the model .*; nothing of the folder"
    with pytest.raises(VerificationError, match=said):
        emit(EmitConfig(out=copied, check_only=True))


def test_what_is_run_is_emitted_again_and_not_read_from_the_folder(copied, monkeypatch):
    ran = []

    def planted(folder, *args):
        ran.append(folder)
        raise VerificationError("planted")

    monkeypatch.setattr("chop.hardware.emitted.verify", planted)
    with pytest.raises(VerificationError, match="planted"):
        emit(EmitConfig(out=copied, check_only=True))
    assert len(ran) == 1 and not ran[0].is_relative_to(copied) and not ran[0].exists()


EMPTY = {
    "everything": lambda name, x: x[:0],
    "inputs": lambda name, x: x[:0] if name.startswith("inputs.") else x,
    "columns": lambda name, x: x[:, :0],
}


@pytest.mark.parametrize("change", EMPTY.values(), ids=EMPTY)
def test_golden_values_without_a_sample_are_refused(change, copied):
    path = copied / "golden.safetensors"
    save_file({k: change(k, x).contiguous() for k, x in load_file(path).items()}, path)
    forge(copied, path.name)
    with pytest.raises(VerificationError, match="the golden values have no sample"):
        emit(EmitConfig(out=copied, check_only=True))


def test_a_folder_of_another_version_or_without_a_fold_is_told_so(copied):
    path = copied / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "version": "0.0.7"}))
    (copied / "rtl" / "top.sv").write_text("module top; endmodule\n")
    forge(copied, "rtl/top.sv")
    with pytest.raises(VerificationError, match=r"\(version 0\.0\.7 wrote it\)"):
        emit(EmitConfig(out=copied, check_only=True))
    manifest["settings"]["fold"] = "; rm -r /"
    path.write_text(json.dumps(manifest))
    with pytest.raises(VerificationError, match="top.sv' is not the file|no number of cycles"):
        emit(EmitConfig(out=copied, check_only=True))


@pytest.mark.parametrize("path", ["/etc/passwd", "../../etc/passwd"])
def test_a_manifest_that_names_files_outside_is_refused(path, copied):
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["artifacts"][0]["path"] = path
    (copied / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(VerificationError, match="is outside"):
        emit(EmitConfig(out=copied, check_only=True))


def test_a_golden_value_whose_hash_was_forged_fails_in_the_graph(copied):
    from safetensors.torch import load_file, save_file

    golden = load_file(copied / "golden.safetensors")
    golden["received.last"][3, 1] += 1
    save_file(golden, copied / "golden.safetensors")
    forge(copied, "golden.safetensors")
    with pytest.raises(VerificationError, match=r"received\.last is not what the graph computes"):
        emit(EmitConfig(out=copied, check_only=True))


@pytest.mark.parametrize("error", [VerificationError("planted"), KeyboardInterrupt()], ids=type)
@pytest.mark.sampled(1)
def test_a_run_that_fails_leaves_what_was_there(error, emitted, tmp_path, monkeypatch):
    def fails(*args):
        raise error

    monkeypatch.setattr("chop.hardware.emitted.run_check", fails)
    with pytest.raises(type(error)):
        emit(EmitConfig(out=tmp_path / "new", **SETTINGS), workload())
    assert list(tmp_path.iterdir()) == []
    before = shutil.copytree(emitted[0], tmp_path / "old")
    manifest = (before / "manifest.json").read_bytes()
    with pytest.raises(type(error)):
        emit(EmitConfig(out=before, **SETTINGS), workload())
    assert [p.name for p in tmp_path.iterdir()] == ["old"]
    assert (before / "manifest.json").read_bytes() == manifest


def test_a_verified_circuit_is_kept_where_yosys_takes_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr("chop.actions.emit.synthesize", partial(synthesize, seconds=1e-3))
    settings = {**SETTINGS, "synthesis": True, "samples": 2, "icarus_samples": 0}
    result = emit(EmitConfig(out=tmp_path / "out", **settings), workload())
    assert result["resources"] == [] and "yosys takes longer" in result["uncounted"]
    (warning,) = read_document(tmp_path / "out").warnings
    assert warning.startswith("yosys takes longer") and "not counted" in warning
    assert len(result["verification"]) == 4


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(
        ConfigError, match=r"has other files \('thesis.tex'\), and chop emit replaces its folder"
    ):
        emit(EmitConfig(out=tmp_path, **SETTINGS), workload())
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_only_emitted_folders_can_be_checked(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no manifest.json"):
        emit(EmitConfig(out=tmp_path, check_only=True))
    with runs.start("sweep", {}, tmp_path):
        pass
    with pytest.raises(CheckpointError, match="holds a run of 'sweep', finished: expected one of"):
        emit(EmitConfig(out=tmp_path, check_only=True))


def test_models_without_a_circuit_are_refused_before_anything_is_written(tmp_path):
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x):
            return self.linear(x.transpose(1, 2)).flatten(1)

    x, labels = torch.randn(12, 3, 4), torch.arange(12) % 3
    given = Workload.of(Turned(), (x, labels), (x, labels), device="cpu")
    with pytest.raises(ConfigError, match="node 'linear'.* do not travel one after another"):
        emit(EmitConfig(out=tmp_path / "out", **SETTINGS), given)
    assert list(tmp_path.iterdir()) == []


def test_tools_that_are_missing_are_named_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="verilator is not installed: apt-get install"):
        emit(EmitConfig(out=tmp_path / "out", **SETTINGS), workload())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [], "the manifest has 0 simulations, which are not all"),
        (lambda rows: rows[1:], "the manifest has 5 simulations, which are not all"),
        (lambda rows: [{**row, "samples": 1} for row in rows], "which are not all of a circuit"),
        (lambda rows: [{**rows[0], "cycles": 7}, *rows[1:]], "the simulation measures others"),
        (lambda rows: [*rows[:-1], {**rows[-1], "equal": 10**6}], "the simulation measures others"),
    ],
    ids=("none", "fewer", "one_sample", "cycles", "equal"),
)
@pytest.mark.sampled(1)
def test_simulations_that_the_manifest_leaves_out_or_invents_fail(change, message, copied):
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["rows"] = change(manifest["rows"])
    (copied / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(VerificationError, match=message):
        emit(EmitConfig(out=copied, check_only=True))


def test_files_that_are_put_into_the_folder_while_it_is_emitted_are_kept(
    copied, monkeypatch, capsys
):
    def put(job, config, workload, folder):
        (folder / "report.md").write_text("new")
        (copied / "rtl" / "notes.txt").write_text("years of work")
        (copied / "thesis").mkdir()
        (copied / "thesis" / "a.tex").write_text("years of work")
        return {}

    monkeypatch.setattr("chop.actions.emit.run_job", put)
    emit(EmitConfig(out=copied, **SETTINGS), workload())
    files = {path.relative_to(copied).as_posix() for path in copied.rglob("*") if path.is_file()}
    assert files == {"report.md", "rtl/notes.txt", "thesis/a.tex"}
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count("was put there while chop emit ran: it is kept.") == 2
    with pytest.raises(ConfigError, match="has other files"):
        emit(EmitConfig(out=copied, **SETTINGS), workload())


def test_a_circuit_whose_successor_was_killed_is_put_back(copied):
    process = multiprocessing.get_context("fork").Process(target=leave_aside, args=(copied,))
    process.start()
    process.join()
    assert not copied.exists()
    assert runs.read_manifest(copied).state == "finished"
    assert (copied / "rtl" / "top.sv").exists()


def leave_aside(out):
    out.rename(temporary_beside(out).with_suffix(".old"))


def test_files_of_ones_own_in_an_emitted_folder_are_not_replaced(copied):
    (copied / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"has other files \('thesis.tex'\)"):
        emit(EmitConfig(out=copied, **SETTINGS), workload())
    assert (copied / "thesis.tex").exists()


@pytest.mark.long
def test_a_folder_with_blanks_that_was_moved_can_be_checked(emitted, tmp_path):
    moved = shutil.copytree(emitted[0], tmp_path / "mo ved ü'\"q;#")
    found = emit(EmitConfig(out=moved, check_only=True))
    assert found["verification"] == emitted[1]["verification"]


def test_an_interval_far_from_the_plan_is_said():
    result = {
        "pytorch": {"outputs": 3, "different": 0, "largest": 0.0},
        "samples": 1,
        "accuracy": {},
        "interval": 16,
        "verification": [{"interval": 23.0}],
    }
    assert "23.0 cycles between samples, planned are 16" in _sentence(result)
    result["verification"][0]["interval"] = 16.4
    assert "planned" not in _sentence(result)
