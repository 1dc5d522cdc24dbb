"""Another Caffe, or modules that hide ours, on PYTHONPATH: ours are imported, here and in what is started from here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from speedo.actors.ray_node.session import clean_environment

ROOT = Path(__file__).parents[2]
BROKEN = {
    "caffe/__init__.py": "from .pycaffe import Net\n",
    "caffe/pycaffe.py": "from ._caffe import Net\n",
    "google/__init__.py": "",
    "redis.py": "raise RuntimeError\n",
    "my_layers.py": "found = 'mine'\n",
}
IMPORTS = "import google.protobuf, redis, caffe, my_layers; print(my_layers.found)"
OLD_SCHEMA = """
from google.protobuf import descriptor
descriptor.FileDescriptor(name="caffe.proto", package="caffe", serialized_pb=b"\\n\\x0bcaffe.proto\\x12\\x05caffe")
descriptor.FieldDescriptor(name="a", full_name="caffe.X.a", index=0, number=1, type=5, cpp_type=1, label=1,
    has_default_value=False, default_value=0, message_type=None, enum_type=None, containing_type=None,
    is_extension=False, extension_scope=None)
"""


def folder(tmp_path: Path, **files: str) -> str:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return str(tmp_path)


def said(program: str, *path: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.caffe
@pytest.mark.parametrize("named", ["absolute", "relative", "empty"])
def test_a_command_and_its_children_import_our_packages_first_and_the_users_modules_after(
    tmp_path: Path, named: str
) -> None:
    place = {"absolute": folder(tmp_path, **BROKEN), "relative": tmp_path.name, "empty": ""}[named]
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-P', '-c', {IMPORTS!r}], "
    program = f"import speedo.cli; {IMPORTS}; {child}cwd='/', check=True)"
    where = tmp_path if named == "empty" else tmp_path.parent
    assert said(program, place, str(ROOT), cwd=where).split() == ["mine", "mine"]


@pytest.mark.processes
def test_the_order_is_kept_where_it_was_made_already(tmp_path: Path) -> None:
    program = """
import os, sys
from speedo.system.import_order import put_ours_first
put_ours_first()
once = list(sys.path), os.environ["PYTHONPATH"]
put_ours_first()
assert once == (sys.path, os.environ["PYTHONPATH"])
"""
    said(program, str(tmp_path), str(ROOT))


@pytest.mark.processes
@pytest.mark.parametrize("arguments", [["--version"], ["train", "--help"]])
def test_modules_of_the_working_folder_do_not_hide_ours(
    tmp_path: Path, arguments: list[str]
) -> None:
    folder(tmp_path, **{"click/__init__.py": "", "google/__init__.py": ""})
    done = subprocess.run(
        [sys.executable, "-m", "speedo", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_rays_processes_get_our_packages_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    _, first, *_, last = clean_environment("t")["PYTHONPATH"].split(os.pathsep)
    assert (first, last) == (str(ROOT), str(tmp_path))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("files", "cause"),
    [
        ({"caffe/__init__.py": "print 'of Python 2'\n"}, "SyntaxError: Missing parentheses"),
        (BROKEN, "No module named 'caffe._caffe'"),
        ({"caffe/__init__.py": OLD_SCHEMA}, "TypeError: Descriptors cannot be created directly"),
    ],
)  # fmt: skip
def test_a_caffe_of_the_user_that_cannot_be_imported_is_named_with_the_remedy(
    tmp_path: Path, files: dict[str, str], cause: str
) -> None:
    """Where ours is missing, theirs is imported."""
    place = folder(tmp_path, **{name: text for name, text in files.items() if "caffe" in name})
    program = """
from speedo.engines.caffe_import import load_caffe
from speedo.errors import EngineError
try:
    load_caffe()
except EngineError as error:
    print(error)
"""
    words = said(program, place, str(ROOT))
    assert words.startswith(f"pycaffe cannot be imported here ({cause}")
    assert f"): {place}/caffe/" in words
    assert f"was imported, because {place} is on PYTHONPATH: unset PYTHONPATH" in words
