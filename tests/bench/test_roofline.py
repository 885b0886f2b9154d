import pytest
import torch

from chop.bench import roofline as module
from chop.bench.clock import HostClock, Reading
from chop.bench.roofline import Roofline, copy_bytes_per_second, measured_roofline


class Script(HostClock):
    """Tells times from a list."""

    def __init__(self, seconds):
        super().__init__("wall")
        self.seconds = iter(seconds)

    def time(self, call, calls):
        call()
        return Reading(next(self.seconds))


def test_the_higher_of_two_floors_holds():
    device = Roofline(bytes_per_second=100, flops_per_second=1000)
    assert device.floor_seconds(50, 1000) == 1 and device.bound(50, 1000) == "compute"
    assert device.floor_seconds(200, 1000) == 2 and device.bound(200, 1000) == "memory"


def test_the_fastest_try_counts(monkeypatch):
    monkeypatch.setitem(module.COPIED_BYTES, "cpu", 1000)
    seconds = [0.05, 0.04, 0.02, 0.03, 0.09, 0.09, 0.09]
    assert copy_bytes_per_second(torch.device("cpu"), Script(seconds)) == 2 * 1000 / 0.02


def test_slow_tries_are_not_repeated_for_minutes(monkeypatch):
    monkeypatch.setitem(module.COPIED_BYTES, "cpu", 1000)
    clock = Script([0.7, 0.6, 0.1])
    assert copy_bytes_per_second(torch.device("cpu"), clock) == 2 * 1000 / 0.6
    assert next(clock.seconds) == 0.1


def test_sixteen_bits_may_be_computed_as_float32(monkeypatch):
    monkeypatch.setitem(module.COPIED_BYTES, "cpu", 2**20)
    monkeypatch.setitem(module.PRODUCT_SIZE, "cpu", 128)
    found = measured_roofline(torch.float16)
    assert found.bytes_per_second > 1e8
    assert found.flops_per_second >= 0.2 * measured_roofline().flops_per_second


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_stays_below_its_ceiling(dtype, monkeypatch):
    monkeypatch.setitem(module.COPIED_BYTES, "cpu", 2**20)
    monkeypatch.setitem(module.PRODUCT_SIZE, "cpu", 256)
    found = measured_roofline(dtype)
    assert found.floor_seconds(0, 2 * 256**3) == 2 * 256**3 / found.flops_per_second
    assert 1e8 < found.flops_per_second < 1e13
