import gc
import json
import subprocess
import sys
import time

import pytest
import torch

from chop.bench import Variant, compare
from chop.bench import peak_memory as peak_module
from chop.bench.clock import HostClock, Reading, block_seconds, clock_for
from chop.bench.peak_memory import peak_bytes, resident_bytes
from chop.bench.record import format_ratio
from chop.errors import ConfigError

CPU = torch.device("cpu")


def products(times, rows=64):
    """A call that multiplies matrices so many times."""
    x, w = torch.randn(rows, 256), torch.randn(256, 256)

    def call():
        for _ in range(times):
            y = x @ w
        return y

    return call


@pytest.fixture(scope="module")
def found():
    one = products(10)
    variants = [Variant("one", one), Variant("twice", lambda: (one(), one())[1])]
    return compare(variants, seconds=0.3, threads=1)


def test_work_done_twice_takes_twice_the_time(found):
    assert found["twice"].speed_up == pytest.approx(0.5, rel=0.25)
    assert found["one"].speed_up is None and found["one"].ratio.median == 1
    assert found["twice"].processor_seconds / found["one"].processor_seconds > 1.6
    assert found["twice"].largest_difference == 0
    assert found.clock == "processor"
    assert len(found["one"].readings) == len(found["twice"].readings) >= 10


def test_rows_are_for_people_and_the_file_has_everything(found, tmp_path, capsys):
    one, twice = found.rows()
    assert one["times as fast"] == "1 (baseline)"
    assert "prepare" not in one and one["largest difference"] is None
    assert twice["times as fast"] == format_ratio(found["twice"].ratio)
    found.table("Products")
    assert "Products (interleaved" in capsys.readouterr().out
    found.save(tmp_path / "found.json")
    record = json.loads((tmp_path / "found.json").read_text())
    assert record["variants"][1]["speed_up"] == found["twice"].speed_up
    assert record["variants"][1]["readings"]["processor"][0] > 0
    environment = record["environment"]
    assert environment["threads"] == 1 and environment["versions"]["torch"] == torch.__version__
    assert {"load_before", "load_after", "instructions", "processor", "kernels"} <= set(environment)


def test_building_the_first_call_and_the_steady_state_are_apart():
    calls = []

    def call():
        time.sleep(0.001 if calls else 0.05)
        calls.append(1)

    def prepare():
        time.sleep(0.1)
        return call

    variants = [Variant("slow start", prepare=prepare), Variant("none", lambda: None)]
    found = compare(variants, baseline="none", seconds=0.1, outputs=False, clock="wall")
    started = found["slow start"]
    assert started.prepare_seconds >= 0.1
    assert started.first_call_seconds >= 0.05
    assert 0.001 <= started.seconds < 0.05
    assert started.largest_difference is None and found["none"].prepare_seconds is None


@pytest.mark.parametrize("method, words", [("torch", "torch.utils.benchmark"), ("time", "by time")])
def test_one_after_the_other_says_so_and_shows_no_difference(method, words, capsys):
    variants = [Variant("one", products(1)), Variant("hundred", products(100))]
    found = compare(variants, seconds=0.1, method=method, threads=1, outputs=False)
    assert found["hundred"].ratio.median < 0.5
    assert found["hundred"].speed_up is None
    assert found.rows()[1]["times as fast"].endswith("no interval")
    found.table()
    assert words in " ".join(capsys.readouterr().out.split())


def test_surroundings_are_set_and_put_back():
    seen = set()

    def call():
        modes = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        seen.add((torch.get_num_threads(), modes, gc.isenabled()))

    threads = torch.get_num_threads()
    compare([Variant("look", call)], seconds=0.01, threads=2, outputs=False, memory=False)
    assert (2, (True, False), False) in seen
    assert torch.get_num_threads() == threads and gc.isenabled()
    seen.clear()
    with torch.no_grad():
        compare([Variant("look", call)], seconds=0.01, inference=False, outputs=False)
    assert {modes for _, modes, _ in seen} == {(False, False)}


