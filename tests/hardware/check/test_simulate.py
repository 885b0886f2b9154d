"""Simulations tell what is wrong with a project: which code, which stream, which cycle."""

import multiprocessing
import os
import re
from dataclasses import replace
from functools import partial

import pytest
import torch

from chop.base import native
from chop.errors import ChopError, ConfigError, UnavailableError
from chop.hardware.check.profiles import PROFILES
from chop.hardware.check.project import PortCodes
from chop.hardware.check.simulate import simulate
from chop.hardware.harness import run_library, verilate
from tests.hardware import tiny

pytestmark = pytest.mark.tools("verilator", "iverilog", "c++")
NONE, UNIFORM, SLOW_READER, BURSTS = PROFILES
SIMULATORS = ("verilator", "icarus")


def run(folder, fault="none", profile=NONE, simulator="verilator", seed=1, **more):
    project = tiny.write(folder, fault)
    return simulate(folder, project, *tiny.codes(), profile, simulator, seed, **more)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
@pytest.mark.parametrize("simulator", SIMULATORS)
@pytest.mark.long
def test_every_code_of_odd_widths_is_compared_under_each_profile(tmp_path, simulator, profile):
    found = run(tmp_path, profile=profile, simulator=simulator)
    assert found.passed and found.differences == () and found.problems == ()
    assert found.codes == tiny.SAMPLES * 2 * (5 + 60 + 1) and found.samples == tiny.SAMPLES
    # A beat in every cycle, and the register; a reader that takes one in eight is what waits.
    assert found.cycles >= 2 * tiny.SAMPLES + 1
    least = {"none": 2.0, "uniform": 4.0, "slow_reader": 8 * 2 * 0.7, "bursts": 2.0}
    assert found.interval >= least[profile.name] and (profile.name != "none") == (
        found.interval > 2.0
    )


@pytest.mark.long
def test_the_seed_decides_when_streams_stall(tmp_path):
    first, again, other = (run(tmp_path, profile=UNIFORM, seed=seed) for seed in (1, 1, 2))
    assert first == again and first.cycles != other.cycles and other.passed


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_a_wrong_code_is_reported_where_it_is(tmp_path, simulator):
    found = run(tmp_path, "wrong", simulator=simulator)
    (difference,) = found.differences
    sample, beat = divmod(tiny.WRONG_BEAT, 2)
    assert (difference.output, difference.sample) == ("z", sample)
    assert difference.index == (beat * 60 + 7,) and difference.got == difference.expected ^ 1
    assert difference.expected == tiny.codes()[1]["z"][sample, beat * 60 + 7]
    assert not found.passed and found.problems == ()


def test_the_index_of_a_difference_is_that_of_the_tensor(tmp_path):
    tiny.write(tmp_path, "wrong")
    inputs, expected = tiny.codes()
    # The element at [i, j] travels at place j * 2 + i.
    positions = tuple(torch.arange(120).view(60, 2).T.flatten().tolist())
    described = PortCodes("z", 1.0, -16, 15, 1, (2, 60), positions)
    project = replace(tiny.PROJECT, codes={"z": described})
    moved = expected["z"].view(-1, 60, 2).transpose(1, 2)
    found = simulate(tmp_path, project, inputs, {**expected, "z": moved}, NONE)
    place = tiny.WRONG_BEAT % 2 * 60 + 7
    assert [difference.index for difference in found.differences] == [(place % 2, place // 2)]


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_a_beat_that_an_inner_stream_withdraws_is_seen(tmp_path, simulator):
    found = run(tmp_path, "probe", UNIFORM, simulator)
    assert found.differences == () and not found.passed
    assert found.problems == ("inner stream 'probe' withdrew or changed a beat",)
    assert run(tmp_path, "probe", NONE, simulator).passed  # nothing stalls


@pytest.mark.parametrize("profile", [UNIFORM, SLOW_READER, BURSTS], ids=lambda p: p.name)
def test_a_beat_that_changes_while_it_waits_is_seen_at_the_port(tmp_path, profile):
    found = run(tmp_path, "changed", profile)
    assert len(found.problems) == 1 and not found.passed
    assert found.problems[0].startswith("output 'y' withdrew or changed a beat in cycle ")


def test_a_beat_that_changes_is_seen_by_icarus_too(tmp_path):
    found = run(tmp_path, "changed", UNIFORM, "icarus")
    assert not found.passed and "y: broke the rules of a stream" in found.problems[0]


def test_a_design_that_moves_beats_far_too_slowly_is_given_up(tmp_path, monkeypatch):
    assert run(tmp_path, profile=SLOW_READER).passed
    monkeypatch.setattr("chop.hardware.harness.run.SLOWEST", 0)
    monkeypatch.setattr(
        "chop.hardware.check.simulate.run_library", partial(run_library, idle_cycles=10)
    )
    found = run(tmp_path, profile=SLOW_READER)
    given_up = "given up in cycle 300: samples take more than 32 intervals of 2 cycles"
    assert given_up in found.problems and not found.passed
    monkeypatch.setattr("chop.hardware.check.testbench.MOST_CYCLES", 50)
    found = run(tmp_path, profile=SLOW_READER, simulator="icarus")
    assert found.problems[0].startswith("timeout in cycle 50, ") and not found.passed


@pytest.mark.sampled(1)
@pytest.mark.parametrize("simulator", SIMULATORS)
def test_a_project_that_hangs_is_given_up_in_a_cycle_that_is_told(tmp_path, simulator):
    found = run(tmp_path, "hang", simulator=simulator)
    assert not found.passed and (found.cycles, found.interval) == (None, None)
    # The last beat leaves after as many cycles as there are beats, and the idle ones follow.
    idle = {"verilator": 20_020, "icarus": 12_580}[simulator]
    (cycle,) = re.findall(r"timeout in cycle (\d+)", found.problems[0])
    assert abs(int(cycle) - idle - tiny.HANG_BEAT) < 10


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_a_beat_too_many_is_seen(tmp_path, simulator):
    found = run(tmp_path, "surplus", UNIFORM, simulator)
    expected = {"verilator": "output 'w' sent beats after the last", "icarus": "w: a beat too many"}
    assert found.differences == () and not found.passed
    assert found.problems[0].startswith(expected[simulator])


@pytest.mark.parametrize("fault", ["finish", "fatal"])
def test_a_simulation_that_stops_itself_has_not_passed(tmp_path, fault):
    reason = {"finish": "finish in cycle 7", "fatal": "beat 5 is refused"}[fault]
    with pytest.raises(ChopError, match=reason):
        run(tmp_path, fault)
    found = run(tmp_path, fault, simulator="icarus")
    assert not found.passed and "the testbench stopped" in found.problems[0]


def test_a_missing_memory_is_an_error(tmp_path):
    project = tiny.write(tmp_path)
    (tmp_path / "memory" / "fault.hex").unlink()
    with pytest.raises(ChopError, match="fault.hex"):
        simulate(tmp_path, project, *tiny.codes(), NONE)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda inputs: {"a": inputs["a"]}, "no codes for port 'c'"),
        (lambda inputs: {**inputs, "a": inputs["a"][:, 1:]}, "samples of 6 codes"),
        (lambda inputs: {**inputs, "a": inputs["a"][1:]}, "different numbers of samples"),
        (lambda inputs: {**inputs, "a": inputs["a"] + 5}, "do not fit 3 bits"),
    ],
    ids=["missing", "shape", "samples", "range"],
)
def test_codes_that_are_no_samples_are_refused(tmp_path, change, reason):
    inputs, expected = tiny.codes()
    with pytest.raises(ConfigError, match=reason):
        simulate(tmp_path, tiny.write(tmp_path), change(inputs), expected, NONE)


