"""Loads one solver in real Caffe and prints what it is: run as a program, for a failure aborts
Caffe."""

from __future__ import annotations

import json
import sys


def main(solver_file: str) -> None:
    """Take one solver step, test once, and print parameters, tops and losses as JSON."""
    import caffe  # type: ignore[import-untyped,unused-ignore]

    caffe.set_mode_cpu()
    solver = caffe.get_solver(solver_file)
    solver.step(1)
    test = solver.test_nets[0]
    test.share_with(solver.net)
    train_answer = {name: float(solver.net.blobs[name].data) for name in solver.net.outputs}
    test_answer = {name: float(value) for name, value in test.forward().items()}
    counts = [
        sum(blob.data.size for blobs in net.params.values() for blob in blobs)
        for net in (solver.net, test)
    ]
    print(json.dumps({"train": train_answer, "test": test_answer, "parameters": counts}))


if __name__ == "__main__":
    main(sys.argv[1])
