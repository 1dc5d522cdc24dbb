"""Which steps of several optimizers are one iteration, if the change of the weights is exchanged after it."""

from __future__ import annotations

from typing import Final

MOST: Final = 100  # steps of one, as where another optimizer begins later


class Iterations:
    """An iteration is what is done with a batch of `run.share`; else it ends once each of `optimizers` has stepped."""

    def __init__(self, optimizers: int) -> None:
        self._optimizers, self._steps = optimizers, list[int]()
        self._is_counted = False  # the present one, at its first step

    def counts(self, optimizer: int, *, begins: bool) -> bool:
        """Whether the step that optimizer number `optimizer` has made counts as an iteration.

        It does if it `begins` one, as the first with its batch.
        """
        self._steps.append(optimizer)
        ends = len(set(self._steps)) == self._optimizers or len(self._steps) >= MOST
        was_counted = self._is_counted
        if ends:
            self._steps.clear()
        if begins or ends:
            self._is_counted = begins and not ends
        return begins or (ends and not was_counted)
