"""How long a turn may be where the loss decides it (`--local-steps adaptive:N/WINDOW`), computed once more."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from speedo.messages import Part


class LossWindow:
    """The longest turn of a phase with these options, merge by merge; None where the loss decides nothing."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        text = str(options.get("local_steps", 1))
        self.steps: int | None = None
        if text.startswith("adaptive:"):
            longest, _, window = text.removeprefix("adaptive:").partition("/")
            self.longest = self.steps = int(longest)
            self.window = int(window or 100)
        self.means: list[float] = []
        self.seen: list[Part] = []

    def merged(self, parts: Sequence[Part], before: int, now: int) -> None:
        """These results led from one iteration to another."""
        if self.steps is None:
            return
        self.seen += parts
        if before // self.window < now // self.window:
            samples = sum(part.samples for part in self.seen)
            self.means.append(sum(part.loss * part.samples for part in self.seen) / samples)
            self.seen = []
            steps = math.ceil(self.longest * math.sqrt(self.means[-1] / self.means[0]))
            self.steps = min(max(steps, 1), self.longest)
