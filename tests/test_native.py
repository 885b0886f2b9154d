import ctypes

import pytest

from chop.native import Sources, compiler


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
def test_sources_of_one_name_in_different_folders_are_all_in_the_library(tmp_path, monkeypatch):
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path / "cache"))
    files = []
    for number, folder in enumerate(("cpu", "cuda"), start=1):
        files.append(tmp_path / folder / "kernel.cpp")
        files[-1].parent.mkdir()
        files[-1].write_text(f'extern "C" int {folder}() {{ return {number}; }}\n')
    library = ctypes.CDLL(str(Sources("twins", tuple(files)).compiled(compiler(), ("-fPIC",))))
    assert (library.cpu(), library.cuda()) == (1, 2)
