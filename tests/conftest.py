"""What every test has in common: no network, one thread, fixed seeds, a cache of its own."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import random
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

# Hugging Face's libraries read their settings when they are imported, so these come first.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
# Two workers of two threads each wait for one another on two cores; commands under test inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if "CHOP_CACHE" not in os.environ:
    os.environ["CHOP_CACHE"] = tempfile.mkdtemp(prefix="chop-test-cache-")
    atexit.register(shutil.rmtree, os.environ["CHOP_CACHE"], ignore_errors=True)

import numpy as np
import pytest
import torch

from tests.connections import warn_of_open_connections

warn_of_open_connections()
torch.set_num_threads(1)
# pytest listens to loggers that do not propagate, and torch writes its trace where one listens:
# a stack and a document for each size of each capture.
logging.getLogger("torch.__trace").propagate = True
# Collections of the garbage of so many imports and graphs took a tenth of the suite's time.
gc.set_threshold(20_000, 20, 10)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Nothing that is imported with the tests is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def evenly_spread(cases: int, kept: int) -> set[int]:
    """Numbers of `kept` of the cases, the first and the last among them."""
    return {round(step * (cases - 1) / max(1, kept - 1)) for step in range(min(kept, cases))}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test that is marked `sampled(n)` all but n cases are marked `long`."""
    families: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("long"):
            families[item.nodeid.partition("[")[0]].append(item)
    for cases in families.values():
        marker = cases[0].get_closest_marker("sampled")
        kept = evenly_spread(len(cases), marker.args[0] if marker else len(cases))
        for number, case in enumerate(cases):
            if number not in kept:
                case.add_marker(pytest.mark.long)


def pytest_collection_finish() -> None:
    """What is imported by now stays: a million objects that no collection has to look at again."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        _load_kernels()
    gc.collect()
    gc.freeze()


def _load_kernels() -> None:
    """A process asks for them once: before any test that hides the compiler or the cache folder."""
    from chop.kernels.cpu import build

    found = build.library()
    if os.environ.get("CI") and found.library is None:
        raise pytest.UsageError(f"the tests need the CPU kernels: {found.detail}")


def pytest_unconfigure() -> None:
    """Libraries that count their objects find none left when the interpreter ends."""
    gc.unfreeze()


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder for all users: each session of pytest that starts closes pytest's own."""
    with tempfile.TemporaryDirectory(prefix="chop-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module", autouse=True)
def _keep_what_is_left() -> Iterator[None]:
    """What a file has imported and cached stays too: Trainer collects garbage at each start."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _options_in_messages() -> Iterator[None]:
    """Most tests of jobs read what their commands print; those of Python turn this off."""
    from chop.errors import options_in_messages

    with options_in_messages(True):
        yield


def fix_seeds() -> None:
    """Seeds every generator of random numbers that tests use."""
    random.seed(0)
    np.random.seed(0)
    # `torch.manual_seed` formats the stack for every device that is absent.
    seed = (
        torch.manual_seed
        if torch.accelerator.is_available()
        else torch.default_generator.manual_seed
    )
    seed(0)


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    fix_seeds()


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with the real data sets, for tests marked `data`; skips where there is none."""
    beside = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    folder = Path(os.environ.get("CHOP_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"needs the real data sets: '{folder}' is absent; CHOP_DATA names the folder")
    return folder


@pytest.fixture(autouse=True)
def _tools(request: pytest.FixtureRequest) -> None:
    """Skips a test marked `tools(NAME, ...)` where one is not installed; in CI it fails."""
    wanted = [tool for marker in request.node.iter_markers("tools") for tool in marker.args]
    missing = [tool for tool in wanted if shutil.which(tool) is None]
    if missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs {', '.join(missing)}")
