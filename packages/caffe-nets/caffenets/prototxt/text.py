"""Reads and writes Caffe's protobuf text, with errors that name file, line and remedy."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from google.protobuf import text_encoding, text_format
from google.protobuf.descriptor import FieldDescriptor

from caffenets import files
from caffenets.errors import SolverError
from caffenets.prototxt.dialect import caffes_text, with_fields
from caffenets.prototxt.forks import (
    REPEATED,
    about_field,
    changes_the_net,
    in_bvlcs_words,
    is_of_another,
    kept_as,
)

_PLACE: Final = re.compile(r"^(\d+):(\d+) : (.*)$", re.DOTALL)
_FIELD: Final = re.compile(r'Message type "([\w.]+)" has no field named "(\w+)"')
_ENUM: Final = re.compile(r'Enum type "([\w.]+)" has no value named (\S*?)\.?$')
_NUMBER: Final = re.compile(r": (?:Value out of range|Couldn't parse integer): (-?[\w.+-]+)$")
_ITS_FIELD: Final = re.compile(r"(\w{1,100})\s{0,100}:\s{0,100}\Z")
_MOST_PARSED_BYTES: Final = 25 << 20  # by all passes over unknown fields: some seconds
_PASS_BYTES: Final = 20_000  # in whose time a sentence is made about a field
_TWICE: Final = re.compile(r'Message type "([\w.]+)" should not have multiple "(\w+)" fields')
_WORD: Final = re.compile(r"\W")
_KEPT: Final = "unread"  # holds the text of a field of another Caffe
_WRITTEN: Final = re.compile(rf'^(\s*){_KEPT}: "((?:[^"\\]|\\.)*)"$', re.MULTILINE)
_TYPO: Final = 0.76  # of difflib, from 0 to 1; below it words have little in common
_TAKE_OUT: Final = ": take it out (--ignore-unknown leaves such fields out)"
_INTEGERS: Final = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest known word, or nothing."""
    names = {_own_part(name): name for name in known}
    close = difflib.get_close_matches(_own_part(word), list(names), n=1, cutoff=_TYPO)
    return f"; did you mean {names[close[0]]!r}?" if close else ""


def _own_part(word: str) -> str:
    """What tells a name from others: half of `warp_ctc_param` is in every layer's parameter."""
    return re.sub(r"_par\w*$", "", word.lower())


def read_text(path: Path, message: Any, left_out: list[str] | None = None) -> None:
    """Parse the file into `message`; raises `SolverError` with file, line and a suggestion.

    A field that BVLC's Caffe has under another name is read as that. Other fields of other Caffes are kept as text
    (`unread` in caffe.proto), which `to_text` writes as it was. With a list `left_out` fields that no Caffe is known to
    have are no error: each is left out, and a sentence about it is added to the list; so is one without effect where
    `message` cannot keep it.
    """
    try:
        text = caffes_text(path)
    except OSError as error:
        remedy = "correct the path or its permissions"
        if error.errno == errno.EFBIG:
            remedy = "give the text of a net, without its weights"
        raise SolverError(
            f"{path}: cannot be read ({error.strerror or error}): {remedy}"
        ) from error
    parsed = 0
    while True:
        parsed += len(text) // 2 + _PASS_BYTES  # up to the field, on average
        try:
            text_format.Parse(text, message)
            return
        except text_format.ParseError as error:
            said = f"{path}{_explain(str(error), message)}"
            if parsed > _MOST_PARSED_BYTES:
                raise SolverError(f"{said}; so are too many fields") from error
            text = _in_known_words(text, str(error), message, said, left_out)


def parse_text(text: str, message: Any) -> Any:
    """Parse text that was written by `to_text`; returns `message`."""
    while True:
        try:
            return text_format.Parse(text, message)
        except text_format.ParseError as error:
            text = _in_known_words(text, str(error), message, str(error), None)


