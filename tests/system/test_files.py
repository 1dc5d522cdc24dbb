"""Files that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffenets.files import written_whole


def test_a_file_has_its_name_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"former")
    with written_whole(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"former"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_file_that_was_broken_off_leaves_the_former_one_and_no_part(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"former")

    def break_off() -> None:
        with written_whole(path) as file:
            file.write(b"half of it")
            raise error

    with pytest.raises(error):
        break_off()
    assert path.read_bytes() == b"former"
    assert list(tmp_path.iterdir()) == [path]
