"""Kernels under the sanitizers of addresses and of undefined behavior."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chop.base import native
from chop.kernels.cpu import build

FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")
NAMES = ("packed", "int8", "lowest", "lsq", "offsets", "searches", "steps")
TESTS = [f"test_{name}.py" for name in NAMES]
OWN_LOOPS = "not instruction_set and not whole_numbers"
"""What compiles loops of its own has had them in other settings."""
RUN = """
import sys
import pytest
from chop.kernels.cpu import build
build.FLAGS = (*build.FLAGS, *{flags})
assert build.library().library is not None, build.library().detail
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-x", "-k", "{chosen}", *{tests}]))
"""


def sanitizer(name):
    """Where the compiler has the library of a sanitizer; None where it has not."""
    command = [native.compiler(), f"-print-file-name={name}"]
    path = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    return path.resolve() if path.is_absolute() else None


@pytest.mark.long
@pytest.mark.parametrize("instructions", ["", *build.known_sets()[1:], build.BASELINE])
def test_sanitizers_find_nothing(instructions, tmp_path, loops):
    libraries = [sanitizer(name) for name in ("libasan.so", "libubsan.so")]
    if None in libraries:
        pytest.skip("this compiler has no sanitizers")
    tests = [str(Path(__file__).with_name(name)) for name in TESTS]
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(map(str, libraries)),
        # Python itself leaves memory behind.
        "ASAN_OPTIONS": "detect_leaks=0",
        "CHOP_CACHE": str(tmp_path),
        build.SWITCH: instructions,
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(flags=FLAGS, tests=tests, chosen=OWN_LOOPS)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.long
def test_sanitizers_would_find_what_is_beyond_memory(tmp_path, loops):
    library = sanitizer("libasan.so")
    if library is None:
        pytest.skip("this compiler has no sanitizers")
    source = tmp_path / "beyond.cpp"
    source.write_text('extern "C" int beyond(int n) { int* x = new int[n]; return x[n]; }')
    shared = tmp_path / "beyond.so"
    command = [native.compiler(), "-shared", "-fPIC", *FLAGS, str(source), "-o", str(shared)]
    subprocess.run(command, check=True)
    done = subprocess.run(
        [sys.executable, "-c", f"import ctypes; ctypes.CDLL('{shared}').beyond(4)"],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0 and "heap-buffer-overflow" in done.stderr
