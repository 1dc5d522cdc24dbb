"""Reading options of a LayerParameter, whichever generated module its class comes from."""

from __future__ import annotations

from typing import Any


def choice(message: Any, field: str) -> str:
    """The name of the enum value that `field` of `message` has, "PROD" for example."""
    return choice_of(message, field, getattr(message, field))


def choice_of(message: Any, field: str, value: int) -> str:
    """The name of one of the values that a repeated enum field has."""
    values = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number
    return str(values[value].name)
