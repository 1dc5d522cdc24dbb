"""Takes weights back into a `.caffemodel` of a net that is read, and tried, by an engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from caffenets.export import weights_back
from caffenets.forms.steps import Shape
from speedo.engines.export.source import read_source
from speedo.engines.export.trial import Trials
from speedo.engines.make import EngineChoice


def import_weights(
    file: Path,
    net: Path,
    model: Path,
    *,
    shapes: Mapping[str, Shape],
    data_root: Path | None,
    choice: EngineChoice,
    scratch: Path,
    ignore_unknown: bool = False,
) -> str:
    """See `caffenets.export.weights_back.import_weights`; sizes of inputs are those of the net's records, too."""
    source = read_source(net, data_root, choice, ignore_unknown)
    trials = Trials(choice, scratch, source.origin)
    records, _ = source.records(trials, scratch)
    known = {name: array.shape for name, array in records.items()}
    said = weights_back.import_weights(
        *(file, model, source.net, lambda blobs: source.deploy(shapes, known, blobs)),
        *(trials, source.origin, scratch),
    )
    return next(said)
