"""Datum and BlobProto against expected bytes, and against Caffe's own parser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from speedo.data.wire import datum, mean_to_bytes


def test_a_datum_has_the_bytes_that_protobuf_prescribes() -> None:
    assert datum((1, 2, 300), b"\x00\xff", 7).SerializeToString().hex(" ") == (
        "08 01 10 02 18 ac 02 22 02 00 ff 28 07"
    )


def test_an_encoded_datum_carries_its_flag_and_no_sizes() -> None:
    assert (
        datum((3, 8, 8), b"png", 300, encoded=True).SerializeToString()
        == b"\x22\x03png\x28\xac\x02\x38\x01"
    )


@pytest.mark.parametrize("label", [0, 127, 128, 2**31 - 1])
def test_a_datum_reads_back_as_it_was(label: int) -> None:
    made = datum((3, 2, 2), bytes(range(12)), label)
    assert type(made).FromString(made.SerializeToString()) == made


def test_a_datum_refuses_a_negative_label() -> None:
    with pytest.raises(ValueError, match="-1 is negative"):
        datum((1, 1, 1), b"\x00", -1).SerializeToString()


def test_a_mean_has_the_bytes_that_protobuf_prescribes() -> None:
    """Four sizes, then the values as one packed list of little-endian floats."""
    mean = np.array([1.0, 255.0], np.float32).reshape(1, 1, 2)
    assert mean_to_bytes(mean).hex(" ") == ("08 01 10 01 18 01 20 02 2a 08 00 00 80 3f 00 00 7f 43")


@pytest.mark.caffe
def test_caffe_parses_the_same_fields(caffe_pb2: Any) -> None:
    data = bytes(range(256)) * 3
    read = caffe_pb2.Datum.FromString(datum((3, 16, 16), data, 300).SerializeToString())
    assert (read.channels, read.height, read.width, read.label) == (3, 16, 16, 300)
    assert read.data == data
    assert not read.encoded
    assert caffe_pb2.Datum.FromString(
        datum((3, 4, 4), b"x", 1, encoded=True).SerializeToString()
    ).encoded
    mean = np.linspace(0, 255, 24, dtype=np.float32).reshape(2, 3, 4)
    blob = caffe_pb2.BlobProto.FromString(mean_to_bytes(mean))
    assert (blob.num, blob.channels, blob.height, blob.width) == (1, 2, 3, 4)
    assert np.array_equal(np.array(blob.data, np.float32), mean.ravel())
