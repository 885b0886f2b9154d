"""What `chop doctor` finds."""

import subprocess
import sys

import pytest
import torch

from chop.actions.doctor import OK, OPTIONAL, _integer_products, _part, examine
from chop.kernels.cpu import build, int8


def test_doctor_finds_what_is_here():
    findings = {finding.what: finding for finding in examine()}
    assert findings["torch"].detail == torch.__version__
    assert findings["python"].state == findings["import chop"].state == OK
    assert not any(finding.is_fatal for finding in findings.values())
    assert "pip install -e '.[gguf]'" in findings["gguf"].detail or findings["gguf"].state == OK


def test_a_program_of_the_system_serves_as_the_optional_part(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _part("place", "chop emit --place", ["absent-package"]).state == OPTIONAL
    program = tmp_path / "nextpnr-ecp5"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    found = _part("place", "chop emit --place", ["absent-package"])
    assert (found.state, found.detail) == (OK, str(program))


def test_products_are_not_to_be_tuned_where_one_implementation_runs(monkeypatch):
    monkeypatch.setattr(int8, "is_exact", lambda: False)
    monkeypatch.setattr(build, "library", lambda: build.Build(object(), ""))
    assert "oneDNN is not exact on this processor" in _integer_products().detail
    monkeypatch.setattr(build, "library", lambda: build.Build(None, "no compiler"))
    assert _integer_products().state == OPTIONAL


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
