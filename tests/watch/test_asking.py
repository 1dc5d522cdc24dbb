"""What a run takes as a question: exactly four forms, whatever else comes through the socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from speedo.actors.control_answers import Control
from speedo.errors import ClusterError
from speedo.watch.control_socket import ControlServer, RunSocket


class Asked(Control):
    """The real forms, with what they would ask of the master written down."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(asked_to_stop=""), {"run": "one", "run_dir": "/run"})
        self.heard: list[tuple[Any, ...]] = []

    def _ask(self, method: str, *arguments: Any, timeout_s: float = 0.0) -> Any:
        self.heard.append((method, *arguments))
        return "done"

    def _status(self) -> dict[str, Any]:
        return {"state": self._ask("status")}


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@pytest.mark.parametrize(
    "workers", [True, False, "2", 2.0, None, [2], 0, -1, 10_001, 10**400, float("nan")], ids=repr
)
def test_workers_are_a_whole_number(workers: object) -> None:
    run = Asked()
    with pytest.raises(ClusterError, match="use a whole number from 1 to 10000"):
        run.answer({"ask": "scale", "workers": workers})
    assert run.heard == []


def test_the_questions_are_answered_and_who_it_is_without_the_master() -> None:
    run = Asked()
    assert run.answer({"ask": "known"}) == {"run": "one", "run_dir": "/run"}
    assert run.answer({"ask": "scale", "workers": 3})["workers"] == 3
    run.answer({"ask": "status"})
    run.answer({"ask": "stop"})
    assert [one[0] for one in run.heard] == ["scale", "status", "stop", "status"]


@given(
    st.dictionaries(
        st.sampled_from(["ask", "workers", "more"]), ANY_JSON | st.sampled_from(["stop", "scale"])
    )
)
def test_any_other_question_asks_nothing_of_the_master(asked: dict[str, Any]) -> None:
    run = Asked()
    right = asked in ({"ask": "stop"}, {"ask": "status"}) or (
        set(asked) == {"ask", "workers"} and asked["ask"] == "scale" and type(asked["workers"]) is int
        and 1 <= asked["workers"] <= 10_000
    )  # fmt: skip
    if right:
        run.answer(asked)
    else:
        with pytest.raises(ClusterError):
            run.answer(asked)
    assert bool(run.heard) == right


@pytest.fixture
def served(runtime: Path) -> Iterator[Path]:
    with ControlServer("one", Asked().answer):
        yield runtime / "one.sock"


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(
    st.binary(max_size=200)
    | ANY_JSON.map(lambda value: json.dumps(value).encode())
    | st.sampled_from([b"[" * 4000, b"9" * 4090, b'{"ask": "status"}\nmore', b"\xff\xfe{\x00}\x00"])
)
def test_whatever_comes_through_the_socket_has_a_line_for_an_answer(
    served: Path, line: bytes
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        connection.connect(str(served))
        connection.sendall(line + b"\n")
        said = json.loads(connection.makefile("rb").readline())
    assert set(said) <= {"answer", "error"}
    assert len(said) == 1


@pytest.mark.parametrize("answer", [[], 3, None, "x"], ids=repr)
def test_an_answer_that_is_none_is_told(runtime: Path, answer: Any) -> None:
    with (
        ControlServer("one", lambda asked: answer),
        pytest.raises(ClusterError, match="answer that cannot be read"),
    ):
        RunSocket("one", runtime).ask("status")


def test_a_bug_in_an_answer_is_not_taken_for_the_end_of_the_run(runtime: Path) -> None:
    def fail(asked: object) -> None:
        raise LookupError("a bug")

    with (
        ControlServer("one", fail),
        pytest.raises(ClusterError, match="could not answer: LookupError: a bug"),
    ):
        RunSocket("one", runtime).ask("status")
