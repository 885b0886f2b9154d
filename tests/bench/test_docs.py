"""The page on measuring: its Python makes the record that it says."""

import json

from tests.pages import ROOT, python_of

PAGE = ROOT / "docs/guide/bench.md"


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(python_of(PAGE), {})
    record = json.loads((tmp_path / "runs/bench/linear.json").read_text())
    assert [variant["name"] for variant in record["variants"]] == ["float32", "MXINT8"]
    assert record["variants"][1]["prepare_seconds"] > 0
    assert 0 < record["variants"][1]["largest_difference"] < 0.1
    assert "Times of one call (interleaved" in capsys.readouterr().out
