"""Records: small values that are made for every message, and never changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

Record = TypeVar("Record")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(kind: type[Record]) -> type[Record]:
    """As `dataclass(frozen=True, slots=True)`, in a fifth of the time: an assignment is refused by mypy alone."""
    return dataclass(slots=True, unsafe_hash=True)(kind)
