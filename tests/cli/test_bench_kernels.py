import json
import re

import pytest

from chop.runs import MANIFEST, read_manifest
from tests import programs


def chop(*arguments):
    return " ".join(programs.chop("bench", *arguments).split())


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "cases"),
    [
        (["softmax", "--dtype", "float16"], ["64x100-float16"]),
        (
            ["dequantize", "--format", "mxint4", "--rows", 3, "--model", "mlp"],
            ["decode-mxint4", "product-3-rows"],
        ),
    ],
    ids=lambda value: value[0],
)
def test_a_command_leaves_its_tables_plots_and_measurements(command, cases, tmp_path):
    text = chop(*command, "--quick", "--out", tmp_path)
    assert "interleaved, compared by processor time" in text
    files = {f"{case}.{kind}" for case in cases for kind in ("json", "svg")}
    files |= {"report.html", "report.json"}
    assert {file.name for file in tmp_path.iterdir()} == {"tables.md", MANIFEST, *files}
    manifest, tables = read_manifest(tmp_path), (tmp_path / "tables.md").read_text()
    assert (manifest.kind, manifest.state) == (f"bench {command[0]}", "finished")
    assert {artifact.path for artifact in manifest.artifacts} == {"tables.md", *files}
    assert manifest.command[1:3] == ("bench", command[0])
    unit = re.compile(r"\d ?(s|ms|µs|ns|[kMG]?B|bits|%)\b|%")
    for row in manifest.rows:
        numbers = [value for value in row.values() if isinstance(value, float | int)]
        assert numbers or row["table"] in ("comparisons", "why_no_cuda")
        assert not unit.search(" ".join(v for v in row.values() if isinstance(v, str)))
    assert tables.count("## ") == (2 if len(cases) == 1 else 4)
    record = json.loads((tmp_path / f"{cases[0]}.json").read_text())
    assert record["environment"]["threads"] == 1 and len(record["variants"]) >= 4
