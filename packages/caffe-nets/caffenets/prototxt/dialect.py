"""Turns the bytes of a prototxt into text that Python's protobuf reads as Caffe's does.

Caffe: io.cpp, ReadProtoFromTextFile, which is protobuf's io/tokenizer.cc. That reads any bytes in a comment and a sign
apart from its number; it refuses a byte-order mark, control characters, what is not ASCII outside quotes, and numbers
that only Python has (`+3`, `3_0`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from caffenets import files
from caffenets.errors import SolverError

_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\n\r\v\f]+)
      | (?P<comment>\#[^\n\0]*)
      | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<number>(?:0[xX][0-9a-fA-F]+|0[0-7]+|(?!0[0-9])(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?)
                   (?![A-Za-z0-9_.]))
      | (?P<number_like>[.]?[0-9][A-Za-z0-9_.]*|(?i:nan|inf|infinity)[fF]\b)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<minus>-)
      | (?P<other>[!#-&(-~])""",
    re.VERBOSE | re.DOTALL,
)
_NAMES: Final = re.compile(r"\s*[:{<]")  # what follows the name of a field
_SEPARATOR: Final = re.compile(r"(\s*)[,;]")
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_MOST_BACKSLASHES: Final = 200  # protobuf takes time by the square of their number
_ESCAPED: Final = "abfnrtv\\?'\"01234567xX"
_NOT_UTF8: Final = re.compile("[\udc80-\udcff]")  # how `surrogateescape` writes a byte


def caffes_text(path: Path) -> str:
    """The file's text, each token in its line, without comments; raises `OSError`, and `SolverError` with the line."""
    raw = files.read_bytes(path, files.MOST_TEXT_BYTES)
    if problem := _encoding(raw):
        raise SolverError(f"{path}: {problem}")
    text = raw.decode("utf-8", "surrogateescape")
    made: list[str] = []
    sign, at = "", 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        kind = "" if token is None else str(token.lastgroup)
        problem = _character(text[at]) if token is None else _refused(kind, token[0])
        if token is None or problem:
            raise SolverError(f"{path}, line {text.count(chr(10), 0, at) + 1}: {problem}")
        at = token.end()
        if kind == "minus" and not sign:  # Python's protobuf wants it beside its number
            sign = "-"
        elif kind == "space":
            made.append(token[0])
        elif kind != "comment":
            made.append(sign + token[0])
            sign = ""
    return "".join([*made, sign])


def top_fields(text: str) -> Iterator[str]:
    """The names of the fields of `caffes_text` that are in no other."""
    depth = 0
    for token in _TOKEN.finditer(text):
        found = token[0]
        if depth == 0 and token.lastgroup == "word" and _NAMES.match(text, token.end()):
            yield found
        depth += (found in ("{", "<", "[")) - (found in ("}", ">", "]"))


@dataclass(slots=True)
class _Field:
    """`path` is a number for its name and those of the fields around it, `around` the place of the innermost, or -1."""

    name: str
    path: int
    around: int
    start: int
    end: int


def with_fields(
    text: str, line: int, column: int, instead: Callable[[str, str], str | None], every: bool = True
) -> str:
    """The text of `caffes_text` with other text for the field there, and for each of its name in fields of equal names.

    `line` and `column`, counted from 1, are in its name or value. `instead` is given the field's text and the `type`
    of the layer around it; "" takes the field out, None leaves it. No line becomes another.
    """
    fields, place = _fields(text), _place(text, line, column)
    own = next((one for one in reversed(fields) if one.start <= place), None)
    if own is None:
        return text
    kinds = {one.around: text[one.start : one.end] for one in fields if one.name == "type"}

    def type_around(one: _Field) -> str:
        while one.around >= 0 and fields[one.around].name not in ("layer", "layers"):
            one = fields[one.around]
        words = re.split(r"[:\s\"']+", kinds.get(one.around, ""))
        return words[1] if len(words) > 1 else ""

    made, done = [], 0
    for one in fields:
        if one is not own and not (every and one.path == own.path):
            continue
        said = text[one.start : one.end]
        new = instead(said, type_around(one))
        if new is not None and one.start >= done:
            made += [text[done : one.start], new, "\n" * said.count("\n")]
            done = one.end
            if not new and (separator := _SEPARATOR.match(text, done)):
                made.append(separator[1])
                done = separator.end()
    return "".join([*made, text[done:]])


def _fields(text: str) -> list[_Field]:
    """All fields, in their order."""
    found: list[_Field] = []
    around: list[int] = []
    paths: dict[tuple[int, str], int] = {}
    named = last = -1  # the field that wants its value, and one whose value is a string
    for token in _TOKEN.finditer(text):
        said, kind = token[0], token.lastgroup
        if kind == "space" or said in (":", "-"):
            continue
        if said in ("}", ">", "]"):
            if around and (closed := around.pop()) >= 0:
                found[closed].end = token.end()
            named = last = -1
        elif said in ("{", "<", "["):
            around.append(named)
            named = last = -1
        elif named >= 0:
            found[named].end = token.end()
            named, last = -1, named if kind == "string" else -1
        elif kind == "string" and last >= 0:  # strings beside each other are one
            found[last].end = token.end()
        elif kind == "word" and _NAMES.match(text, token.end()):
            own = next((at for at in reversed(around) if at >= 0), -1)
            path = paths.setdefault((found[own].path if own >= 0 else -1, said), len(paths))
            named, last = len(found), -1
            found.append(_Field(said, path, own, token.start(), len(text)))
    return found


def _place(text: str, line: int, column: int) -> int:
    return sum(len(one) + 1 for one in text.split("\n")[: line - 1]) + column - 1


def _encoding(raw: bytes) -> str:
    if raw.startswith(b"\xef\xbb\xbf"):
        return "begins with a byte-order mark, which Caffe does not read: save the file as UTF-8 without it"
    if raw and (problem := files.what_instead(raw)):
        return problem
    zeros = sorted(half.count(0) for half in (raw[::2], raw[1::2]))
    if zeros[0] == 0 and zeros[1] > max(8, len(raw) / 4):  # the high bytes of what is ASCII in it
        return "is in UTF-16, which Caffe does not read: save the file as UTF-8"
    if re.search(rb"[\0-\x08\x0e-\x1f]", re.sub(rb"#[^\n\0]*", b"", raw)):
        return "is not text: give the prototxt, not a .caffemodel or a database"
    return ""


def _refused(kind: str, token: str) -> str:
    if kind == "number_like":
        return f"{token[:40]!r} is no number: correct the text there"
    if token == "+":
        return "'+' before a number is not read by Caffe: leave it out"
    if kind == "string" and _NOT_UTF8.search(token):
        return "the text in quotes is not in UTF-8: save the file as UTF-8"
    if kind == "string" and "\\" * _MOST_BACKSLASHES in token:
        return f"has {_MOST_BACKSLASHES} backslashes beside each other: leave them out"
    for escape in _ESCAPE.finditer(token) if kind == "string" else ():
        if len(escape[1]) == 1 and escape[1] not in _ESCAPED:
            return f"{token[:40]} has {escape[0]}: write two backslashes for one, or / in a path"
    return ""


def _character(character: str) -> str:
    if character in "\"'":
        return "the text in quotes does not end in this line: add the missing quote"
    shown = (
        "a byte that is not in UTF-8"
        if _NOT_UTF8.match(character)
        else f"the character {character!a}"
    )
    if character.isprintable() and not character.isascii():
        shown = f"{character!r}"
    return (
        f"{shown} is outside quotes and comments, where Caffe reads ASCII alone: write it in ASCII"
    )
