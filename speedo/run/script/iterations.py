"""Where an iteration of a script with several optimizers ends, if the change of the weights is exchanged after it."""

from __future__ import annotations


class Iterations:
    """An iteration ends with the optimizer that steps last, before one steps again.

    Before that there may be gradients to come of what was computed with the present weights.
    """

    def __init__(self) -> None:
        self._order: list[int] = []  # of those that have stepped in this one
        self._last: int | None = None  # whose step ends it

    def ends_with(self, optimizer: int) -> bool:
        """Whether the step that optimizer number `optimizer` has made is the last of an iteration."""
        if optimizer in self._order:
            self._last = self._order[-1]
            self._order.clear()
        self._order.append(optimizer)
        if optimizer != self._last:
            return False
        self._order.clear()
        return True
