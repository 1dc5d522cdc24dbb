"""A layer of Caffe's that rests until a step has taken its time, as if the net were on a device of its own."""

from __future__ import annotations

import time
from typing import Any

import caffe


class Rest(caffe.Layer):
    """`param_str`: seconds from one step to the next."""

    def setup(self, bottom: Any, top: Any) -> None:
        self._step_s, self._next = float(self.param_str), 0.0

    def reshape(self, bottom: Any, top: Any) -> None:
        pass

    def forward(self, bottom: Any, top: Any) -> None:
        time.sleep(max(0.0, self._next - time.monotonic()))
        self._next = time.monotonic() + self._step_s

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        pass
