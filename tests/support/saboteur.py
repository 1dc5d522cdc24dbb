"""A layer that rests a little, until the file `sabotage` beside it orders something for this process's worker.

It rests because most runs here only go on until a test has seen enough, and would take the cores of the others.

Each line of the file is `WORKER ORDER [NUMBER]`; the tests write it while a run is under way.
"""

import ctypes
import os
import time
from pathlib import Path

import caffe

ORDERS = Path(__file__).with_name("sabotage")
REST_S = 0.01


class Saboteur(caffe.Layer):
    def setup(self, bottom, top):
        log = Path("/proc/self/fd/2").resolve().name  # a worker's standard error has its number
        self.worker = log.removeprefix("worker-").removesuffix(".log")

    def reshape(self, bottom, top):
        pass

    def forward(self, bottom, top):
        order, number = self.order()
        if order == "sleep":
            time.sleep(number)
        elif order == "segfault":
            ctypes.string_at(0)
        elif order == "abort":
            os.abort()
        elif order == "check":
            top[0].reshape(-1)
        elif order == "tell":
            new = ORDERS.with_name(f"new-clock-{self.worker}")
            new.write_text(str(time.time()))
            new.replace(ORDERS.with_name(f"clock-{self.worker}"))

    def backward(self, top, propagate_down, bottom):
        order, number = self.order()
        if order == "scale":
            bottom[0].diff[...] *= number

    def order(self):
        try:
            lines = ORDERS.read_text().splitlines()
        except FileNotFoundError:
            lines = []
        for line in lines:
            worker, order, *number = line.split()
            if worker == self.worker:
                return order, float(*number)
        return "sleep", REST_S
