"""A net from its file, in today's format, and how two nets differ."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from caffenets.checks.nets import Known, problems_of_layers
from caffenets.checks.paths import SearchPath
from caffenets.data_layers import FED_FROM_OUTSIDE, SOURCES
from caffenets.deploy import Deploy, is_whole
from caffenets.errors import EngineError, SolverError
from caffenets.host_program import caffe_schema
from caffenets.inputs import deployed
from caffenets.known_types import refusals
from caffenets.layers import LAYERS
from caffenets.prototxt.state import filter_net
from caffenets.prototxt.text import line_of_layer, read_text, to_text
from caffenets.prototxt.upgrade import upgrade_net
from caffenets.weight_files.stored import Shape

# How sentences about layers begin.
_NAMED: Final = re.compile(r"(?:layer '([^']*)'|the net) ")
MOST_LAYERS: Final = 20_000  # a ResNet of 1,001 has some 5,000


@contextmanager
def about(what: Path | str) -> Iterator[None]:
    """What is raised about a layer names this file and the line, too; too little memory is an `EngineError`."""
    try:
        yield
    except EngineError as error:
        named = _NAMED.match(str(error))
        if named is None:
            raise
        line = line_of_layer(str(what), named[1]) if named[1] else ""
        raise EngineError(f"{what}{line}: {error}") from None
    except RecursionError:
        raise EngineError(f"{what} has too many brackets within brackets: correct them") from None
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        text = "needs more memory than there is: free some, or give a smaller batch or another file"
        raise EngineError(f"{what} {text}") from None


def read_net(path: Path | str, left_out: list[str] | None = None) -> Any:
    """The NetParameter of a prototxt, upgraded as Caffe upgrades it; `left_out` is as in `read_text`.

    Raises `SolverError` with file, line and what to change.
    """
    path = Path(path)
    net = caffe_schema().NetParameter()
    read_text(path, net, left_out)
    layers = len(net.layer) + len(net.layers)
    if layers > MOST_LAYERS or not (layers or net.input):
        raise SolverError(f"{path}: has {layers:,} layers: give a net with 1 to {MOST_LAYERS:,}")
    upgrade_net(net, str(path))
    return net


def read_deploy(
    path: Path | str,
    given: Mapping[str, Shape] | None = None,
    left_out: list[str] | None = None,
    blobs: Mapping[str, Sequence[Shape]] | None = None,
) -> Deploy:
    """The deploy net of a train or test net, or the net itself if it is one; `given` are shapes of inputs by name.

    `blobs`, the shapes of the weights by layers, tell the sizes of others. Raises `SolverError`, also where the shape
    of an input has to be given.
    """
    net = computing(read_net(path, left_out), str(path))
    return deployed(net, str(path), given or {}, blobs=blobs)


def computing(net: Any, origin: str) -> Any:
    """The layers of the phase TEST, or of TRAIN where only those are whole."""
    test, train = (filter_net(net, phase, None, origin) for phase in (1, 0))
    return train if is_whole(train) and not is_whole(test) else test


def check_net(net: Any, path: Path | str, data_root: Path | None = None) -> list[str]:
    """What is wrong with a net of this file in both phases: layers, and the files and records that they name.

    Relative files are searched in the net's folder, the working directory and `data_root`.
    """
    search = search_of(path, data_root)
    refused = {kind: why for kind, why in refusals().items() if kind not in FED_FROM_OUTSIDE}
    here = [*LAYERS, *SOURCES, "DummyData"]
    known = Known({*here, *refusals()}, refused, here)
    nets = [filter_net(net, phase, None, str(path)) for phase in (0, 1)]
    # Layers of a phase without any records are those of the other one.
    fed = [one for one in nets if any(layer.top and not layer.bottom for layer in one.layer)]
    found = [problems_of_layers(one, search, str(path), known) for one in fed or nets]
    return list(dict.fromkeys(text for texts in found for text in texts))


def search_of(net: Path | str, data_root: Path | None = None) -> SearchPath:
    """Where the files that a net names are searched."""
    return SearchPath(Path(net).absolute().parent, Path.cwd(), data_root)


def net_differences(first: Any, second: Any) -> Iterator[str]:
    """Lines for people: each layer that only one of two nets has, and the fields that differ in the others.

    Layers are compared by name, whatever their order; then what the nets say beside their layers.
    """
    mine, theirs = ({layer.name: layer for layer in net.layer} for net in (first, second))
    for name, layer in mine.items():
        if name not in theirs:
            yield f"layer {name} ({layer.type}): only in the first net"
        elif layer != theirs[name]:
            yield from _changed(f"layer {name}", layer, theirs[name])
    for name, layer in theirs.items():
        if name not in mine:
            yield f"layer {name} ({layer.type}): only in the second net"
    order = [[name for name in one if name in mine and name in theirs] for one in (mine, theirs)]
    if order[0] != order[1]:
        yield "the layers that both have are in another order"
    rest = [type(net).FromString(net.SerializeToString()) for net in (first, second)]
    for net in rest:
        net.ClearField("layer")
    if rest[0] != rest[1]:
        yield from _changed("the net", *rest)


def _changed(what: str, first: Any, second: Any) -> Iterator[str]:
    lines = difflib.ndiff(to_text(first).splitlines(), to_text(second).splitlines())
    yield f"{what}:"
    yield from (f"  {line}" for line in lines if line[0] in "+-")