def test_a_design_that_verilator_refuses_is_told_by_its_first_message(tmp_path):
    project = tiny.write(tmp_path)
    source = tmp_path / "rtl" / "top.sv"
    source.write_text(source.read_text().replace("3'd5", "nothing_of_this_name"))
    with pytest.raises(ConfigError, match="%Error.*nothing_of_this_name"):
        verilate(tmp_path, project)


def test_no_compiler_and_no_verilator_are_told(tmp_path, monkeypatch):
    project = tiny.write(tmp_path)
    monkeypatch.setattr("chop.hardware.harness.build.compiler", lambda: None)
    with pytest.raises(UnavailableError, match=r"apt-get install g\+\+"):
        verilate(tmp_path, project)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="apt-get install .* verilator"):
        verilate(tmp_path, project)


def test_a_build_is_found_again_unless_the_source_differs(tmp_path, monkeypatch):
    project = tiny.write(tmp_path)
    library = verilate(tmp_path, project)
    monkeypatch.setattr(native.Sources, "compile", lambda *_: pytest.fail("compiled again"))
    tiny.write(tmp_path, "wrong")  # memories are read when the simulation begins
    assert verilate(tmp_path, project) == library and library.exists()
    with (tmp_path / "rtl" / "top.sv").open("a") as file:
        file.write("// another text\n")
    with pytest.raises(pytest.fail.Exception, match="compiled again"):
        verilate(tmp_path, project)


@pytest.mark.long
def test_waveforms_are_written_where_they_are_asked_for(tmp_path, monkeypatch):
    # Its runtime is compiled for this test alone.
    monkeypatch.setattr("chop.hardware.harness.build.FAST", "-O0")
    wave = tmp_path / "run.vcd"
    found = run(tmp_path, wave=wave)
    text = wave.read_text()
    assert found.passed and "$enddefinitions" in text
    assert all(f" {name} " in text for name in ("joined_data", "y_valid_o", "clk_i"))


def test_a_simulation_that_does_not_load_is_built_again_once(tmp_path, monkeypatch, caplog):
    project = tiny.write(tmp_path / "project")
    good, bad = verilate(tmp_path / "project", project), tmp_path / "simulation.so"
    made = native.cached_file(bad, lambda target: target.write_text("no library"))
    libraries = iter([made, good])
    monkeypatch.setattr("chop.hardware.check.simulate.verilate", lambda *_: next(libraries))
    found = simulate(tmp_path / "project", project, *tiny.codes(), NONE)
    assert found.passed and not bad.exists()
    assert "cannot be loaded" in caplog.text and "built again" in caplog.text


def _race(folder, cache, start):
    os.environ["CHOP_CACHE"] = str(cache)
    start.wait()
    library = verilate(folder, tiny.PROJECT, optimization="-O0")
    assert library.parent == cache and library.stat().st_size > 10_000


@pytest.mark.long
def test_two_processes_may_build_one_project(tmp_path, monkeypatch):
    tiny.write(tmp_path / "project")
    cache = native.cache_folder()
    (tmp_path / "cache").mkdir()
    for runtime in cache.glob("verilator-*.o"):  # it takes longer than the project does
        (tmp_path / "cache" / runtime.name).symlink_to(runtime)
    context = multiprocessing.get_context("fork")
    start = context.Barrier(2)
    arguments = (tmp_path / "project", tmp_path / "cache", start)
    racers = [context.Process(target=_race, args=arguments) for _ in range(2)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0, 0]
    assert len([*(tmp_path / "cache").glob("simulation-top-*.so")]) == 1
    assert not [*(tmp_path / "cache").glob(".*")]
