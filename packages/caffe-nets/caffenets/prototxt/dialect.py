"""Turns the bytes of a prototxt into text that Python's protobuf reads as Caffe's does.

Caffe: io.cpp, ReadProtoFromTextFile, which is protobuf's io/tokenizer.cc. That reads any bytes in a comment and a sign
apart from its number; it refuses a byte-order mark, control characters, what is not ASCII outside quotes, and numbers
that only Python has (`+3`, `3_0`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
_SCALAR: Final = re.compile(r"\w+\s*:\s*([A-Za-z0-9_.+-]+)")
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


def value_of_field(text: str, line: int, column: int) -> str:
    """The value of the field whose name stands there in the text of `caffes_text`; empty if it is no single word."""
    found = _SCALAR.match(text, _place(text, line, column))
    return found[1] if found else ""


def with_field(text: str, line: int, column: int, instead: str) -> str:
    """The text of `caffes_text` with another field in place of the one whose name stands there; "" takes it out.

    `line` and `column` are counted from 1. No line becomes another.
    """
    start = _place(text, line, column)
    depth, at, named = 0, start, False
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            break
        found, kind = token[0], token.lastgroup
        if depth == 0 and found in "}>]" and named:
            break  # of the message around it
        at = token.end()
        depth += (found in "{<[") - (found in "}>]")
        if kind == "space" or found in ":-":
            continue
        if named and depth == 0:
            rest = text[at:].lstrip()
            if kind == "string" and rest[:1] in ("'", '"'):
                continue  # strings beside each other are one
            break
        named = True
    if separator := re.match(r"\s*[,;]", text[at:]):
        at += separator.end()
    blanks = "".join(c if c == "\n" else " " for c in text[start:at])
    return f"{text[:start]}{instead}{blanks}{text[at:]}"


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
