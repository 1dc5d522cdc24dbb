"""Caffe's protobuf messages for the tests marked `caffe`."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def caffe_pb2() -> Any:
    """Caffe's generated messages; the test is skipped where pycaffe is not installed."""
    return pytest.importorskip("caffe.proto.caffe_pb2")
