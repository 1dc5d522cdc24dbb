"""Elastic averaging SGD: workers explore on their own weights, tied to the center by a spring.

Zhang, Choromanska, LeCun, Deep Learning with Elastic Averaging SGD, NIPS 2015, algorithm 1: the
asynchronous schedule with the elastic rule; the communication period tau is `local_steps`.
"""

from __future__ import annotations

from speedo.sgd_modes.asynchronous import Asynchronous
from speedo.sgd_modes.base import Length, Mode
from speedo.sgd_modes.rules import Elastic


def easgd(moving_rate: float | None = None, local_steps: Length = 1) -> Asynchronous:
    """EASGD with this alpha; None is the paper's 0.9 / n."""
    return Asynchronous(rule=Elastic(moving_rate), local_steps=local_steps, name="easgd")


MODE = Mode("easgd", Asynchronous, (Elastic,), "Zhang, Choromanska, LeCun", 2015, overlaps=True)
