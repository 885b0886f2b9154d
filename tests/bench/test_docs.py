import json
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "bench.md"


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(blocks) == 1
    exec(blocks[0], {})
    record = json.loads((tmp_path / "runs/bench/linear.json").read_text())
    assert [variant["name"] for variant in record["variants"]] == ["float32", "MXINT8"]
    assert record["variants"][1]["prepare_seconds"] > 0
    assert 0 < record["variants"][1]["largest_difference"] < 0.1
    assert "Times of one call (in turns" in capsys.readouterr().out
