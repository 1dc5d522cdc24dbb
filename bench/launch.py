"""`speedo launch` over real ssh: LeNet for an epoch in each form of a cluster file, and a launcher that is cut off.

    python -m bench.launch [--forms yaml words poseidon rankfile] [--iterations 938] [--no-cut]

As root, with an sshd. Four hosts and the launcher's machine are network namespaces, each with a home of its own, where
it makes its own Fashion-MNIST. Sequential Caffe reaches 0.849 after an epoch of 938 iterations. The last row has the
seconds from a pulled cable of the launcher to the end of all that it had started. Status 1 if a run failed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.support import table
from bench.support.machine import heading
from tests.support.cluster_forms import as_poseidons, as_rank_file, as_words, as_yaml
from tests.support.network import network
from tests.support.sabotaged_net import write_problem
from tests.support.ssh_hosts import Site, running, site

FORMS = {
    "yaml": as_yaml,
    "words": as_words,
    "poseidon": as_poseidons,
    "rankfile": as_rank_file,
}
LONGEST_S = 500.0
ENDED_S = 240.0


def train(made: Site, form: str, iterations: int, folder: Path) -> tuple[str, ...]:
    """A row: the accuracy, the seconds of training, the seconds of the whole command, what stayed."""
    folder.mkdir()
    began = time.monotonic()
    process = made.launch([*FORMS[form](made, folder), "--max-iter", str(iterations)], folder)
    try:
        out, errors = process.communicate(timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        return form, "none", "did not end", "", ""
    took = time.monotonic() - began
    found = re.match(r"test accuracy (\S+) after .*, (\S+) s of training", out)
    if process.returncode != 0 or found is None:
        print(errors, file=sys.stderr)
        return form, "none", f"status {process.returncode}", f"{took:.0f}", ""
    left = made.nothing_left_within(10)
    return form, found[1], found[2], f"{took:.0f}", str(len(left))


def cut_off(made: Site, folder: Path) -> tuple[str, ...]:
    """A row: the seconds until nothing of a run is left on the hosts, after the launcher's cable was pulled."""
    folder.mkdir()
    solver = write_problem(folder / "problem")
    words = [*as_words(made, folder), str(solver), "--max-iter", "1000000", "--test-interval", "0"]
    process = made.launch(words, folder)
    assert process.stderr is not None
    for line in process.stderr:
        if re.match(r"iteration [1-9]", line):
            break
    made.launcher.pull_the_cable()
    pulled = time.monotonic()
    # sshd itself waits for TCP's own time, as it does for everybody.
    while left := [
        one for one in made.left() if "sshd" not in one and made.launcher.address not in one
    ]:
        if time.monotonic() - pulled > ENDED_S:
            break
        time.sleep(1.0)
    took = time.monotonic() - pulled
    process.communicate(timeout=120)
    made.launcher.plug_in_again()
    for one in made.hosts:
        for process_there in running(one.host):
            process_there.kill()
    return "cut off", "", "", f"{took:.0f}", str(len(left))


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.launch", description=__doc__)
    parser.add_argument("--forms", nargs="*", choices=FORMS, default=list(FORMS))
    parser.add_argument("--iterations", type=int, default=938)
    parser.add_argument("--no-cut", action="store_true", help="leave the last row out")
    given = parser.parse_args(words)
    heading("bench.launch")
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="speedo-bench-") as place,
        network(5) as members,
        site(members, Path(place) / "site") as made,
    ):
        for form in given.forms:
            rows.append(train(made, form, given.iterations, Path(place) / form))
            print(*rows[-1], file=sys.stderr)
        if not given.no_cut:
            rows.append(cut_off(made, Path(place) / "cut"))
    head = ["form", "accuracy", "s of training", "s in all", "processes left"]
    print(table.text([head, *map(list, rows)]))
    return int(any("none" in row or row[-1] != "0" for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
