"""The mistakes: what is typed, how it ends, and what the one sentence must name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

CAFFE = (pytest.mark.caffe,)
REDIS = (pytest.mark.caffe, pytest.mark.redis)
ALL = (pytest.mark.caffe, pytest.mark.redis, pytest.mark.ray)
GOOD = "train {home}/good/solver.prototxt "


@dataclass(frozen=True)
class Mistake:
    """`command` may name {home}, {taken} (a port in use), {free} (one that is not) and {redis}.

    `trains` says that the mistake shows only in the middle of a run.
    """

    name: str
    command: str
    status: int
    culprit: str
    remedy: str
    marks: tuple[pytest.MarkDecorator, ...] = ()
    trains: bool = False


def _solvers() -> Iterator[Mistake]:
    """A solver's folder, what else is typed, culprit, remedy."""
    for folder, culprit, remedy in (
        ("syntax", "syntax/solver.prototxt, line 2", "correct the text there"),
        ("field", "net.prototxt, line 12: ConvolutionParameter has no field 'num_outputs'",
         "did you mean 'num_output'?"),
        ("type", "net.prototxt, line 10: layer 'conv' has the unknown type 'Convolutoin'",
         "did you mean 'Convolution'?"),
        ("no-net", "names the net 'netz.prototxt', which was not found (tried /", "correct it or give --data-root"),
        ("no-data", "layer 'data' reads its records from '/", "correct the path"),
        ("no-records", "empty, which holds no record", "create it again"),
        ("gpu", "solver_mode is GPU, but this Caffe was built for the CPU only", "give --device cpu"),
        ("momentum", "momentum is 2", "use 0 or more and less than 1"),
        ("rate", "base_lr is -1", "use a learning rate of 0 or more"),
        ("policy", "lr_policy 'step' needs stepsize", "add it"),
        ("no-batch", "layer 'data' has batch_size 0", "use 1 or more"),
        ("mean", "mean.binaryproto, which is not one, or is truncated", "create it again"),
        ("no-tests", "test_interval is 10 but there is no test net", "add test_iter"),
        ("python", "needs the Python module 'nowhere_layers'",
         "put it there, or install it and allow it with --python-layers"),
    ):  # fmt: skip
        yield Mistake(
            f"solver-{folder}",
            f"train {{home}}/{folder}/solver.prototxt",
            2,
            culprit,
            remedy,
            CAFFE,
        )
    yield Mistake("no-solver", "train nowhere.prototxt", 2, "nowhere.prototxt: there is no such solver file",
                  "give the path of a solver.prototxt")  # fmt: skip
    yield Mistake(
        "solver-folder",
        "train {home}/good",
        2,
        "good: is a folder",
        "give the solver.prototxt in it",
    )


def _options() -> Iterator[Mistake]:
    for name, typed, culprit, remedy, marks in (
        ("small-batch", "--workers 9", "batch_size is 8, too small to split over 9 workers", "fewer workers", CAFFE),
        ("unknown-mode", "--mode synch", "'--mode': 'synch' is not one of 'sync'", "see `speedo train --help`", ()),
        ("no-workers", "--workers 0", "workers is 0", "use 1 to", ()),
        ("no-threads", "--threads 0", "threads is '0'", "use 1 to 1024, or auto", ()),
        ("no-binding", "--threads bind=chip", "'--threads': 'chip' is not one of", "see `speedo train --help`", ()),
        ("no-number", "--workers two", "'--workers': 'two'", "see `speedo train --help`", ()),
        ("unknown-option", "--workerz 2", "no such option '--workerz'", "Did you mean one of", ()),
        ("no-advance", "--mode partial --max-advance 0", "max_advance is 0", "use 1 or more", ()),
        ("window-in-sync", "--window 3", "window is 3, but mode sync does not use it", "use --mode weed-out", ()),
        ("pull-in-sync", "--moving-rate 0.3", "moving_rate is 0.3, but mode sync", "leave moving_rate out", ()),
        ("pull-too-strong", "--mode easgd --moving-rate 1.5", "moving_rate is 1.5", "above 0 and below 1", ()),
        ("no-phases", "--mode hybrid", "mode hybrid has no phases", "give at least one", ()),
        ("bad-phase", "--mode hybrid --phase sync", "phase 1 (sync) has no end", "as in sync:500", ()),
        ("phase-option", "--mode hybrid --phase easgd:9,moving_rat=1", "phase 1: moving_rat is no option",
         "did you mean moving_rate?", ()),
        ("misspelt-yaml", "--config {home}/misspelt.yaml", "moving_rat in {home}/misspelt.yaml is no option",
         "did you mean moving_rate?", ()),
        ("broken-yaml", "--config {home}/broken.yaml", "broken.yaml: line 2 is not YAML", "write one", ()),
        ("yaml-value", "--config {home}/values.yaml", "workers in {home}/values.yaml is 'two'",
         "use a whole number", ()),
        ("no-yaml", "--config nowhere.yaml", "nowhere.yaml cannot be read", "correct --config", ()),
        ("momentum", "--momentum 2", "momentum is 2.0", "use 0 up to", ()),
        ("rate", "--lr 0", "lr is 0.0", "use a learning rate above 0", ()),
        ("no-weights", "--weights nowhere.caffemodel", "nowhere.caffemodel, which is not a file",
         "give a .caffemodel", ()),
        ("bad-weights", "--weights {home}/no.caffemodel", "no.caffemodel is not a .caffemodel", "give another", CAFFE),
        ("held-run-dir", "--run-dir {home}/held", "held already holds a run", "give another", CAFFE),
        ("file-as-run-dir", "--run-dir {home}/open", "run_dir {home}/open is no directory",
         "give another with --run-dir", CAFFE),
        ("bad-redis-url", "--redis foo:6379", "redis is not the URL of a Redis", "use redis://", CAFFE),
    ):  # fmt: skip
        yield Mistake(f"option-{name}", GOOD + typed, 2, culprit, remedy, marks)


