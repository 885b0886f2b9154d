"""Notebooks: cells are the scripts, they run as in Jupyter, and pages show what they print."""

import ast
import base64
import json
import re
from concurrent.futures import ProcessPoolExecutor

import pytest

from docs.site import course, execute, notebook_pages, notebooks
from docs.site.notebooks import program, text
from tests import programs
from tests.pages import ROOT

SCRIPTS = notebooks.scripts()
SECONDS = 600


def notebook_of(*sources):
    return {"cells": [program(source) for source in sources], "metadata": {}}


def list_outputs(*sources):
    found, problem = execute.run("here", notebook_of(*sources))
    assert problem == ""
    return [cell["outputs"] for cell in found["cells"]]


def run_in_a_process(script):
    with ProcessPoolExecutor(1, programs.FORKS, max_tasks_per_child=1) as pool:
        name = notebooks.get_name(script)
        run = pool.submit(execute.run, name, notebooks.notebook(script))
        found, problem = run.result(SECONDS)
    assert problem == ""
    return found


def main_of(source):
    return next(each for each in source.body if getattr(each, "name", "") == "main")


def compiled(cell):
    compile(cell, "cell", "exec")  # refuses a `return` that is in no function, as Jupyter does
    return cell


def without_options(statements):
    """What statements do, but for the one that reads the options."""
    returned = (ast.Expr(s.value) if isinstance(s, ast.Return) else s for s in statements)
    return [text for text in map(ast.dump, returned) if "parse_args" not in text]


@pytest.mark.parametrize("script", SCRIPTS)
def test_cells_are_the_script(script):
    found = notebooks.notebook(script)
    assert len({cell["id"] for cell in found["cells"]}) == len(found["cells"])
    for cell in found["cells"]:
        is_code = cell["cell_type"] == "code"
        assert cell.keys() >= {"source", "metadata"} and is_code == ("outputs" in cell)
    cells = [cell["source"] for cell in found["cells"] if cell["cell_type"] == "code"]
    assert all(cell.strip() == cell for cell in cells)
    source = ast.parse((ROOT / script).read_text())
    *others, run = [each for each in source.body[1:] if each is not main_of(source)]
    assert isinstance(run, ast.If)
    made = [each for cell in cells for each in ast.parse(compiled(cell)).body]
    expected = without_options([*others, *main_of(source).body[1:]])
    assert len(expected) > 10 and without_options(made)[: len(expected)] == expected
    options = [cell for cell in cells if "parse_args" in cell]
    assert len(options) == 1 and f"runs/{notebooks.get_name(script)}" in options[0]


def test_comments_stay_above_what_they_speak_of():
    cells = [cell["source"] for cell in notebooks.notebook("examples/tutorial_1.py")["cells"]]
    assert sum(cell.startswith("# What computes the mask's bias") for cell in cells) == 1
    assert sum("# noqa" in cell for cell in cells) == 2
    shown = [cell for cell in cells if cell.startswith("Picture(")]
    assert len(shown) == 2 and not any("bert.svg" in cell for cell in shown)


def test_a_script_with_two_readers_of_options_is_refused(monkeypatch, tmp_path):
    (tmp_path / "examples").mkdir()
    path = tmp_path / "examples/lab_1.py"
    path.write_text((ROOT / "examples/lab_1.py").read_text() + "\nargs.parse_args()\n")
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    with pytest.raises(ValueError, match=re.escape("lab_1.py has 2 calls of parse_args()")):
        notebooks.notebook("examples/lab_1.py")


def test_cells_print_and_show_in_order():
    shown = (
        "class Shown:\n    def _repr_svg_(self):\n        return '<svg/>'\n    _repr_html_ = None"
    )
    first, last, both, none = list_outputs(
        f"print(1)\n{shown}", "Shown()", "print(2)\ndisplay(b'')\nprint(3)", "value = 4"
    )
    assert first == [{"output_type": "stream", "name": "stdout", "text": "1\n"}]
    assert last[0]["data"]["image/svg+xml"] == "<svg/>" and last[0]["execution_count"] == 2
    assert "text/html" not in last[0]["data"]
    assert [each["output_type"] for each in both] == ["stream", "display_data", "stream"]
    assert both[1]["data"] == {"text/plain": "b''"} and none == []
    assert list_outputs('X = 1\n"""One."""', "print(X);", "X;") == [[], [*first], []]


def test_cells_share_a_main_that_pickle_finds():
    sources = ("class Net:\n    pass", "import pickle\nnet = pickle.loads(pickle.dumps(Net()))")
    ((), (), (shown,)) = map(tuple, list_outputs(*sources, "__name__, type(net) is Net"))
    assert shown["data"]["text/plain"] == "('__main__', True)"


def test_a_notebook_stays_as_it_is_and_a_failing_cell_is_told():
    given = notebook_of("x = 1", "def f():\n    return 1 / 0", "f()")
    before = json.dumps(given)
    found, problem = execute.run("here", given)
    assert found == "" and json.dumps(given) == before
    assert "<here 2>" in problem and "return 1 / 0" in problem and "ZeroDivision" in problem
    _, problem = execute.run("here", notebook_of("import sys", "sys.exit('more trials')"))
    assert "SystemExit: more trials" in problem


