import pytest

from chop.kernels.cpu import build


@pytest.fixture(scope="module")
def loops():
    """The C++ library, compiled and loaded, so that small tensors go to it too."""
    if not build.library().library:
        pytest.skip(build.library().detail)
    return build.library().library
