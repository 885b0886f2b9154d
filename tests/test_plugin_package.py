"""The package of `examples/plugin`: installed, and used by commands that know nothing of it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FORMATS = "int_group:width=4,int_group:width=8"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the package as pip installs it."""
    source = tmp_path_factory.mktemp("source") / "plugin"
    shutil.copytree(ROOT / "examples" / "plugin", source)
    folder = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-compile"]
    pip = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(source)]
    subprocess.run(pip, check=True, capture_output=True, timeout=300)
    return folder


def run(*arguments, site=None, folder=None):
    """Runs a command in a process of its own, with the package or without."""
    path = os.pathsep.join(filter(None, (site and str(site), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        timeout=600,
    )


@pytest.fixture(scope="module")
def compressed(site, tmp_path_factory):
    """A model compressed in the package's format."""
    out = tmp_path_factory.mktemp("runs") / "mine"
    settings = ["--model", "mlp", "--formats", FORMATS, "--qat-epochs", 0, "--out", out]
    done = run("-m", "chop", "compress", *settings, site=site)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_its_own_tests_pass(site):
    done = run("-m", "pytest", "-p", "no:cacheprovider", ROOT / "examples/plugin/tests", site=site)
    assert done.returncode == 0 and "6 passed" in done.stdout, done.stdout


@pytest.mark.long
def test_compress_saves_a_model_in_its_format(compressed):
    out, said = compressed
    assert "saved int_group(width=" in said
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["environment"]["plugins"] == {"mypkg": "0.3"}
    assert "int_group" in (out / "report.html").read_text()


@pytest.mark.long
def test_the_checkpoint_is_read_in_a_new_process(compressed, site):
    out, _ = compressed
    read = f"MaseGraph.from_checkpoint({str(out / 'model')!r})"
    code = f"from chop import MaseGraph; print({read}.modules)"
    assert "int_group(width=" in run("-c", code, site=site).stdout
    failed = run("-c", code)
    assert (
        "is from the package mypkg 0.3, which is not installed: pip install mypkg" in failed.stderr
    )
    assert "CheckpointError" in failed.stderr


@pytest.mark.long
def test_search_takes_sampler_and_format(site, tmp_path):
    settings = ["--model", "mlp", "--sampler", "hill", "--formats", FORMATS, "--trials", 3]
    done = run(
        "-m",
        "chop",
        "search",
        "precision",
        *settings,
        "--goals",
        "accuracy",
        "--out",
        tmp_path,
        site=site,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "precision" / "best.json").read_text())
    assert "int_group" in json.dumps(rows)


@pytest.mark.long
def test_a_module_that_is_not_installed(tmp_path):
    source = (ROOT / "examples/plugin/src/mypkg/formats.py").read_text()
    (tmp_path / "mymodule.py").write_text(source)
    (tmp_path / "run.toml").write_text(
        'import = ["mymodule"]\nmodel = "mlp"\nformats = ["int_group:width=8"]\nqat_epochs = 0\n'
    )
    command = ["-m", "chop", "compress", "--config", "run.toml", "--out", "mine"]
    refused = run(*command, folder=tmp_path)
    assert refused.returncode == 2 and "--import mymodule" in " ".join(refused.stderr.split())
    done = run(*command, "--import", "mymodule", folder=tmp_path)
    assert done.returncode == 0 and "int_group(width=8)" in done.stdout, done.stderr
