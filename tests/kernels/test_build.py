"""For which instructions the loops are compiled."""

import pytest

from chop.errors import ConfigError
from chop.kernels.cpu import build

AVX2 = build.SETS["x86-64-v3"]
AVX512 = build.SETS["x86-64-v4"]


@pytest.fixture(autouse=True)
def _not_asked(monkeypatch):
    monkeypatch.delenv(build.SWITCH, raising=False)


def test_loops_of_every_processor_can_be_asked_for(monkeypatch):
    monkeypatch.setenv(build.SWITCH, "baseline")
    assert build.target.__wrapped__() == ("-DCHOP_ONE_INSTRUCTION_SET",)
    monkeypatch.setenv(build.SWITCH, "avx2")
    with pytest.raises(ConfigError, match=r"CHOP_INSTRUCTIONS: expected .*'baseline' or nothing"):
        build.target.__wrapped__()


def test_fewer_instructions_than_the_machine_has_can_be_asked_for(tmp_path, monkeypatch):
    told = tmp_path / "cpuinfo"
    monkeypatch.setattr(build, "CPU_INFO", told)
    monkeypatch.setenv(build.SWITCH, "x86-64-v3")
    told.write_text(f"flags\t\t: {AVX2} {AVX512}\n")
    assert build.target.__wrapped__() == ('-DCHOP_TARGET="arch=x86-64-v3"', "-DCHOP_LEVEL=3")
    told.write_text(f"flags\t\t: {AVX2}\n")
    monkeypatch.setenv(build.SWITCH, "x86-64-v4")
    with pytest.raises(ConfigError, match="expected 'x86-64-v3', 'baseline' or nothing, got"):
        build.target.__wrapped__()


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (f"sse2 {AVX2} {AVX512} amx_tile", "x86-64-v4"),
        (f"{AVX512} {AVX2.replace('movbe', '')}", None),
        (f"{AVX2} {AVX512.replace('avx512bw', '')}", "x86-64-v3"),
        (AVX2, "x86-64-v3"),
        ("sse2 avx avx2", None),
    ],
)
def test_loops_are_compiled_for_the_best_set_that_the_machine_has(
    flags, name, tmp_path, monkeypatch
):
    told = tmp_path / "cpuinfo"
    told.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: none\n")
    monkeypatch.setattr(build, "CPU_INFO", told)
    expected = () if name is None else (f'-DCHOP_TARGET="arch={name}"', f"-DCHOP_LEVEL={name[-1]}")
    assert build.target.__wrapped__() == expected


@pytest.mark.parametrize("text", [None, "processor\t: 0\nFeatures\t: fp asimd\n"])
def test_loops_are_compiled_for_each_set_where_the_machine_does_not_tell(
    text, tmp_path, monkeypatch
):
    told = tmp_path / "cpuinfo"
    if text:
        told.write_text(text)
    monkeypatch.setattr(build, "CPU_INFO", told)
    assert build.target.__wrapped__() == ()
