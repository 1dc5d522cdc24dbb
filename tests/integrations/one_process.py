"""Runs of the scripts beside this, and what one process trains."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

from tests.faults.scripts import trained
from tests.integrations.scripts.small_net import EPOCHS, RATE, RECORDS, Records, net
from tests.run.script.test_run_command import run
from tests.support.commands import Commands
from tests.support.invariants import read_lines

BATCH, WORKERS = 4, 2
EACH_ONCE = Counter((epoch, position) for epoch in range(EPOCHS) for position in range(RECORDS))


def one_process(
    *, accumulates: int = 1, rest: float = 1.0, decay: float = 1.0
) -> dict[str, Tensor]:
    """The weights that plain SGD makes of the records in their order, with the batches of all workers.

    A step has the mean gradient of so many batches; of fewer, at the end of an epoch, `rest` times their mean.
    """
    records, model = Records(), net()
    batch = BATCH * WORKERS * accumulates
    for epoch in range(EPOCHS):
        for start in range(0, RECORDS, batch):
            part = slice(start, start + batch)
            model.zero_grad()
            loss = torch.nn.functional.mse_loss(model(records.x[part]), records.y[part])
            (loss if start + batch <= RECORDS else rest * loss).backward()
            with torch.no_grad():
                for one in model.parameters():
                    one -= RATE * decay**epoch * one.grad
    return model.state_dict()


def run_library(
    speedo: Commands, folder: Path, library: str, right: dict[str, Tensor]
) -> list[str]:
    """Two workers train each record once an epoch, and end with the weights of one process; returns their logs."""
    script = Path(__file__).parent / "scripts" / f"{library}_script.py"
    status, _, errors = run(
        speedo, "--workers", str(WORKERS), str(script), str(BATCH), str(folder / "RANK.pt")
    )
    assert status == 0, errors
    logs = [(folder / "run" / "logs" / f"worker-{rank}.log").read_text() for rank in range(WORKERS)]
    read = Counter(re.findall(r"record (\d+)\n", "".join(logs)))
    more = {name: count for name, count in read.items() if count != EPOCHS}
    assert len(read) == RECORDS
    assert len(more) <= 3, more  # those that are compared first
    lines = read_lines(folder / "run" / "metrics.jsonl")
    assert trained(lines) == EACH_ONCE
    refused = [line for line in lines if line.get("decision") == "refused"]
    assert not refused, "a member of the team was not found by another one"
    losses = [line["loss"] for line in lines if line["event"] == "result"]
    assert losses[-1] < 0.5 * losses[0], losses
    for rank in range(WORKERS):
        found = torch.load(folder / f"{rank}.pt")
        assert found.keys() == right.keys()
        for name, values in right.items():
            torch.testing.assert_close(found[name], values, rtol=0, atol=1e-5)
    return logs
