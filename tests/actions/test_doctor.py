"""What `chop doctor` finds."""

import subprocess
import sys

import pytest
import torch

from chop.actions.doctor import OK, examine


def test_doctor_finds_what_is_here():
    findings = {finding.what: finding for finding in examine()}
    assert findings["torch"].detail == torch.__version__
    assert findings["python"].state == findings["import chop"].state == OK
    assert not any(finding.is_fatal for finding in findings.values())
    assert "pip install -e '.[gguf]'" in findings["gguf"].detail or findings["gguf"].state == OK


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
