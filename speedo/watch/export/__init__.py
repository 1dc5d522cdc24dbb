"""What a run writes for other tools: TensorBoard, Prometheus, and the tools that read Caffe's log. A file for each.

A file that declares `EXPORT` is found here, with its options.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, create_model

from caffenets.declared import declared_in
from speedo.system.bounds import Option
from speedo.watch.export.base import RECORDS, Export

Options = TypeVar("Options", bound=BaseModel)

EXPORTS: Final[tuple[Export, ...]] = tuple(declared_in(__name__, "EXPORT"))


def with_exports(model: type[Options]) -> type[Options]:
    """A model that also has the options of all exporters."""
    fields: dict[str, Any] = {}
    for export in EXPORTS:
        for name, own in export.own.items():
            declared = replace(own.option, group=RECORDS)
            fields[name] = (Annotated[own.kind, declared], own.default)
    return create_model(model.__name__, __base__=model, **fields)


def places() -> dict[str, Option]:
    """The options of exporters that name a file or an address."""
    own = [pair for export in EXPORTS for pair in export.own.items()]
    return {name: one.option for name, one in own if one.option.place}
