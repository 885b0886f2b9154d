"""What `chop doctor` finds."""

import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from chop.actions.doctor import (
    OK,
    OPTIONAL,
    WRONG,
    _cpu_kernels,
    _instructions,
    _part,
    _products,
    examine,
)
from chop.base.installed import how_to_get
from chop.errors import ConfigError
from chop.kernels.cpu import build, crossovers
from chop.kernels.cpu.crossovers import CROSSOVERS


def test_doctor_finds_what_is_here():
    findings = {finding.what: finding for finding in examine()}
    assert findings["torch"].detail == torch.__version__
    assert findings["python"].state == findings["import chop"].state == OK
    assert not any(finding.is_fatal for finding in findings.values())
    assert how_to_get("gguf") in findings["gguf"].detail or findings["gguf"].state == OK


@pytest.mark.parametrize("is_ready", [False, True])
def test_doctor_says_that_it_compiles(is_ready, monkeypatch, capsys):
    monkeypatch.setattr("chop.base.native.compiler", lambda: "c++")
    monkeypatch.setattr(build, "is_ready", lambda: is_ready)
    monkeypatch.setattr(build, "library", lambda: build.Build(object(), "path"))
    assert _cpu_kernels().state == OK
    assert ("compiling" in capsys.readouterr().out) == (not is_ready)


def test_a_program_of_the_system_serves_as_the_optional_part(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _part("place", "chop emit --place", ["absent-package"]).state == OPTIONAL
    program = tmp_path / "nextpnr-ecp5"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    found = _part("place", "chop emit --place", ["absent-package"])
    assert (found.state, found.detail) == (OK, str(program))


def test_products_are_not_to_be_tuned_where_one_implementation_runs(monkeypatch):
    unsupported = {name: replace(each, is_supported=bool) for name, each in CROSSOVERS.items()}
    monkeypatch.setattr(crossovers, "CROSSOVERS", unsupported)
    monkeypatch.setattr(build, "library", lambda: build.Build(object(), ""))
    details = {finding.what: finding.detail for finding in _products()}
    no_bfloat16 = "CPU kernels; oneDNN has no bfloat16 products on this processor"
    assert details == {
        "8-bit products": "CPU kernels; oneDNN is not exact on this processor",
        "float32 products": "CPU kernels; PyTorch for many rows, because there are no vector "
        "instructions",
        "bfloat16 products": no_bfloat16,
        "float32 at medium precision": no_bfloat16,
    }
    monkeypatch.setattr(build, "library", lambda: build.Build(None, "no compiler"))
    assert {finding.state for finding in _products()} == {OPTIONAL}


def test_each_kind_of_products_is_reported_with_its_rows(monkeypatch):
    threads, name = torch.get_num_threads(), "bfloat16 products"
    each = replace(CROSSOVERS[name], is_supported=lambda: True)
    monkeypatch.setattr(crossovers, "CROSSOVERS", {name: each})
    monkeypatch.setattr(build, "library", lambda: build.Build(object(), ""))
    table = {512 * 4096: 16, 1024 * 768: math.inf}
    monkeypatch.setattr(crossovers, "TABLES", {(name, threads): table})
    (finding,) = _products()
    rows = "768 x 1024: never, 4096 x 512: 16 rows and more"
    assert finding.detail == f"oneDNN for {rows}; otherwise CPU kernels"
    monkeypatch.setattr(crossovers, "TABLES", {})
    monkeypatch.setattr(crossovers, "_read_all", dict)
    (finding,) = _products()
    assert finding.detail.endswith("chop doctor --tune")


def test_product_instructions_are_read_from_the_system(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "CPU_INFO", tmp_path / "cpuinfo")
    assert _instructions().detail.startswith("none; absent: avx_vnni, ")
    build.CPU_INFO.write_text("model name: A\nflags\t\t: fpu avx512_vnni amx_bf16 amx_tile\n")
    present = "avx512_vnni, amx_bf16; absent: avx_vnni, amx_int8, avx512_bf16"
    assert _instructions().detail == present


@pytest.mark.long
def test_doctor_sees_a_package_that_shadows_chop(tmp_path):
    other = tmp_path / "chop"
    other.mkdir()
    (other / "__init__.py").write_text("")
    code = (
        f"import sys, chop.actions.doctor as d; sys.path.insert(0, {str(tmp_path)!r})\n"
        "print([f.detail for f in d.examine() if f.what == 'import chop' and f.is_fatal])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "shadows" in run.stdout


def test_products_in_a_format_that_two_packages_define_are_a_finding(monkeypatch):
    def is_supported():
        raise ConfigError("the number format 'mxint' is defined twice")

    name = "bfloat16 products"
    each = replace(CROSSOVERS[name], is_supported=is_supported)
    monkeypatch.setattr(crossovers, "CROSSOVERS", {name: each})
    monkeypatch.setattr(build, "library", lambda: build.Build(object(), ""))
    (finding,) = _products()
    assert (finding.state, finding.detail) == (WRONG, "the number format 'mxint' is defined twice")
