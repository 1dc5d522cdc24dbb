"""NumPy arrays as weights: read and changed in place, or refused with the array's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from speedo.errors import ConfigError
from speedo.exchange.vector import Blob, Layout, Vector
from speedo.worker.array_weights import ArrayWeights
from speedo.worker.weights import Weights, subtract_center

FORMS: dict[str, Callable[[Vector], np.ndarray]] = {
    "float32": lambda values: values,
    "one value": lambda values: np.array(values[0, 0]),
    "by columns": np.asfortranarray,
    "every second": lambda values: np.repeat(values, 2, axis=0)[::2],
    "float16": lambda values: values.astype(np.float16),
    "float64": lambda values: values.astype(np.float64),
    "big-endian": lambda values: values.astype(">f4"),
}


def some(*shape: int) -> Vector:
    """Values that every type holds exactly."""
    return np.random.default_rng(1).integers(-99, 99, shape).astype(np.float32)


def made() -> tuple[dict[str, np.ndarray], ArrayWeights]:
    arrays = {"last": np.arange(6, dtype=np.float32).reshape(2, 3), "first": np.ones(2)}
    return arrays, ArrayWeights(arrays)


def read(weights: Weights) -> Vector:
    out = weights.layout.zeros()
    weights.read_weights(out)
    return out


def test_the_layout_has_the_arrays_in_the_order_of_the_mapping() -> None:
    _, weights = made()
    assert weights.layout == Layout((Blob("last", (2, 3)), Blob("first", (2,))))
    assert read(weights).tolist() == [0, 1, 2, 3, 4, 5, 1, 1]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_loaded_into_an_array_is_read_from_it(form: str) -> None:
    array = FORMS[form](np.zeros((3, 4), np.float32))
    weights = ArrayWeights({"before": np.zeros(1, np.float32), "w": array})
    values = some(array.size + 1)
    values.flags.writeable = False  # as a center in shared memory
    weights.load_weights(values)
    assert read(weights).tobytes() == values.tobytes()
    assert array.astype(np.float32).tobytes("C") == values[1:].tobytes()


@pytest.mark.parametrize("form", FORMS)
def test_a_change_reaches_the_array_itself(form: str) -> None:
    array = FORMS[form](some(3, 4))
    before, seen = array.astype(np.float32).reshape(-1).copy(), []

    def change(blob: Blob, place: slice, weights: Vector) -> None:
        assert weights.dtype == np.float32
        assert weights.shape == (array.size,)
        seen.append((blob.name, place))
        weights *= 2

    ArrayWeights({"w": array}).change_weights(change)
    assert seen == [("w", slice(0, array.size))]
    np.testing.assert_array_equal(array.astype(np.float32).reshape(-1), before * 2)


def test_float64_keeps_its_precision_where_nothing_changes_in_float32() -> None:
    array = np.array([0.1, 0.2, 0.3])
    weights = ArrayWeights({"w": array})
    weights.load_weights(read(weights))
    assert array.tolist() == [0.1, 0.2, 0.3]

    def change(blob: Blob, place: slice, weights: Vector) -> None:
        weights[1] = 5

    weights.change_weights(change)
    assert array.tolist() == [0.1, 5.0, 0.3]


def test_only_deltas_of_moving_averages_stay_values() -> None:
    weights = ArrayWeights({name: np.array([5], np.float32) for name in ("w", "sum", "mean")})
    weights.layout = Layout(
        (Blob("w", (1,)), Blob("sum", (1,), True), Blob("mean", (1,), True, True))
    )
    memory = np.array([1, 2, 3], np.float32)
    subtract_center(weights, memory)
    assert memory.tolist() == [4, 3, 5]
    assert read(weights).tolist() == [5, 5, 5]


def read_only() -> np.ndarray:
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.arange(3), "'w' has the type int64: .*leave it out"),
        (np.array([True]), "'w' has the type bool: .*leave it out"),
        (np.array([1j]), "'w' has the type complex128: .*leave it out"),
        (np.array(["a", None]), "'w' has the type object: .*leave it out"),
        (np.ones(3, np.longdouble), "'w' has the type float128: .*leave it out"),
        (read_only(), "'w' is read-only: give a copy"),
        (np.ones((0, 3), np.float32), "'w' has no values: leave it out"),
        ([1.0, 2.0], "'w' is a list: give the NumPy array"),
    ],
)
def test_an_array_that_cannot_be_averaged_is_refused_by_its_name(array: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ArrayWeights({"good": np.ones(2), "w": array})


def test_no_array_and_names_that_are_no_text_are_refused() -> None:
    with pytest.raises(ConfigError, match="no array to train: give at least one"):
        ArrayWeights({})
    with pytest.raises(ConfigError, match="array 0 has a name that is no text: use a str"):
        ArrayWeights({0: np.ones(2)})  # type: ignore[dict-item]


def test_shared_memory_is_refused_and_views_beside_each_other_are_not() -> None:
    array = np.arange(8, dtype=np.float32)
    with pytest.raises(ConfigError, match="arrays 'all' and 'end' share memory: give it once"):
        ArrayWeights({"all": array, "end": array[6:]})
    weights = ArrayWeights({"even": array[::2], "odd": array[1::2]})
    assert read(weights).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
