"""Scores its share of the batches of test nets in a process of its own, for one model after another.

`python -m speedo.study.scoring.scoring_process` reads one line of JSON, builds the nets, and then reads the path of a
model a line. It answers the records of each batch, and at the end the sums. It ends when its input ends.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from google.protobuf import text_format

from speedo.engines.caffe_import import is_cpu_only, load_caffe
from speedo.engines.child import problems_told, tell
from speedo.engines.evaluation import Part, PartOfTest, TestNets
from speedo.engines.make import EngineChoice, prepare_process
from speedo.engines.python_layers import import_python_layers
from speedo.engines.weights_check import caffe_blobs, load_to_score

BATCH: Final = "speedo-batch: "  # its records
SCORED: Final = "speedo-scored: "


class _Scorer(Protocol):
    def score(self, weights: Path, share: PartOfTest, passed: Callable[[int], None]) -> Part: ...


class _CaffeScorer:
    """The nets of one process, in Caffe."""

    def __init__(self, request: dict[str, Any], scratch: Path) -> None:
        caffe = load_caffe()
        parameter = caffe.proto.caffe_pb2.SolverParameter()
        text_format.Parse(request["nets"], parameter)
        gpu = not is_cpu_only() and parameter.solver_mode == parameter.GPU
        caffe.set_mode_gpu() if gpu else caffe.set_mode_cpu()
        folder = Path(request["folder"])
        import_python_layers(parameter, folder, request["python_layers"])
        self._nets = TestNets(
            caffe,
            list(parameter.test_net_param),
            list(parameter.test_iter),
            scratch=scratch,
            seed=int(parameter.random_seed),
        )

    def score(self, weights: Path, share: PartOfTest, passed: Callable[[int], None]) -> Part:
        return self._nets.score(
            lambda net: load_to_score(weights, *caffe_blobs(net)), share, passed
        )


def _scorer(request: dict[str, Any], scratch: Path) -> _Scorer:
    choice = EngineChoice(**request["engine"])
    prepare_process(choice)
    if choice.engine == "caffe":
        return _CaffeScorer(request, scratch)
    from speedo.engines.pytorch.scoring import Scorer

    device = choice.of_worker(request["share"][0]).device
    return Scorer(request["nets"], folder=Path(request["folder"]), device=device)


def main() -> None:
    """The child's part."""
    with tempfile.TemporaryDirectory(prefix="speedo-score-") as scratch, problems_told():
        request = json.loads(sys.stdin.readline())
        scorer = _scorer(request, Path(scratch))
        share = PartOfTest(*request["share"])
        while line := sys.stdin.readline():
            weights = Path(json.loads(line))
            tell(SCORED, scorer.score(weights, share, lambda records: tell(BATCH, records)))


if __name__ == "__main__":
    main()