def _in_known_words(
    text: str, error: str, message: Any, explained: str, left_out: list[str] | None
) -> str:
    """The text without this error of protobuf's; raises `SolverError` with `explained`. Clears `message`."""
    place, unknown, value = _PLACE.match(error), _FIELD.search(error), _ENUM.search(error)
    twice = _TWICE.search(error)
    found = unknown or value or twice
    if place is None or found is None:
        raise SolverError(explained)
    owner = found[1].rpartition(".")[0] if value else found[1]
    try:
        keeps = _KEPT in message.DESCRIPTOR.file.pool.FindMessageTypeByName(owner).fields_by_name
    except KeyError:  # an enum of no message
        keeps = False
    owner = owner.rpartition(".")[2]
    is_read = False

    def instead(said: str, kind: str) -> str | None:
        nonlocal is_read
        name, _, word = (one.strip() for one in said.partition(":"))
        name = _WORD.split(name)[0]
        if unknown and name != unknown[2]:  # what is there is not the text of a field
            return None
        new = in_bvlcs_words(owner, name, word) if unknown else ""
        if twice:
            is_known = f"{owner}.{name}" in REPEATED
        else:
            is_known = is_of_another(owner, name, kind if unknown else word, not unknown)
        if not new and keeps and is_known:
            new = kept_as(owner, name, word, re.sub(r"[ \t]*\n[ \t]*", " ", said))
        is_read |= bool(new)
        return new or None

    line, column = int(place[1]), int(place[2])
    changed = with_fields(text, line, column, instead, every=not twice)
    if not is_read:
        if left_out is None or not unknown:
            raise SolverError(explained)
        if changes_the_net(owner, unknown[2]):
            raise SolverError(
                f"{explained}; --ignore-unknown does not leave it out, because it changes what the net computes"
            )
        left_out.append(explained)

        def left(said: str, kind: str) -> str | None:
            return "" if _WORD.split(said)[0] == unknown[2] else None

        changed = with_fields(text, line, column, left, every=False)
        if changed == text:
            raise SolverError(explained)
    message.Clear()
    return changed


def set_field(message: Any, field: str, value: Any) -> None:
    """Set a field; raises `SolverError` for a value that Caffe's definition of it cannot hold."""
    try:
        setattr(message, field, value)
    except (ValueError, TypeError):
        kind = type(message).__name__
        raise SolverError(
            f"{field} is {value!a}, which {kind} in caffe.proto cannot hold: use a value of its type and range"
        ) from None


def to_text(message: Any) -> str:
    """The message as text that Caffe, or the other Caffe that it was written for, reads back to the same values."""
    return _WRITTEN.sub(
        lambda found: found[1] + text_encoding.CUnescape(found[2]).decode(),
        text_format.MessageToString(message),
    )


def _explain(error: str, message: Any) -> str:
    """`, line 3: ...` from protobuf's `3:1 : ...`, with the closest known name."""
    match = _PLACE.match(error)
    where, what = (f", line {match[1]}: ", match[3]) if match else (": ", error)
    pool = message.DESCRIPTOR.file.pool
    if (field := _FIELD.search(what)) is not None:
        known = pool.FindMessageTypeByName(field[1]).fields_by_name
        owner = field[1].rpartition(".")[2]
        other = about_field(owner, field[2])
        hint = f": {other}" if other else did_you_mean(field[2], known) or _TAKE_OUT
        return f"{where}{owner} has no field {_cut(field[2])!r}{hint}"
    if (value := _ENUM.search(what)) is not None:
        known = pool.FindEnumTypeByName(value[1]).values_by_name
        word = value[2].strip("\"'")
        hint = "; leave the quotes out" if word != value[2] else did_you_mean(word, known)
        return f"{where}{_cut(word)!r} is not one of {', '.join(known)}{hint}"
    if (number := _NUMBER.search(what)) is not None:
        before = what[: what.find(number[1])][-300:]
        field_name = one[1] if (one := _ITS_FIELD.search(before)) else "a number"
        if problem := _whole(number[1]):
            return f"{where}{field_name} is {_cut(number[1])}: {problem}"
        bound = _bound(field_name, message)
        return f"{where}{field_name} is {_cut(number[1])}{bound or ', too far: use a smaller one'}"
    return f"{where}{_cut(' '.join(what.split())).rstrip('.')}: correct the text there"


def _whole(number: str) -> str:
    """What to write instead of a text that is no integer; nothing for one that is too large."""
    try:
        int(number, 0)
        return ""
    except ValueError:
        pass
    try:
        whole = int(float(number))
    except (ValueError, OverflowError):
        return "use a whole number"
    same = f"write {whole}" if whole == float(number) else "use one"
    return f"Caffe reads a whole number there only without point and exponent: {same}"


def _bound(field: str, message: Any) -> str:
    """The bounds of a field of this name, in any message of the file."""
    kinds = {
        _INTEGERS[found.type]
        for kind in message.DESCRIPTOR.file.message_types_by_name.values()
        if (found := kind.fields_by_name.get(field)) is not None and found.type in _INTEGERS
    }
    if len(kinds) != 1:
        return ""
    least, most = kinds.pop()
    return f", but {field} holds {least} to {most}: use one of these"


def _cut(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:190]}..."


def line_of_layer(file: str, name: str) -> str:
    """`, line 12` where this file names the layer; empty where that is not found."""
    try:
        text = files.read_bytes(Path(file), files.MOST_TEXT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    found = re.search(rf"""\bname\s*:\s*(["']){re.escape(name)}\1""", text)
    return "" if found is None else f", line {text.count(chr(10), 0, found.start()) + 1}"
