from dataclasses import replace

import pytest
import torch

from chop.kernels.cpu import build, crossovers, reader


@pytest.fixture(scope="module")
def loops():
    """The C++ library, compiled and loaded, so that small tensors go to it too."""
    if not build.library().library:
        pytest.skip(build.library().detail)
    return build.library().library


@pytest.fixture
def threads():
    """Sets the number of threads of torch until the test ends."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def small_ones(monkeypatch):
    """Small weights are multiplied as large ones are."""
    monkeypatch.setattr(reader, "LARGE", 1)


@pytest.fixture
def onednn_from(monkeypatch):
    """Sets the rows from which oneDNN multiplies, as on a CPU where it can, for any threads."""
    kinds = crossovers.CROSSOVERS

    def set_rows(rows):
        able = {name: replace(each, is_supported=lambda: True) for name, each in kinds.items()}
        monkeypatch.setattr(crossovers, "CROSSOVERS", able)
        keys = [(name, threads) for name in kinds for threads in range(1, 65)]
        monkeypatch.setattr(crossovers, "TABLES", {key: {2**20: rows} for key in keys})
        crossovers._fewest_rows.cache_clear()

    yield set_rows
    crossovers._fewest_rows.cache_clear()
