"""Last lines of a compression, and the ONNX file that its fastest way runs."""

import sys

import pytest

from chop import runs
from chop.actions.bench import ways
from chop.actions.compress import report as compress_results
from chop.actions.compress.job import CompressConfig, compress
from chop.base.notices import AdjustedWarning, forget_notices
from tests.workloads import untrained

QUICK = {"qat_epochs": 0, "bench_seconds": 0.01, "max_drop": 1, "force": True}


@pytest.fixture(scope="module")
def workload():
    return untrained()


@pytest.fixture
def run(workload, tmp_path, capsys):
    """Compresses; gives the result and the last lines, each as one."""

    def run(**settings):
        given = {"formats": ("8.auto",), **QUICK, **settings}
        result = compress(CompressConfig(out=tmp_path, **given), workload)
        told = capsys.readouterr().out
        ending = told[told.rindex("saved ") :].replace("\n- ", "\0- ").replace("\nPage", "\0Page")
        return result, [" ".join(line.split()) for line in ending.split("\0")]

    return run


def test_verdict_three_points_and_the_page_are_last(run, tmp_path):
    result, (verdict, files, speed, use, page) = run()
    assert verdict.startswith("saved integer 8.auto (PTQ): weights ") and "smaller (" in verdict
    assert " as model.onnx), accuracy " in verdict and " on 60 test rows against " in verdict
    assert ("x as fast at batch 1 and" in verdict) or verdict.endswith(
        "not faster than float on this machine."
    )
    assert files.startswith(f"- Files in {tmp_path}/: model.pt ") and "100.0% of the par" in files
    size = (tmp_path / "model.onnx").stat().st_size
    assert f"model.onnx {size / 1000:.1f} kB (float " in files
    # The graph has the same size in any format, so both files shrink less than the weights.
    exact, small = (
        sum(result[key][name] for name in ("model.pt", "model.mz"))
        for key in ("float_bytes", "saved_bytes")
    )
    assert (
        f"; model.pt and model.mz together are {compress_results.smaller(exact / small)}; " in files
    )
    assert speed.startswith("- Speed: ") and " in PyTorch" in speed
    assert use.startswith("- Use: MaseGraph.from_checkpoint(") and "session.x64quant" in use
    assert page == f"Page of these results: {tmp_path / 'report.html'}"
    html = (tmp_path / "report.html").read_text()
    assert "as float in the same engine" in html and "of float in PyTorch" in html
    assert "Not measured: compiled: " in (tmp_path / "table.md").read_text()


def test_where_a_format_has_no_integers_in_onnx_there_is_no_file_and_a_sentence(run, tmp_path):
    with runs.start("compress", {}, tmp_path):
        (tmp_path / "model.onnx").touch()  # of an earlier run
    result, (verdict, files, speed, use, _) = run(formats=("mxint",))
    assert result["onnx"] is None and not (tmp_path / "model.onnx").exists()
    assert result["why_no_onnx"].startswith("ONNX has no integer form of mxint")
    assert "onnx" not in verdict + files + use
    if "not faster than float" in verdict:
        assert "onnxruntime was not measured (ONNX has no integer form of mxint" in speed
        assert speed.endswith("such as 8.auto, lets onnxruntime compute in integers.")


@pytest.mark.long
def test_the_file_is_left_out_where_that_is_asked_or_nothing_is_measured(run, tmp_path):
    result, lines = run(onnx=False)
    assert result["not_measured"]["onnxruntime"] == "--no-onnx skips the file"
    assert not (tmp_path / "model.onnx").exists() and "model.onnx" not in " ".join(lines)
    result, (verdict, _, speed, *_) = run(bench_seconds=0)
    assert verdict.endswith("float, speed not measured.") and result["speed"] == []
    assert speed == "- Speed: not measured, because of --bench-seconds 0."
    assert not (tmp_path / "model.onnx").exists() and result["why_no_onnx"] == ""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_broken", [False, True])
def test_the_verdict_is_true_where_onnxruntime_cannot_be_imported(
    is_broken, run, tmp_path, tmp_path_factory, monkeypatch
):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    why = "needs onnxruntime"
    if is_broken:
        place = tmp_path_factory.mktemp("site")
        (place / "onnxruntime.py").write_text("raise ImportError('libonnx.so: no such file')")
        monkeypatch.delitem(sys.modules, "onnxruntime")
        monkeypatch.syspath_prepend(place)
        why = "libonnx.so: no such file"
    forget_notices()
    with pytest.warns(AdjustedWarning, match="onnxruntime cannot be imported .*files are not ver"):
        result, (verdict, _, speed, *_) = run()
    assert {row["model"] for row in result["speed"]} <= {*ways.COMMANDS, "float", "float graph"}
    assert why in result["not_measured"]["onnxruntime"]
    assert "onnxruntime" not in verdict and (tmp_path / "model.onnx").is_file()
    assert "onnxruntime was not measured" in speed or "no way" not in speed


@pytest.mark.sampled(1)
@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_a_package_that_is_missing_costs_the_file_and_not_the_run(
    package, run, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, package, None)
    result, (verdict, *_) = run()
    assert f"ONNX needs {package}" in result["why_no_onnx"] and "onnx" not in verdict
    assert (tmp_path / "model.pt").is_file() and not (tmp_path / "model.onnx").exists()


@pytest.mark.long
def test_a_file_that_is_asked_for_has_floats_where_onnx_lacks_formats(run, tmp_path):
    result, _ = run(formats=("mxint",), onnx=True)
    assert result["onnx"]["fallback"] and (tmp_path / "model.onnx").is_file()
    assert not any(row["model"] == "onnxruntime" for row in result["speed"])


@pytest.mark.long
def test_large_models_become_no_files_that_nobody_asked_for(run, monkeypatch, tmp_path):
    for module in (compress_results, ways):
        monkeypatch.setattr(module, "LARGEST_PEER", 100)
    result, _ = run()
    assert result["why_no_onnx"].endswith("GB; --onnx writes the file anyway")
    assert not (tmp_path / "model.onnx").exists()
    result, _ = run(onnx=True)
    (row,) = [r for r in result["speed"] if r["model"] == "onnxruntime" and r["batch"] == 1]
    assert row["times_as_fast_as_peer"] is None is row["peer"]
    assert "its weights are" in result["not_measured"]["float in onnxruntime"]
