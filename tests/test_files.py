import pytest

from chop.files import replacing, write_text


def test_a_file_appears_only_when_it_is_whole(tmp_path):
    path = tmp_path / "new" / "table.md"
    write_text(path, "first")
    assert path.read_text() == "first"
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "first"
    assert [file.name for file in path.parent.iterdir()] == ["table.md"]
