"""One worker's part of a test that all workers make together: batches of the records that it leased for the test."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

from speedo.errors import ConfigError
from speedo.exchange.lease import Lease, LeaseRequest, NoLease
from speedo.messages import Records, Tested
from speedo.run.script.alone import OwnBook
from speedo.run.script.testing import Measure, measured
from speedo.run.script.turns import AGAIN_S, TurnSource
from speedo.run.script_link import TestTurn
from speedo.worker.share import RecordShare

LEASES: Final = 10  # for each worker, if all are equally fast
_NO_MORE: Final = object()

MeasureBatches = Callable[..., dict[str, float]]


def batches_to_test(share: RecordShare, data: Any, batch: int | None) -> Any:
    """The batches of one pass of `share` over `data`. Raises `ConfigError` for what has no numbered records."""
    try:
        batches = share.batches(data, batch, epochs=1)
    except ConfigError as error:
        raise ConfigError(str(error).replace("run.share", "run.test")) from error
    if share.source.step:
        raise ConfigError("run.test divides records: give it no batch_sampler and no stream")
    return batches


def tested_alone(measure: Measure, module: Any, data: Any, batch: int | None) -> dict[str, float]:
    """As `measured`, with all batches of `data` where there is any, in a script that runs by itself."""
    if data is None:
        return measured(measure, module)
    share = RecordShare(OwnBook().lease, lambda: None, 0)
    metrics = measured(measure, module, batches_to_test(share, data, batch))
    share.close()
    return metrics


class SharedTest:
    """Of the data set `data`, in a run of this many `workers`; raises as `batches_to_test`."""

    def __init__(self, turns: TurnSource, data: Any, batch: int | None, workers: int) -> None:
        self._turns, self._data, self._batch = turns, data, batch
        self._share = RecordShare(self._lease, lambda: None, seed=0)
        batches_to_test(self._share, data, batch)
        self.records = self._share.source.records
        self._share.steps = max(1, self.records // (LEASES * workers * self._share.source.batch))

    def metrics(
        self, measure: MeasureBatches, say_again: Callable[[], None]
    ) -> dict[str, float] | None:
        """The means over all records, once all are tested; None if nothing has come of the test.

        `measure` gets an iterator of batches, and returns the means over their records. It is called again if
        records come back that a worker leaves untested which died. `say_again` is called now and then.
        """
        answer: Tested | TestTurn = TestTurn(takes_part=True)
        try:
            while isinstance(answer, TestTurn):
                if answer.takes_part or self._share.has_kept:
                    answer = self._turns.test_part(*self._part(measure))
                else:
                    time.sleep(AGAIN_S)
                    say_again()
                    answer = self._turns.test_part()
        except (EOFError, OSError):  # the run is gone
            return None
        finally:
            self._share.close()
        return None if answer.problem else dict(answer.metrics)

    def _part(self, measure: MeasureBatches) -> tuple[dict[str, float], Records]:
        batches = batches_to_test(self._share, self._data, self._batch)
        try:
            first = next(batches, _NO_MORE)
            metrics = {} if first is _NO_MORE else measure(chain((first,), batches))
        finally:
            batches.close()
        taken, _ = self._share.taken()
        return metrics, tuple((one.epoch, one.start, one.stop) for one in taken)

    def _lease(self, request: LeaseRequest) -> Lease | NoLease:
        try:
            return self._turns.lease_to_test(request)
        except (EOFError, OSError):
            return NoLease.OVER
