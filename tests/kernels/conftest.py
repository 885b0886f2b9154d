import pytest
import torch

from chop.kernels.cpu import build, reader


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
