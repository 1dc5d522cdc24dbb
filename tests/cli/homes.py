"""A folder full of solvers, each with one thing wrong."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import lmdb

from tests.support.nets import net_text, records, write_data, write_lmdb, write_solver

SIGMOID = 'layer { name: "sig" type: "Sigmoid" bottom: "pool" top: "top" }'
PYTHON = (
    'layer { name: "sig" type: "Python" bottom: "pool" top: "top" '
    'python_param { module: "nowhere_layers" layer: "Sig" } }'
)


def write_homes(folder: Path) -> None:
    """Data, a good solver in `good/`, and bad ones in folders named after their mistake."""
    images, labels = records(64, 1)
    write_data(folder)
    write_lmdb(folder / "labels", images, labels + 4)
    _write_empty(folder / "empty")
    _write_late(folder / "late")
    _write_short(folder / "many")
    net = net_text(train=str(folder / "train"), test=str(folder / "test"))

    def home(name: str, text: str = net, /, **fields: Any) -> Path:
        (folder / name).mkdir()
        return write_solver(folder / name, text, **fields)

    def reading(source: str) -> str:
        return net_text(train=str(folder / source), test=str(folder / "test"))

    home("good")
    home("syntax").write_text('net: "net.prototxt"\nbase_lr: 0.01 }\n')
    home("field", net.replace("num_output: 6", "num_outputs: 6"))
    home("type", net.replace('"Convolution"', '"Convolutoin"'))
    home("no-net", net, net='"netz.prototxt"')
    home("no-data", reading("nowhere"))
    home("no-records", reading("empty"))
    home("labels-beyond", reading("labels"))
    home("late-record", reading("late"))
    home("shapes", net.replace("kernel_size: 3", "kernel_size: 30"))
    home("other-shapes", net.replace("num_output: 6", "num_output: 5"))
    home("gpu", solver_mode="GPU")
    home("momentum", momentum=2)
    home("rate", base_lr=-1)
    many = net_text(train=str(folder / "many"), test=str(folder / "many"))
    home("short-record", many.replace("kernel_size: 3", "kernel_size: 1"))
    home("no-batch", net.replace("batch_size: 8", "batch_size: 0"))
    home("mean", net.replace("scale: 0.00390625", f'mean_file: "{folder}/mean.binaryproto"', 1))
    home("policy", lr_policy='"step"', gamma=0.1)
    home("no-tests", test_iter=None)
    home("python", net.replace(SIGMOID, PYTHON))
    _write_weights(folder)
    _write_files(folder)


def _write_empty(path: Path) -> None:
    with lmdb.open(str(path)) as database:
        with database.begin(write=True) as transaction:
            transaction.put(b"0", b"")
        with database.begin(write=True) as transaction:
            transaction.delete(b"0")


def _write_late(path: Path) -> None:
    """Sixty good batches, and then an image that is smaller than all others."""
    images, labels = records(481, 3)
    write_lmdb(path, images[:480], labels[:480])
    small, label = images[480:, :, :5, :5], labels[480:]
    write_lmdb(path.with_name("small"), small, label)
    with lmdb.open(str(path.with_name("small"))) as source, source.begin() as reading:
        record = reading.get(b"00000000")
    with lmdb.open(str(path), map_size=1 << 24) as target, target.begin(write=True) as writing:
        writing.put(b"00000480", record)


def _write_short(path: Path) -> None:
    """More records than are read before a run begins, and then one without data."""
    from speedo.data.database import write_database
    from speedo.data.wire import datum

    good = [datum((1, 2, 2), bytes(4), label).SerializeToString() for label in range(4)]
    number = 1_500_000
    values = ((b"%08d" % index, good[index % 4]) for index in range(number))
    last = (b"%08d" % number, datum((1, 2, 2), b"", 0).SerializeToString())
    write_database(path, itertools.chain(values, [last]))


def _write_weights(folder: Path) -> None:
    from speedo.engines.caffe_import import load_caffe

    caffe = load_caffe()
    caffe.set_mode_cpu()
    net = caffe.Net(str(folder / "good" / "net.prototxt"), caffe.TEST)
    net.save(str(folder / "good.caffemodel"))
    net.params["ip"][1].data[0] = float("nan")
    net.save(str(folder / "nan.caffemodel"))
    (folder / "no.caffemodel").write_text("hello")
    (folder / "mean.binaryproto").write_text("hello")


def _write_files(folder: Path) -> None:
    (folder / "held").mkdir()
    (folder / "held" / "metrics.jsonl").touch()
    (folder / "misspelt.yaml").write_text("workers: 2\nmoving_rat: 0.3\n")
    (folder / "broken.yaml").write_text("workers: 2\n  mode: [sync\n")
    (folder / "values.yaml").write_text("workers: two\n")
    (folder / "list.txt").write_text("image.png 0\nimage.png\n")
    for name, text, mode in (
        ("short", "tiny", 0o600),
        ("open", "0123456789abcdef0123456789abcdef", 0o644),
        ("token", "0123456789abcdef0123456789abcdef", 0o600),
    ):
        (folder / name).write_text(text + "\n")
        (folder / name).chmod(mode)
