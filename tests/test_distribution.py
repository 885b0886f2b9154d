"""The source distribution and the wheel: PyPI accepts them, and an installation of them works."""

import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest

from tests.pages import ROOT

pytest.importorskip("build", reason="builds distributions: pip install -e '.[release]'")
pytest.importorskip("twine", reason="checks distributions: pip install -e '.[release]'")
pytestmark = pytest.mark.long


def run(*command, cwd=None):
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """The source distribution of a clean clone, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("distributions")
    run("git", "clone", "--quiet", ROOT, folder / "clone")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, folder / "clone")
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def test_pypi_accepts_them(distributions):
    run(sys.executable, "-m", "twine", "check", "--strict", *distributions)


def test_the_wheel_has_every_file_of_the_package(distributions):
    tracked = run("git", "ls-files", "src/chop", cwd=ROOT).split()
    expected = {path.removeprefix("src/") for path in tracked}
    assert expected - {*zipfile.ZipFile(distributions[1]).namelist()} == set()


def test_a_new_environment_compresses_a_model(distributions, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env/bin/python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", distributions[1])
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    # The dependencies of this environment, without the editable installation in it.
    dependencies = sysconfig.get_path("purelib")
    run(python, "-c", f"open({site + '/dependencies.pth'!r}, 'w').write({dependencies!r})")
    place = run(python, "-c", "import chop; print(chop.__file__)", cwd=tmp_path)
    assert place.startswith(site)
    settings = ("--model", "mlp", "--formats", "8.auto", "--qat-epochs", 0, "--out", "runs/small")
    run(tmp_path / "env/bin/chop", "compress", *settings, cwd=tmp_path)
    assert {"model.pt", "model.onnx", "report.html"} <= {
        path.name for path in (tmp_path / "runs/small").iterdir()
    }
