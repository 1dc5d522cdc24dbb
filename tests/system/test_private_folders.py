from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from speedo.errors import ConfigError
from speedo.system.private_folders import make_private_folder, unsafe


def test_a_private_folder_is_its_owners_alone_whatever_the_mask(tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        made = make_private_folder("speedo-", tmp_path)
    finally:
        os.umask(former)
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o702])
def test_a_place_where_others_could_replace_the_folder_is_refused(
    tmp_path: Path, mode: int
) -> None:
    """Also one that lies further above."""
    open_one = tmp_path / "open"
    open_one.mkdir()
    inner = open_one / "inner"
    inner.mkdir(mode=0o700)
    open_one.chmod(mode)
    for place in (open_one, inner):
        with pytest.raises(
            ConfigError,
            match=r"every user can rename its content.*chmod \+t .*/open, or set TMPDIR",
        ):
            make_private_folder("speedo-", place)
    open_one.chmod(mode | stat.S_ISVTX)
    assert unsafe(inner) is None
    assert make_private_folder("speedo-", inner).parent == inner


def test_a_place_that_is_not_there_is_told_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set TMPDIR to a folder that has room"):
        make_private_folder("speedo-", tmp_path / "gone")


def test_a_link_to_an_unsafe_place_is_no_way_around(tmp_path: Path) -> None:
    open_one = tmp_path / "open"
    open_one.mkdir()
    open_one.chmod(0o777)
    (tmp_path / "link").symlink_to(open_one)
    with pytest.raises(ConfigError, match="not safe for private files"):
        make_private_folder("speedo-", tmp_path / "link")
