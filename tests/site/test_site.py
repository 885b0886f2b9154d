"""The site: generated pages have every command, format, pass and error; Sphinx warns of nothing."""

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chop import errors
from chop.cli import docs as docs_command
from chop.errors import UnavailableError
from chop.passes.base import PASSES
from chop.runs import Manifest
from docs.site import api, commands, course, links, markdown, stage
from docs.site.__main__ import REPORTS
from tests.pages import ROOT

NO_SPHINX = "needs Sphinx, MyST and furo: pip install 'mase-chop[docs]'"
needs_sphinx = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("sphinx", "myst_parser", "furo"))), reason=NO_SPHINX
)


@pytest.fixture(scope="module")
def made():
    return stage.pages()


def test_every_command_has_its_options_and_defaults(made):
    found = commands.commands()
    assert {"compress", "search precision", "bench model", "docs"} <= found.keys()
    for name, (command, _) in found.items():
        page = made[f"{commands.FOLDER}/{name.replace(' ', '-')}.md"]
        spellings = [text for p in command.params for text in p.opts if text.startswith("--")]
        assert all(text in page for text in spellings), name
        assert f"[`chop {name}`]" in made["docs/guide/commands.md"]
        assert "[bold]" not in page
    page = made[f"{commands.FOLDER}/compress.md"]
    assert "\nUsage: `chop compress [OPTIONS] [RUN]`\n" in page
    assert "| `--max-drop FLOAT` |" in page and "| `0.01` |" in page
    assert "```text\nchop compress --model cnn --out runs/cnn\n" in page


def test_every_pass_and_error_has_its_place(made):
    ours = {name for name, run in PASSES.items() if run.__module__.startswith("chop.")}
    assert len(ours) > 40
    assert all(f"\n## `{name}`\n" in made[api.PASSES_PAGE] for name in ours)
    kinds = [k for k in vars(errors).values() if inspect.isclass(k) and issubclass(k, Exception)]
    page = made["docs/reference/errors.md"]
    assert len(kinds) > 10 and all(f"\n## `{kind.__name__}`\n" in page for kind in kinds)
    assert "[`chop.quantize`](python/chop.md)" in page


def test_what_programs_import_has_signature_and_text(made):
    page = made[f"{api.FOLDER}/chop.md"]
    assert "## `quantize`" in page and "```python\nquantize(\n    model: " in page
    assert "chop.workloads.workload" in api.exports() and len(api.exports()) > 30
    assert not [path for path, text in made.items() if " at 0x" in text]


def test_the_course_has_a_page_for_each_section(made):
    text = (ROOT / course.PAGE).read_text()
    titles = [title for title in course.sections(text) if title != course.DIFFER]
    assert len(titles) == 15
    for title in titles:
        page = made[f"{course.FOLDER}/{course.get_name(title)}.md"]
        assert page.startswith(f"# {title}\n") and f"## {course.DIFFER}" in page
    lab = made[f"{course.FOLDER}/lab-1.md"]
    assert "](../images/sweep-prune.svg)" in lab and "examples/lab_1.py --quick" in lab
    assert (ROOT / "examples/lab_1.py").read_text().strip() in lab


def test_every_script_of_the_course_says_how_long_its_calls_take(made):
    for script, page in course.page_of_scripts().items():
        found = course.times(script)
        assert "" in found, script
        assert ("--quick" in found) == ('"--quick"' in (ROOT / script).read_text()), script
        assert f"\n`python {script}` takes about {found['']}" in made[f"{course.FOLDER}/{page}.md"]
    lab = made[f"{course.FOLDER}/lab-3.md"]
    assert "takes about ten minutes, or two minutes with `--quick`, on one core" in lab


def test_every_page_of_the_index_is_in_the_contents(made):
    trees = re.findall(r"^/(\S+)$", made["index.md"], re.M)
    assert {"docs/index", "docs/start", "docs/reference/passes", "benchmarks/RESULTS"} <= {*trees}
    captions = re.findall(r":caption: (.*)", made["index.md"])
    assert captions == re.findall(r"^## (.*)", (ROOT / stage.INDEX).read_text(), re.M)


def test_the_first_page_is_the_readme(made):
    readme = (ROOT / stage.HOME).read_text().rstrip()
    assert made["index.md"].startswith(readme) and stage.HOME not in made
    assert made[stage.INDEX].startswith("# All pages\n") and "toctree" not in made[stage.INDEX]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a_b <c> `d_e` [f]", "a\\_b \\<c\\> `d_e` \\[f\\]"),
        ("Adds.\n\nReturns: a sum.", "Adds.\n\n**Returns**\n\na sum."),
        ("Adds.\n\nArgs:\n    a_b: one.", "Adds.\n\n**Args**\n\n- `a_b`: one."),
        (
            "Args:\n    a: settings:\n        Or a path.\n        b (list[int]): one\n"
            "            more.\n    c: three,\n        four.\n"
            "Returns:\n    a pair:\n        d: five.",
            "**Args**\n\n- `a`: settings:\n  Or a path.\n  - `b` (list\\[int\\]): one more."
            "\n- `c`: three, four.\n\n**Returns**\n\na pair:\n\n- `d`: five.",
        ),
        (">>> 1 + 1\n2", "```pycon\n>>> 1 + 1\n2\n```"),
        ("", ""),
    ],
)
def test_docstrings_are_markdown(text, shown):
    assert markdown.docstring(text) == shown


def test_cells_keep_their_bars():
    assert markdown.table(("a", "b"), [("`x|y`", "1\n2")]).endswith("| `x\\|y` | 1 2 |")


def test_links_that_lead_nowhere_and_requests_are_told(tmp_path):
    (tmp_path / "a.html").write_text(
        "<a href='b.html#x'></a><a href='#me'></a><a href='https://host/'></a><i id='me'></i>"
        "<a href='gone.html'></a><img src='data:,'><script src='https://cdn/x.js'></script>"
    )
    (tmp_path / "b.html").write_text("<a href='a.html#me'>")
    assert links.problems(tmp_path) == [
        "a.html: no heading b.html#x",
        "a.html: no file gone.html",
        "a.html: fetches https://cdn/x.js",
    ]


def test_files_of_a_run_are_those_of_the_manifest():
    text = (ROOT / "docs/run-files.md").read_text().partition("contains these keys")[2]
    rows = re.findall(r"^\| (`.*?) \|", text, re.M)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(Manifest.__dataclass_fields__)


def test_the_command_opens_the_site_or_says_how_to_make_it(tmp_path, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(docs_command, "SITE", tmp_path)
    with pytest.raises(UnavailableError, match="`make docs` in a clone"):
        docs_command.docs()
    (tmp_path / "index.html").touch()
    assert docs_command.docs(path=True) == tmp_path / "index.html" and opened == []
    docs_command.docs()
    assert opened == [(tmp_path / "index.html").as_uri()]
    assert str(tmp_path / "index.html") in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.long
@needs_sphinx
def test_the_site_is_made_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "docs.site", "--no-runs", "--out", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr
    assert links.problems(tmp_path / "site") == []


def test_pages_of_runs_lie_where_their_links_lead():
    page = stage.pages({"compress": "a model"})[stage.EXAMPLES]
    folder = Path(stage.EXAMPLES).parent
    assert re.findall(r"href='([^']*)'", page) == ["reports/compress.html"]
    assert (folder / "reports").as_posix() == REPORTS
