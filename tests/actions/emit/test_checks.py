"""Emitted circuits that are checked again: what changed since, and what is run of a folder."""

import hashlib
import json
import re
import shutil
import warnings

import pytest
from safetensors.torch import load_file, save_file

from chop import __version__, runs
from chop.actions.compress.earlier_run import compressed_run
from chop.actions.emit.job import emit
from chop.actions.emit.lower import lower
from chop.actions.emit.lower_settings import LowerConfig
from chop.actions.emit.report import _simulation_row
from chop.actions.emit.settings import EmitConfig
from chop.actions.emit.simulate import simulate
from chop.actions.export.model import load_graph
from chop.actions.export.settings import ExportConfig
from chop.base.files import make_folder
from chop.errors import CheckpointError, ConfigError, VerificationError
from chop.hardware.check.project import ForeignCodeWarning
from chop.runs.manifest import Manifest, write_manifest
from tests.actions.emit.circuits import workload

pytestmark = pytest.mark.tools("verilator", "iverilog", "yosys")


@pytest.mark.long
def test_a_repeated_check_ends_with_its_verdict_and_names_what_it_did_not_read(emitted, capsys):
    out, result = emitted
    found = emit(EmitConfig(out=out, check_only=True))
    assert found["verification"] == result["verification"]
    printed = " ".join(capsys.readouterr().out.split())
    equal = sum(row["equal"] for row in result["verification"])
    assert (
        f"all {equal:,} outputs of {len(result['verification'])} simulations are equal" in printed
    )
    assert "Ignored" not in printed
    emit(EmitConfig(out=out, check_only=True, fold=77777, formats="4.auto"))
    assert "Ignored: formats, fold." in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("interval, profile, shown", [(24.0, "bursts", None), (24.0, "none", 24.0)])
def test_an_interval_that_only_stalls_make_short_is_not_shown(emitted, interval, profile, shown):
    row = {**emitted[1]["verification"][0], "interval": interval, "planned": 32}
    cell = _simulation_row({**row, "profile": profile})["interval"]
    assert (cell and cell.value) == shown


@pytest.mark.parametrize("text", ["33.auto", "8", "e4m3", "integer:width=8"])
def test_formats_are_checked_before_anything_is_read(text, tmp_path):
    for job, config in ((emit, EmitConfig), (lower, LowerConfig)):
        with pytest.raises(ConfigError, match="format|width"):
            job(config(formats=text, model=str(tmp_path / "no model"), out=tmp_path / "out"))


def test_a_circuit_in_the_place_of_a_model_is_named_as_one(emitted):
    out, _ = emitted
    with pytest.raises(
        CheckpointError,
        match=f"is from chop emit: expected a folder of chop .*; chop emit {out} --check-only",
    ):
        emit(EmitConfig(out=out.parent / "again", start_from=out))
    run = out.parent / "run"
    write_manifest(
        make_folder(run) / "manifest.json", Manifest("compress", {}, "finished", "a:1:2")
    )
    for suffix in (".pt", ".mz"):
        (run / f"model{suffix}").write_bytes((out / f"model{suffix}").read_bytes())
    with pytest.raises(CheckpointError, match=f"checkpoint of the run '{run}', .*: pass '{run}'"):
        lower(LowerConfig(out=out.parent / "l", start_from=run / "model"))
    with pytest.raises(CheckpointError, match="is from chop emit: expected the output folder"):
        compressed_run(out)
    for read in (
        lambda: lower(
            LowerConfig(out=out.parent / "l", start_from=out / "model.pt", force=True), workload()
        ),
        lambda: load_graph(ExportConfig(model=str(out / "model"), to=("onnx",))),
        lambda: load_graph(ExportConfig(model=str(out), to=("onnx",), format="8.auto")),
    ):
        with pytest.raises(CheckpointError, match="is an integer graph of chop lower or chop"):
            read()


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
    with pytest.raises(VerificationError, match=f"{name}' was changed after the manifest"):
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


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "change"), FOREIGN.values(), ids=FOREIGN)
def test_nothing_is_run_of_a_folder_that_is_not_what_its_model_emits(
    name, change, copied, monkeypatch
):
    def runs_it(*args):
        raise AssertionError("it was run")

    monkeypatch.setattr("chop.hardware.check.emitted.verify", runs_it)
    text = (copied / name).read_text() if (copied / name).exists() else ""
    (copied / name).write_text(change(text))
    assert (copied / name).read_text() != text
    forge(copied, name)
    said = f"{name}' differs .* chop {__version__} emits .*. No file of the folder was run"
    with pytest.raises(VerificationError, match=said):
        emit(EmitConfig(out=copied, check_only=True))


