"""The nets of Caffe's own examples and models, from the archive that `make setup` keeps."""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from caffenets.prototxt.upgrade import upgrade_net

CACHE = Path(os.environ.get("SPEEDO_CACHE") or Path.home() / ".cache" / "speedo")
# Sizes of a record that the prototxt does not say.
SIZES = {"mnist": (1, 28, 28), "siamese": (2, 28, 28), "cifar10": (3, 32, 32)}
VECTOR = (4,)  # hdf5_classification
_LAYER = re.compile(r"^layers?\s*\{", re.MULTILINE)  # a net has some, a solver none


@cache
def archived_nets() -> dict[str, str]:
    """The text of each net in examples/ and models/ by its name below the archive's folder."""
    found = {}
    for archive in (CACHE / "source").glob("caffe_*.tar.gz"):
        with tarfile.open(archive) as files:
            for member in files:
                name = member.name.partition("/")[2] if member.name[0] == "." else member.name
                if not name.startswith(("examples/", "models/")):
                    name = name.partition("/")[2]
                if name.startswith(("examples/", "models/")) and name.endswith(".prototxt"):
                    content = files.extractfile(member)
                    assert content is not None
                    found[name] = content.read().decode()
    return {name: text for name, text in sorted(found.items()) if _LAYER.search(text)}


def parsed(text: str) -> Any:
    """The NetParameter in today's format."""
    from speedo.engines.caffe_import import load_caffe, prepare_environment

    prepare_environment(1)
    net = load_caffe().proto.caffe_pb2.NetParameter()
    text_format.Parse(text, net)
    upgrade_net(net, "the archive")
    return net


def nets() -> Iterator[Any]:
    """Names of the archive's nets, or one that says that there is no archive."""
    missing = pytest.mark.skip(reason=f"no archive of Caffe's source in {CACHE}")
    yield from list(archived_nets()) or [pytest.param("", marks=missing)]
