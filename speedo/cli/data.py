"""`speedo data`: datasets as the LMDBs and mean files that Caffe reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from speedo.cli.say import say
from speedo.system.bounds import LARGEST_SEED, said, whole_number
from speedo.system.foreign_text import clean_text
from speedo.system.workplace import check_names, check_workplace
from speedo.watch.console import ErrorConsole

if TYPE_CHECKING:
    from speedo.data.base import PreparedDataset

FOLDER = click.Path(path_type=Path, file_okay=False)
LIST = click.Path(path_type=Path, exists=True, dir_okay=False)
SOURCE = click.Path(path_type=Path)
SEED = click.IntRange(0, LARGEST_SEED)
Function = Callable[..., Any]
LARGEST_SIDE = 16_384  # of an image, in pixels
source_option = click.option(
    "--source", type=SOURCE, help="Folder with the published files.  [default: their usual place]"
)
force_option = click.option(
    "--force", is_flag=True, help="Build the dataset again even if it is complete."
)


def seed_option(of: str) -> Callable[[Function], Function]:
    """The seed of an order."""
    return click.option("--seed", type=SEED, default=1, show_default=True, help=f"Seed of {of}.")


@click.group()
def data() -> None:
    """Prepare datasets: LMDB databases and a mean file in a folder.

    \b
    speedo data fashion-mnist ~/data/fashion-mnist
    speedo data images train.txt ~/data/mine --size 256x256 --shuffle
    speedo data boxes VOCdevkit/VOC2007 ~/data/voc --set trainval
    speedo data convert train_leveldb ~/data/mine
    speedo data check ~/data/mine
    speedo data split ~/data/mine/train_lmdb parts --parts 2

    A complete dataset is built again only with --force. A solver names a dataset as `source`, a path relative to the
    solver's folder, the working directory or --data-root.
    """


@data.command("fashion-mnist")
@click.argument("folder", type=FOLDER, metavar="DIR")
@source_option
@force_option
def fashion_mnist(folder: Path, source: Path | None, force: bool) -> None:
    """Fashion-MNIST, from the files of Debian's package.

    The package is dataset-fashion-mnist; --source names another folder with the four IDX files.
    """
    from speedo.data.mnist import prepare_fashion_mnist

    make(prepare_fashion_mnist, folder, source=source, force=force)


@data.command()
@click.argument("folder", type=FOLDER, metavar="DIR")
@source_option
@force_option
def mnist(folder: Path, source: Path | None, force: bool) -> None:
    """MNIST, from its four published files.

    They are downloaded without --source; checksums are verified.
    """
    from speedo.data.mnist import prepare_mnist

    make(prepare_mnist, folder, source=source, force=force)


@data.command()
@click.argument("folder", type=FOLDER, metavar="DIR")
@source_option
@force_option
@seed_option("the training order")
def cifar10(folder: Path, source: Path | None, force: bool, seed: int) -> None:
    """CIFAR-10, from its published binary archive.

    It is downloaded without --source; the checksum is verified.
    """
    from speedo.data.cifar10 import prepare_cifar10

    make(prepare_cifar10, folder, source=source, seed=seed, force=force)


def of_images(whose: str = "") -> Callable[[Function], Function]:
    """How images become records; `whose` stands before the help where only images have these options."""
    options = (
        click.option("--database", default="train_lmdb", show_default=True, help="Name of the database in DIR."),
        click.option("--root", type=FOLDER, help="Folder of relative names in a list.  [default: the list's folder]"),
        click.option("--size", metavar="HxW", help=f"{whose}Resize to height x width."),
        click.option("--gray", is_flag=True, help=f"{whose}One channel instead of three."),
        click.option("--encoded", is_flag=True, help=f"{whose}Keep the images compressed."),
        click.option("--shuffle", is_flag=True, help=f"{whose}Shuffle the records; Caffe reads them in this order."),
        seed_option("--shuffle"),
        click.option("--skip-bad", is_flag=True, help=f"{whose}Skip lines that cannot be read, and report them."),
    )  # fmt: skip

    def add(command: Function) -> Function:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@data.command()
@click.argument("list_file", type=LIST, metavar="LIST")
@click.argument("folder", type=FOLDER, metavar="DIR")
@of_images()
@click.option(
    "--mean/--no-mean",
    default=None,
    help="Make mean.binaryproto from these images.  [default: from those of train_lmdb]",
)
@force_option
def images(list_file: Path, folder: Path, size: str | None, **options: Any) -> None:
    """Your own images: each line of LIST is `path label`.

    Labels count from 0. Paths are relative to the list's folder or to --root. Call it once for the training images and
    once for the test images, with two names for --database.
    """
    from speedo.data.images import prepare_images

    make(partial(prepare_images, list_file), folder, size=size_of(size), **options)


@data.command()
@click.argument("source", type=SOURCE, metavar="VOC|JSON")
@click.argument("folder", type=FOLDER, metavar="DIR")
@click.option(
    "--set",
    "subset",
    default="",
    metavar="NAME",
    help="Pascal VOC: ImageSets/Main/NAME.txt.  [default: all]",
)
@click.option(
    "--images",
    type=FOLDER,
    help="Folder of the image files.  [default: JPEGImages; of COCO the JSON's folder]",
)
@click.option(
    "--database", default="train_lmdb", show_default=True, help="Name of the database in DIR."
)
@click.option("--size", metavar="HxW", help="Resize to height x width.")
@force_option
def boxes(source: Path, folder: Path, size: str | None, **options: Any) -> None:
    """Images with boxes, for SSD and Faster R-CNN: of a folder of Pascal VOC, or a JSON file of COCO.

    \b
    speedo data boxes VOCdevkit/VOC2007 ~/data/voc --set trainval
    speedo data boxes VOCdevkit/VOC2007 ~/data/voc --set test --database test_lmdb
    speedo data boxes annotations/instances_train2017.json ~/data/coco --images train2017

    Records are those of SSD's Caffe, which an AnnotatedData layer reads. labelmap.prototxt in DIR has the number of
    each class; 0 is the background. A second database in DIR takes the numbers from there.
    """
    from speedo.data.boxes import prepare_boxes

    if not source.exists():
        raise click.BadParameter(
            f"there is no {source}: give a folder of Pascal VOC, or a JSON file of COCO"
        )
    make(partial(prepare_boxes, source), folder, size=size_of(size), **options)


@data.command("fetch")
@click.argument("uri")
@click.argument("folder", type=FOLDER, metavar="DIR")
@click.option("--checksum", "sha256", metavar="HEX", help="Expected SHA-256 of the file.")
def fetch_command(uri: str, folder: Path, sha256: str | None) -> None:
    """Fetch the file, or all files of the folder, at URI into DIR: s3://, gs://, sftp://, hdfs:// (WebHDFS), https://.

    Unchanged files are not fetched again. If the folder has a file SHA256SUMS (as sha256sum writes it), every file in
    it is checked. Prints the SHA-256 and the name of each file.
    """
    from speedo.data.remote.fetch import fetch
    from speedo.data.remote.uris import uri_of

    if uri_of(uri) is None:
        raise click.BadParameter(f"{uri!r} is no URI that is known, as in s3://bucket/folder")
    if sha256 is not None and not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise click.BadParameter(f"--checksum {sha256!r}: give 64 hexadecimal digits")
    check_names({"the folder": folder})
    with bar() as progress:
        files = fetch(uri, folder, sha256=sha256, progress=progress)
    for file in files:
        say(f"{file.sha256}  {file.name}")


def make(prepare: Callable[..., PreparedDataset], folder: Path, **options: Any) -> None:
    """Let `prepare` make the dataset in `folder`, and say what came out."""
    check_workplace()
    # What Caffe is to read must have a name that it takes.
    check_names({"the folder": folder, "the source": options.get("source")})
    with bar() as progress:
        prepared = prepare(folder, progress=progress, **options)
    counts = ", ".join(f"{name}: {count:,} records" for name, count in prepared.counts.items())
    say(f"{prepared.folder}: {counts}" + ("" if prepared.built else " (was complete)"))
    for note in prepared.notes:
        say(f"warning: {note}", err=True)
    if prepared.skipped:
        say(f"left out {prepared.skipped} lines:", err=True)
        for line in prepared.skipped_lines:
            say(f"  {line}", err=True)


def size_of(text: str | None) -> tuple[int, int] | None:
    """Height and width, as in 256x256."""
    if text is None:
        return None
    height, cross, width = text.lower().partition("x")
    high, wide = whole_number(height), whole_number(width)
    if not cross or not high or not wide or max(high, wide) > LARGEST_SIDE:
        raise click.BadParameter(
            f"{said(text)} is not HEIGHTxWIDTH of 1 to {LARGEST_SIDE} each, as in 256x256",
            param_hint="--size",
        )
    return high, wide


@contextmanager
def bar() -> Iterator[Any]:
    """Shows progress on a terminal; gives the function to report it."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = ErrorConsole()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def progress(done: int, total: int, what: str) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(clean_text(what), total=total or None)
            bars.update(tasks[what], completed=done, total=total or None)

        yield progress