def _servers() -> Iterator[Mistake]:
    master = "master {home}/good/solver.prototxt --token-file {home}/"
    worker = "worker --token-file {home}/token --timeout 1 --master "
    for name, command, status, culprit, remedy, marks in (
        ("redis-refused", GOOD + "--redis redis://127.0.0.1:{free}", 1, "no Redis answers at 127.0.0.1:{free}",
         "start it or give another --redis URL", CAFFE),
        ("redis-password", GOOD + "--redis redis://:wrong@{redis}", 1, "{redis}/0 refused",
         "correct SPEEDO_REDIS_PASSWORD", REDIS),
        ("port-taken", master + "token --port {taken}", 1, "127.0.0.1:{taken} cannot be served",
         "give another --port", ()),
        ("foreign-host", master + "token --host 192.0.2.77 --port {free}", 1, "192.0.2.77:{free} cannot be served",
         "a --host that is an address of this machine", ()),
        ("bad-threads", worker + "127.0.0.1 --threads many", 2, "threads is 'many'", "use 1 to 1024, or auto", ()),
        ("bad-port", master + "token --port 0", 2, "port is 0", "use 1 to 65535", ()),
        ("open-token", master + "open", 1, "open is accessible to other users", "chmod 600", ()),
        ("short-token", master + "short", 1, "short holds is not a token", "copy the token file", ()),
        ("no-master", worker + "127.0.0.1:{free}", 1, "no master answered at 127.0.0.1:{free}",
         "start `speedo master", ()),
        ("bad-address", worker + "127.0.0.1:port", 2, "--master '127.0.0.1:port' is not", "for example", ()),
        ("bad-timeout", "worker --master 127.0.0.1 --timeout -1", 2, "'--timeout': -1",
         "see `speedo worker --help`", ()),
        ("bad-cloud", worker + "127.0.0.1 --leave-on amazon", 2, "--leave-on amazon",
         "use aws, azure, google, or the URL", ()),
        ("no-address", "worker", 2, "missing option '--master'", "see `speedo worker --help`", ()),
    ):  # fmt: skip
        yield Mistake(name, command, status, culprit, remedy, marks)


def _data() -> Iterator[Mistake]:
    for name, command, status, culprit, remedy in (
        ("no-source", "fashion-mnist out --source nowhere", 1, "nowhere has no train-images", "--source FOLDER"),
        ("bad-size", "images {home}/list.txt out --size 3x", 2, "--size: '3x' is not HEIGHTxWIDTH", "as in 256x256"),
        ("no-list", "images nowhere.txt out", 2, "'nowhere.txt' does not exist", "see `speedo data images --help`"),
        ("bad-line", "images {home}/list.txt out", 1, "list.txt line 2: 'image.png'", "correct it"),
        ("unknown", "fashon-mnist out", 2, "no such command 'fashon-mnist'", "Did you mean 'fashion-mnist'?"),
    ):  # fmt: skip
        yield Mistake(f"data-{name}", f"data {command}", status, culprit, remedy)


def _native() -> Iterator[Mistake]:
    """What only Caffe can tell, in a child that looks or in the middle of training."""
    yield Mistake(
        "shapes",
        "train {home}/shapes/solver.prototxt",
        2,
        "net.prototxt: layer 'conv' cannot be built",
        "correct it or what it reads: Caffe stopped at",
        ALL,
    )
    yield Mistake(
        "labels",
        "train {home}/labels-beyond/solver.prototxt",
        2,
        "layer 'data' reads the label",
        "correct the labels",
        ALL,
    )
    yield Mistake(
        "weights-of-another-net",
        "train {home}/other-shapes/solver.prototxt --weights {home}/good.caffemodel",
        2,
        "in this net, but",
        "give the weights of this net",
        ALL,
    )
    yield Mistake("bad-record", "train {home}/late-record/solver.prototxt", 2,
                  "layer 'data' reads the record '00000480' of {home}/late, which is 1 x 5 x 5",
                  "prepare them in one size", ALL)  # fmt: skip
    # One record at a time may have any size, as far as Caffe's data layer goes.
    yield Mistake("late-abort", "train {home}/late-record/solver.prototxt --workers 1 --batch 1 --max-iter 99999 "
                  "--restarts 1", 3, "the run ended early: every worker died, the last: Caffe stopped at inner_product",
                  "Check failed", ALL, trains=True)  # fmt: skip
    yield Mistake("short-record", "train {home}/short-record/solver.prototxt --max-iter 99999", 3,
                  "the run ended early: layer 'data' reads the record '01500000' of {home}/many, which holds 0 values",
                  "create the database again", ALL, trains=True)  # fmt: skip
    yield Mistake("weights-with-nan", "train {home}/good/solver.prototxt --weights {home}/nan.caffemodel", 2,
                  "nan.caffemodel cannot be trained from: 1 of 4 values of blob 1 of layer 'ip' are NaN",
                  "give others", ALL)  # fmt: skip


MISTAKES = [*_native(), *_solvers(), *_options(), *_servers(), *_data()]
