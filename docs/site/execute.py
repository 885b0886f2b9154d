"""Runs notebooks without Jupyter: cells one after the other, with what they print and show."""

from __future__ import annotations

import ast
import base64
import contextlib
import copy
import hashlib
import io
import json
import linecache
import multiprocessing
import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import chop
from chop.base.files import write_text
from chop.errors import UnavailableError
from docs.site.progress import OnLine

PROCESSES = 2
SECONDS = 40.0
"""Assumed time on one core of a notebook that never ran on this machine."""
COLUMNS = "100"
"""Width of printed tables."""
RICH = {"image/svg+xml": "_repr_svg_", "image/png": "_repr_png_", "text/html": "_repr_html_"}
PRELOADED = ("torch", "transformers.trainer", "datasets", "optuna", "matplotlib.pyplot")
"""Modules that are slow to import. They are imported once for all notebooks."""
SOURCES = (".py", ".h", ".cpp", ".cu", ".cuh", ".sv", ".jinja")
"""Suffixes of the source files of chop that cells can run."""
Notebook = dict[str, Any]


def times(notebooks: Mapping[str, Notebook], cache: Path) -> dict[str, float]:
    """Estimates the seconds of one core for each notebook that has to run.

    Args:
        notebooks: the notebooks by name.
        cache: folder of executed notebooks. An older version gives the time of a changed one.
    """
    seconds = {}
    for name, file in _files(notebooks, cache).items():
        if not file.is_file():
            older = next(iter(sorted(cache.glob(f"{name}-*.ipynb"))), None)
            metadata = {} if older is None else json.loads(older.read_text())["metadata"]
            seconds[name] = metadata.get("chop", {}).get("seconds", SECONDS)
    return seconds


def _files(notebooks: Mapping[str, Notebook], cache: Path) -> dict[str, Path]:
    """Returns the cache file of each executed notebook."""
    package = _fingerprint_of_package()
    return {
        name: cache / f"{name}-{_digest(package, json.dumps(notebook))}.ipynb"
        for name, notebook in notebooks.items()
    }


def executed(
    notebooks: Mapping[str, Notebook], cache: Path, on_line: OnLine = lambda line: None
) -> dict[str, Notebook]:
    """Runs notebooks, or reads them from the cache if neither they nor chop changed.

    Args:
        notebooks: the notebooks by name.
        cache: folder of executed notebooks.
        on_line: receives a line for each executed notebook. Default: does nothing.
    Returns: the executed notebooks. Others need a tool that is not installed; a line names it.
    Raises:
        SystemExit: a cell failed.
    """
    cache.mkdir(parents=True, exist_ok=True)
    files = _files(notebooks, cache)
    missing = {name: notebooks[name] for name, file in files.items() if not file.is_file()}
    for number, (name, result) in enumerate(zip(missing, _run_all(missing), strict=True), 1):
        on_line(f"notebook {number} of {len(missing)}: {name}")
        if isinstance(result, str):
            sys.stdout.write(f"skipped: outputs of {name}: {result}\n")
            continue
        for old in cache.glob(f"{name}-*.ipynb"):
            old.unlink()
        write_text(files[name], json.dumps(result))
    return {name: json.loads(f.read_text()) for name, f in files.items() if f.is_file()}


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def _fingerprint_of_package() -> str:
    root = Path(chop.__file__).parent
    files = (path for path in sorted(root.rglob("*")) if path.suffix in SOURCES)
    return _digest(*(path.read_text() for path in files))


def _run_all(notebooks: Mapping[str, Notebook]) -> Iterator[Notebook | str]:
    """Each in a process of its own, forked from one that has imported the libraries."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([*PRELOADED])
    pool = ProcessPoolExecutor(PROCESSES, forks, max_tasks_per_child=1)
    with _environment({"COLUMNS": COLUMNS, "OMP_NUM_THREADS": "1"}), pool:
        runs = [pool.submit(run, name, notebook) for name, notebook in notebooks.items()]
        for name, run in zip(notebooks, runs, strict=True):
            result, problem = run.result()
            if problem:
                pool.shutdown(cancel_futures=True)
                raise SystemExit(f"{name}: {problem}")
            yield result


@contextlib.contextmanager
def _environment(own: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ |= own
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


def run(name: str, notebook: Notebook) -> tuple[Notebook | str, str]:
    """Runs a notebook in a new folder, by a new `__main__`; what goes to stderr is not kept.

    Args:
        name: of the notebook, for tracebacks.
        notebook: with cells that have not run; it stays as it is.
    Returns: it with outputs and, in its metadata, seconds of one core; or what is not there. And
        the traceback of a cell that failed.
    """
    made, start = copy.deepcopy(notebook), _processor_seconds()
    cells = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    with _new_folder(), _silent(), _new_main() as main:
        for number, cell in enumerate(cells, 1):
            cell["execution_count"] = number
            try:
                cell["outputs"] = _outputs(cell["source"], f"<{name} {number}>", number, main)
            except UnavailableError as error:
                return str(error), ""
            except BaseException:  # SystemExit ends a script, too
                return "", traceback.format_exc()
    made["metadata"]["chop"] = {"seconds": _processor_seconds() - start}
    return made, ""


def _processor_seconds() -> float:
    """Processor time of this process and of its ended child processes."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@contextlib.contextmanager
def _new_folder() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield


@contextlib.contextmanager
def _new_main() -> Iterator[ModuleType]:
    """A `__main__` of cells: what they define is found there, as by pickle."""
    before, main = sys.modules["__main__"], ModuleType("__main__", "Cells of a notebook.")
    sys.modules["__main__"] = main
    try:
        yield main
    finally:
        sys.modules["__main__"] = before


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Progress and messages of this process and of those that it starts go nowhere."""
    before = [os.dup(number) for number in (1, 2)]
    with Path(os.devnull).open("w") as nowhere:
        for number in (1, 2):
            os.dup2(nowhere.fileno(), number)
    try:
        yield
    finally:
        for number, old in zip((1, 2), before, strict=True):
            os.dup2(old, number)
            os.close(old)


def _outputs(source: str, file: str, number: int, main: ModuleType) -> list[dict[str, Any]]:
    """Runs a cell and returns its printed and displayed outputs in nbformat."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    tree, printed = ast.parse(source), io.StringIO()
    outputs: list[dict[str, Any]] = []

    def flush() -> None:
        if printed.getvalue():
            outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue()})
            printed.seek(0)
            printed.truncate()

    def display(value: Any) -> None:
        flush()
        outputs.append({"output_type": "display_data", "data": _bundle(value), "metadata": {}})

    vars(main)["display"] = display
    is_result = isinstance(tree.body[-1], ast.Expr) and not source.endswith(";")
    last = tree.body.pop() if is_result else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, file, "exec"), vars(main))
        value = _value(last, file, vars(main)) if isinstance(last, ast.Expr) else None
    flush()
    if value is not None:
        result = {"data": _bundle(value), "metadata": {}, "execution_count": number}
        outputs.append({"output_type": "execute_result", **result})
    return outputs


def _value(last: ast.Expr, file: str, names: dict[str, Any]) -> Any:
    return eval(compile(ast.Expression(last.value), file, "eval"), names)


def _bundle(value: Any) -> dict[str, str]:
    """A value by media type, by IPython's protocol."""
    bundle = {"text/plain": repr(value)}
    for kind, name in RICH.items():
        render: Callable[[], Any] | None = getattr(value, name, None)
        data = render() if render else None
        if data is not None:
            bundle[kind] = base64.b64encode(data).decode() if isinstance(data, bytes) else data
    return bundle
