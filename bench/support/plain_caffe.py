"""Sequential Caffe as a user's own script has it; nothing of SpeeDO is in it.

    plain_caffe.py SOLVER SECONDS

Says `ready` after three steps, waits for a line, trains for so many seconds (ten steps at least), and prints
as JSON when each step ended, on the clock that all processes of a machine share, and the share of a core that
it got.
"""

import json
import sys
import time

import caffe


def main() -> None:
    caffe.set_mode_cpu()
    solver = caffe.get_solver(sys.argv[1])
    seconds = float(sys.argv[2])
    solver.step(3)
    print("ready", flush=True)
    if not sys.stdin.readline():
        return  # whoever started us is gone
    ends = []
    began, worked = time.monotonic(), time.process_time()
    while len(ends) < 10 or ends[-1] < began + seconds:
        solver.step(1)
        ends.append(time.monotonic())
    core = (time.process_time() - worked) / (ends[-1] - began)
    print(json.dumps({"ends": ends, "core": core}))


if __name__ == "__main__":
    main()