def test_what_is_not_there_is_told_and_what_ran_is_kept(tmp_path, monkeypatch, capsys):
    ran = []

    def run_all(given):
        ran.append([*given])
        for name, notebook in given.items():
            yield "needs verilator" if name == "circuit" else {**notebook, "ran": True}

    monkeypatch.setattr(execute, "_run_all", run_all)
    given = {"a": notebook_of("1"), "circuit": notebook_of("2")}
    assert execute.executed(given, tmp_path)["a"]["ran"]
    assert "skipped: outputs of circuit: needs verilator" in capsys.readouterr().out
    assert [*execute.executed(given, tmp_path)] == ["a"]
    execute.executed({"a": notebook_of("3")}, tmp_path)
    assert ran == [["a", "circuit"], ["circuit"], ["a"]]
    assert len([*tmp_path.iterdir()]) == 1


def test_notebooks_run_again_where_any_source_of_chop_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(execute.chop, "__file__", str(tmp_path / "__init__.py"))
    found = []
    for name, source in (("a.py", "1"), ("rtl/a.sv", "1"), ("rtl/a.sv", "2"), ("site/a.html", "1")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
        found.append(execute._fingerprint_of_package())
    assert len({*found}) == 3 and found[2] == found[3]  # the site is made of them


def test_an_unavailable_tool_is_no_failure():
    source = "from chop.errors import UnavailableError\nraise UnavailableError('needs verilator')"
    assert execute.run("here", notebook_of(source)) == ("needs verilator", "")


def test_a_page_has_outputs_figures_and_the_file(monkeypatch):
    long = "\n".join(map(str, range(100)))
    shown = {"text/plain": "Picture('runs/a.svg')", "image/svg+xml": "<svg/>"}
    dot = {"text/plain": "Picture('b.png')", "image/png": base64.b64encode(b"\x89PNG").decode()}
    html = {"text/plain": "[]", "text/html": "<h3>a</h3>\n\n<p>b</p>"}
    made = notebook_of("1", "2")
    made["metadata"] = {"chop": {"seconds": 12.4}}
    made["cells"][0]["outputs"] = [
        {"output_type": "stream", "name": "stdout", "text": "few\n"},
        {"output_type": "stream", "name": "stdout", "text": long},
        *({"output_type": "display_data", "data": data} for data in (shown, dot, html)),
    ]
    made["cells"].insert(0, text("# Lab 1"))
    pages = notebook_pages.pages(course.page_of_scripts(), {"lab_1": made})
    folder = notebooks.FOLDER
    page = pages[f"{folder}/lab_1.md"]
    assert (
        page.startswith("# Lab 1\n\nThis notebook is made from `examples/lab_1.py`")
        and "took 12 seconds on one core" in page
    )
    assert "(../lab-1.md)" in page and ":class: output\n\nfew\n```" in page
    assert "<summary>100 lines are printed</summary>" in page
    assert "![Picture runs/a.svg ](lab_1-1.svg)" in page and "(lab_1-2.png)" in page
    assert pages[f"{folder}/lab_1-1.svg"] == "<svg/>"
    assert pages[f"{folder}/lab_1-2.png"] == b"\x89PNG"
    assert "<div class='shown'>\n<h3>a</h3>\n\n<p>b</p>\n</div>\n```" in page
    assert json.loads(pages[f"{folder}/lab_1.ipynb"]) == made
    assert "Its cells have not been run" in pages[f"{folder}/tutorial_10.md"]
    assert "(../language-models.md)" in pages[f"{folder}/tutorial_10.md"]


def test_every_script_has_a_notebook_that_its_page_links():
    assert len(SCRIPTS) == 14
    made = course.pages()
    for script, page in course.page_of_scripts().items():
        link = f"(notebooks/{notebooks.get_name(script)}.md)"
        assert link in made[f"{course.FOLDER}/{page}.md"]
    assert {*course.page_of_scripts()} == {*SCRIPTS}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.tools("verilator", "iverilog", "yosys", "c++")
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_notebook_runs(script):
    found = run_in_a_process(script)
    cells = [cell for cell in found["cells"] if cell["cell_type"] == "code"]
    figures = [cell for cell in cells if "Picture(" in cell["source"]]
    for cell in figures:
        kinds = {kind for each in cell["outputs"] for kind in each["data"]}
        assert kinds & {*notebook_pages.SUFFIX}, cell["source"]
    assert any(cell["outputs"] for cell in cells)
    assert found["metadata"]["chop"]["seconds"] > 0


def test_backticks_of_an_output_do_not_end_its_block():
    output = {"output_type": "stream", "name": "stdout", "text": "a\n```\n````b"}
    cell = {"cell_type": "code", "source": "1", "outputs": [output]}
    _, shown = notebook_pages._parts(cell, "n", {})
    assert shown.startswith("`````{code-block} text") and shown.endswith("\n````b\n`````")