LINES = {
    "token": ("rtl/chop_relu.sv", "endmodule", "endmodule : x", r"line \d+ is 'endmodule : x'"),
    "weight": ("memory/first_weight.hex", "\n", "0\n", r"line 1 is '\w+' instead of '\w+'"),
    "pragma": ("rtl/top.sv", "module top", "// verilator lint_off WIDTH\nmodule top", "lint_off"),
    "attribute": ("rtl/top.sv", "module top", "(* keep *) module top", r"'\(\* keep \*\) module"),
    "longer": ("testbench/testbench.sv", "endmodule\n", "endmodule\nendmodule\n", "is not in the"),
    "shorter": ("testbench/testbench.sv", "endmodule\n", "", "it ends before 'endmodule'"),
}


@pytest.mark.parametrize(("name", "old", "new", "difference"), LINES.values(), ids=LINES)
def test_the_first_line_that_differs_is_quoted(name, old, new, difference, copied):
    text = (copied / name).read_text()
    head, found, tail = text.rpartition(old) if "top" not in name else text.partition(old)
    assert found
    (copied / name).write_text(head + new + tail if "hex" not in name else text.replace(old, new))
    forge(copied, name)
    with pytest.raises(VerificationError, match=f"{name}' differs from the file .*{difference}"):
        emit(EmitConfig(out=copied, check_only=True))


@pytest.mark.long
def test_a_folder_that_differs_only_in_comments_is_verified(copied, emitted):
    for path in sorted(copied.glob("*/*.sv")):
        text = path.read_text()
        text = re.sub(r"^//.*\n", "", text, flags=re.MULTILINE).replace(";\n", ";  // so\n")
        path.write_text(f"/* Worded\nas before. */\n{text}")
        forge(copied, path.relative_to(copied).as_posix())
    found = emit(EmitConfig(out=copied, check_only=True))
    assert found["verification"] == emitted[1]["verification"]


@pytest.mark.long
def test_a_folder_from_before_wrappers_is_verified(copied, emitted):
    document = json.loads((copied / "design.json").read_text())
    assert document.pop("wrapper") == ""
    (copied / "design.json").write_text(json.dumps(document, indent=2) + "\n")
    forge(copied, "design.json")
    found = emit(EmitConfig(out=copied, check_only=True))
    assert found["verification"] == emitted[1]["verification"]


def test_what_is_run_is_emitted_again_and_not_read_from_the_folder(copied, monkeypatch):
    ran = []

    def planted(folder, *args):
        ran.append(folder)
        raise VerificationError("planted")

    monkeypatch.setattr("chop.hardware.check.emitted.verify", planted)
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
    with pytest.raises(VerificationError, match="top.sv' was changed|no number of cycles"):
        emit(EmitConfig(out=copied, check_only=True))


@pytest.mark.parametrize("path", ["/etc/passwd", "../../etc/passwd"])
def test_a_manifest_that_names_files_outside_is_refused(path, copied):
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["artifacts"][0]["path"] = path
    (copied / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(VerificationError, match="is outside"):
        emit(EmitConfig(out=copied, check_only=True))


def test_a_golden_value_whose_hash_was_forged_fails_in_the_graph(copied):
    golden = load_file(copied / "golden.safetensors")
    golden["received.last"][3, 1] += 1
    save_file(golden, copied / "golden.safetensors")
    forge(copied, "golden.safetensors")
    with pytest.raises(VerificationError, match=r"the graph computes another received\.last"):
        emit(EmitConfig(out=copied, check_only=True))


def test_only_emitted_folders_can_be_checked(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no manifest.json"):
        emit(EmitConfig(out=tmp_path, check_only=True))
    with runs.start("compress", {}, tmp_path):
        pass
    with pytest.raises(
        CheckpointError,
        match="a run of 'compress', finished: expected a finished run of .* leave out --check-only",
    ):
        emit(EmitConfig(out=tmp_path, check_only=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [], "the manifest lists 0 simulations, which is incomplete"),
        (lambda rows: rows[1:], "the manifest lists 5 simulations, which is incomplete"),
        (lambda rows: [{**row, "samples": 1} for row in rows], "incomplete for a circuit"),
        (lambda rows: [{**rows[0], "cycles": 7}, *rows[1:]], "the simulation measures other"),
        (lambda rows: [*rows[:-1], {**rows[-1], "equal": 10**6}], "the simulation measures other"),
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


@pytest.mark.long
def test_a_folder_with_blanks_that_was_moved_can_be_checked(emitted, tmp_path):
    moved = shutil.copytree(emitted[0], tmp_path / "mo ved ü'\"q;#")
    found = emit(EmitConfig(out=moved, check_only=True))
    assert found["verification"] == emitted[1]["verification"]
