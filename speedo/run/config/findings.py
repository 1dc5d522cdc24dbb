"""Says what pydantic finds wrong with options in the form that all our messages have."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from speedo.system.bounds import said


def sentence(
    detail: dict[str, Any],
    origins: Mapping[str, str],
    options: Iterable[str],
    options_of_phases: Iterable[str],
) -> str:
    """One of pydantic's errors in our form: name, value, remedy.

    `origins` says of options where they were given, if that was not the command line; the rest are all that there are.
    """
    place = [str(part) for part in detail["loc"]] or ["it"]
    in_phase = place[0] == "phases" and len(place) > 1
    name = f"phase {int(place[1]) + 1}" if in_phase else place[0]
    if in_phase and len(place) > 2:
        name += f": {place[2]}"
    name += origins.get(place[0], "")
    kind, value = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        known = list(options_of_phases if in_phase else options)
        close = difflib.get_close_matches(place[-1], known, n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; known are {', '.join(sorted(known))}"
        return f"{name} is no option{hint}"
    if kind == "literal_error":
        return f"{name} is {said(value)}; use one of {detail['ctx']['expected']}"
    if kind == "missing":
        return f"{name} is missing; give it"
    remedy = next((words for start, words in _REMEDIES.items() if kind.startswith(start)), None)
    return f"{name} is {said(value)}; {remedy.format(**detail.get('ctx', {})) if remedy else detail['msg']}"


# Kinds of pydantic's findings, by how their names begin.
_REMEDIES: Final = {
    "int": "use a whole number",
    "float": "use a number",
    "bool": "use true or false",
    "path": "use a path",
    "string_pattern": "use letters, digits, dots and dashes",
    "string": "use text",
    "greater_than_equal": "use {ge} or more",
    "less_than_equal": "use at most {le}",
    "list": "use a list",
    "tuple": "use a list of phases, each with mode and iterations",
    "model_type": "use a mapping, as in host: node1",
    "model": "use a phase with mode and iterations",
}
