"""What making the site says, and how long it says that it takes."""

import json

from docs.site import __main__ as site
from docs.site import execute, reports
from docs.site.progress import Progress, minutes


def test_times_are_announced_in_whole_minutes():
    assert [minutes(seconds) for seconds in (0, 60, 61, 400)] == [
        "1 minute",
        "1 minute",
        "2 minutes",
        "7 minutes",
    ]
    lines = []
    progress = Progress(lines.append)
    progress.announce("a site", 90)
    progress.step("pages")
    assert lines == ["building a site: about 2 minutes on two idle cores", "[0:00] pages"]


def test_kept_notebooks_take_no_time_and_older_ones_tell_theirs(tmp_path, monkeypatch):
    made = {name: {"cells": [name], "metadata": {}} for name in ("kept", "older", "new")}
    for name, seconds in (("kept", 9.0), ("older", 120.0)):
        ran = {"cells": [name], "metadata": {"chop": {"seconds": seconds}}}
        (tmp_path / f"{name}-0.ipynb").write_text(json.dumps(ran))
    (tmp_path / "kept-0.ipynb").rename(execute._files(made, tmp_path)["kept"])
    assert execute.times(made, tmp_path) == {"older": 120.0, "new": execute.SECONDS}
    monkeypatch.setattr(site, "CACHE", tmp_path)
    lines = []
    site._announce(Progress(lines.append), tmp_path / "out", made)
    (line,) = lines
    expected = site.SPHINX_SECONDS + reports.SECONDS + (120 + execute.SECONDS) / execute.PROCESSES
    assert "pages of 4 runs, 2 notebooks to run, 1 more from the cache" in line
    assert f"about {minutes(expected)}" in line
    site._announce(Progress(lines.append), tmp_path / "out", {})
    assert "notebooks to run" not in lines[1] and "about 1 minute " in lines[1]


def test_each_run_is_told_when_it_is_done(tmp_path, monkeypatch):
    def fake(command, out):
        out.mkdir(parents=True)
        (out / reports.PAGE).write_text("page")
        return out / reports.PAGE

    monkeypatch.setattr(reports, "_run", fake)
    lines = []
    assert (
        reports.made(tmp_path / "runs", tmp_path / "pages", lines.append).keys()
        == reports.RUNS.keys()
    )
    assert len(lines) == 4 and lines[0] == "run 1 of 4: chop compress, for demo.html"