def test_blocks_are_long_enough_by_the_clock_that_decides():
    class Counting(HostClock):
        """A processor that gets a hundredth of the time."""

        def time(self, call, calls):
            return Reading(wall=1e-3, processor=1e-5)

    assert Counting("wall").block_size(lambda: None) == 20
    assert 500 <= Counting("processor").block_size(lambda: None) <= 2000
    assert Counting("wall").block_size(lambda: None, block_seconds(0.05)) == 5
    assert HostClock("processor").block_size(lambda: time.sleep(0.01)) <= 100


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"baseline": "b"}, "'b' is not a variant"),
        ({"method": "pared"}, "did you mean 'paired'"),
        ({"clock": "device"}, "no 'device' on cpu; choose from: processor, wall"),
        ({"seconds": 0}, "more than 0, got 0"),
        ({"threads": 0}, "threads: expected 1 or more, got 0"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        compare([Variant("a", lambda: None)], **settings)


def test_wrong_variants_are_named():
    with pytest.raises(ConfigError, match="different names"):
        compare([Variant("a", lambda: 1), Variant("a", lambda: 1)])
    with pytest.raises(ConfigError, match="different names"):
        compare([])
    with pytest.raises(ConfigError, match="got neither"):
        Variant("a")
    with pytest.raises(ConfigError, match="got both"):
        Variant("a", lambda: 1, prepare=lambda: lambda: 1)


def test_the_memory_of_a_call_is_what_it_holds_at_once():
    if peak_bytes(lambda: None, CPU) is None:
        pytest.skip("the system does not tell")
    size = 50_000_000
    peak = peak_bytes(lambda: torch.ones(size // 4).sum(), CPU)
    assert size * 0.95 < peak < size * 1.2
    assert peak_bytes(lambda: None, CPU) < 5_000_000
    assert resident_bytes("VmHWM") >= resident_bytes()


def test_memory_is_not_made_up_where_the_system_does_not_tell(tmp_path, monkeypatch):
    monkeypatch.setattr(peak_module, "PROC", tmp_path / "none")
    assert peak_bytes(lambda: None, CPU) is None and resident_bytes() is None
    found = compare([Variant("a", lambda: None)], seconds=0.01, outputs=False)
    assert "peak memory" not in found.rows()[0]


@pytest.fixture
def busy_core():
    """Another process that computes all the time."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        yield
        process.kill()


@pytest.mark.long  # beside another worker of the test suite there is more than one busy core
@pytest.mark.parametrize("times, rows, low, high", [(10, 1, 0.98, 1.02), (10, 512, 0.96, 1.04)])
def test_a_busy_machine_hides_nothing_and_invents_nothing(busy_core, times, rows, low, high):
    call, slower = products(20, rows), products(22, rows)
    variants = [Variant("a", call), Variant("a again", call), Variant("a tenth slower", slower)]
    runs = [
        compare(variants, seconds=0.3, threads=1, outputs=False, memory=False, seed=seed)
        for seed in range(times)
    ]
    assert sum(low <= run["a again"].ratio.median <= high for run in runs) >= times - 1
    assert sum(run["a again"].speed_up is None for run in runs) >= times - 1
    assert sum((run["a tenth slower"].speed_up or 1) < 1 for run in runs) >= times - 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_timed_by_its_own_clock():
    x = torch.randn(2048, 2048, device="cuda")
    small = torch.randn(8, 8, device="cuda")
    variants = [Variant("one", lambda: x @ x), Variant("twice", lambda: (x @ x, x @ x)[1])]
    found = compare(variants, device="cuda", seconds=0.2)
    assert found.clock == "device" and found["twice"].speed_up == pytest.approx(0.5, rel=0.25)
    assert found["one"].readings[0].device < found["one"].readings[0].wall
    assert found["one"].peak_bytes >= x.nbytes

    def launches():
        y = small
        for _ in range(50):
            y = y + 1
        return y

    eager = compare([Variant("launches", launches)], device="cuda", seconds=0.1)
    graph = compare([Variant("launches", launches)], device="cuda", seconds=0.1, cuda_graph=True)
    assert graph["launches"].seconds < 0.7 * eager["launches"].seconds
    assert graph["launches"].peak_bytes == eager["launches"].peak_bytes > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_cannot_be_recorded_is_timed_as_it_is(caplog):
    x = torch.ones(8, device="cuda")
    stream = torch.cuda.current_stream()
    waits = Variant("waits", lambda: x.sum().item())
    found = compare([waits], device="cuda", seconds=0.05, cuda_graph=True)
    assert "no CUDA graph" in caplog.text and found["waits"].seconds > 0
    assert torch.cuda.current_stream() == stream and (x + 1).sum() == 16


def test_a_coarse_clock_of_processor_time_does_not_decide(monkeypatch):
    """Linux advances it every few milliseconds under `ulimit -t`; a short block then takes 0."""
    assert clock_for(CPU, 1, None).decides == "processor"
    exact = time.process_time
    monkeypatch.setattr(time, "process_time", lambda: exact() // 0.004 * 0.004)
    assert clock_for(CPU, 1, None).decides == "wall"
    assert clock_for(CPU, 1, "processor").decides == "processor"
