"""Reading and writing Caffe's protobuf text, with errors that name file, line and remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from google.protobuf import text_format

from speedo.engines.caffe_import import load_caffe
from speedo.errors import SolverError

_PLACE: Final = re.compile(r"^(\d+):(\d+) : (.*)$", re.DOTALL)
_FIELD: Final = re.compile(r'Message type "([\w.]+)" has no field named "(\w+)"')
_ENUM: Final = re.compile(r'Enum type "([\w.]+)" has no value named (\w+)')


def caffe_proto() -> Any:
    """Caffe's generated module `caffe_pb2`; the first call imports pycaffe."""
    return load_caffe().proto.caffe_pb2


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest known word, or nothing."""
    names = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), list(names), n=1, cutoff=0.6)
    return f"; did you mean {names[close[0]]!r}?" if close else ""


def read_text(path: Path, message: Any) -> None:
    """Parse the file into `message`; raises `SolverError` with file, line and a suggestion."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SolverError(
            f"{path}: cannot be read ({error.strerror or error}): correct the path or its permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise SolverError(
            f"{path}: is not text: give the prototxt, not a .caffemodel or a database"
        ) from error
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise SolverError(f"{path}{_explain(str(error), message)}") from error


def parse_text(text: str, message: Any) -> Any:
    """Parse text that was written by `to_text`; returns `message`."""
    text_format.Parse(text, message)
    return message


def to_text(message: Any) -> str:
    """The message as text that Caffe reads back to the same values."""
    return str(text_format.MessageToString(message))


def _explain(error: str, message: Any) -> str:
    """`, line 3: ...` from protobuf's `3:1 : ...`, with the closest known name."""
    match = _PLACE.match(error)
    where, what = (f", line {match[1]}: ", match[3]) if match else (": ", error)
    pool = message.DESCRIPTOR.file.pool
    if (field := _FIELD.search(what)) is not None:
        known = pool.FindMessageTypeByName(field[1]).fields_by_name
        owner = field[1].rpartition(".")[2]
        return f"{where}{owner} has no field {field[2]!r}{did_you_mean(field[2], known)}"
    if (value := _ENUM.search(what)) is not None:
        known = pool.FindEnumTypeByName(value[1]).values_by_name
        choice = ", ".join(known)
        return f"{where}{value[2]!r} is not one of {choice}{did_you_mean(value[2], known)}"
    return f"{where}{' '.join(what.split()).rstrip('.')}: correct the text there"
