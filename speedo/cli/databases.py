"""`speedo data split`, `check` and `convert`: databases that are there already."""

from __future__ import annotations

import json
import sys
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from speedo.cli.data import FOLDER, bar, make, of_images, seed_option, size_of
from speedo.cli.data import data as data
from speedo.cli.page import json_option
from speedo.cli.say import say
from speedo.system.workplace import check_names, check_workplace

if TYPE_CHECKING:
    from speedo.data.check import Checked

MOST_PARTS: Final = 10_000
SHOWN_CUT: Final = 5
SHOWN_LABELS: Final = 20
SHOWN_SHAPES: Final = 5
FORMS: Final = ("leveldb", "datums", "images", "hdf5")
SOURCE: Final = click.Path(path_type=Path)


@data.command()
@click.argument("database", type=SOURCE, metavar="DATABASE")
@click.argument("folder", type=FOLDER, metavar="DIR")
@click.option(
    "--parts",
    type=click.IntRange(1, MOST_PARTS),
    required=True,
    metavar="N",
    help="How many parts.",
)
@click.option(
    "--order",
    type=click.Choice(["interleaved", "blocks"]),
    default="interleaved",
    show_default=True,
    help="interleaved: part k gets every N-th record, from the k-th on; blocks: the k-th of N consecutive blocks.",
)
@click.option("--shuffle", is_flag=True, help="Permute the records before they are divided.")
@seed_option("--shuffle")
@click.option(
    "--as",
    "name",
    metavar="PATH",
    help="Path of the database in each part.  [default: the name of DATABASE]",
)
@click.option("--force", is_flag=True, help="Replace a DIR that was made by this command.")
def split(database: Path, folder: Path, parts: int, **options: Any) -> None:
    """Split an LMDB or LevelDB into N parts, one for each host.

    \b
    speedo data split ~/data/fashion-mnist/train_lmdb parts --parts 2 --as fashion-mnist/train_lmdb
    scp -r parts/part-0 first:data; scp -r parts/part-1 second:data
    speedo master --data-share own ...
    speedo worker --data-root ~/data ...     on each host

    Each record is in exactly one part. Without --shuffle a part keeps the order and the keys of the records. Every
    part has a dataset.json with its count and checksum, which `speedo data check` compares; DIR has one for all.
    """
    from speedo.data.split import split as split_database

    _check(database, folder)
    with bar() as progress:
        made = split_database(database, folder, parts, progress=progress, **options)
    for name, count in made.items():
        say(f"{folder / name}: {count:,} records")


@data.command()
@click.argument("databases", type=SOURCE, metavar="DATABASE...", nargs=-1, required=True)
@json_option
def check(databases: tuple[Path, ...], as_json: bool) -> None:
    """Read every record of LMDBs and LevelDBs: counts, shapes, labels, and records that Caffe cannot use.

    \b
    speedo data check ~/data/fashion-mnist
    speedo data check train_lmdb test_lmdb --json

    For a folder with a dataset.json, all databases in it are checked, also against the counts and checksums in that
    file. A bad record is named by its key: it is no Datum, is shorter than its shape, or has an image that cannot be
    decoded.

    Exit status: 0 if all is well, 1 if a record or a database is bad.
    """
    from speedo.data.check import check as check_databases

    check_workplace()
    found: list[Checked] = []
    with bar() as progress:
        for database in databases:
            found += check_databases(database, progress=progress)
    if as_json:
        say(json.dumps([_as_plain(one) for one in found], indent=2))
    else:
        for one in found:
            _show(one)
    if not all(one.good for one in found):
        sys.exit(1)


@data.command()
@click.argument("source", type=SOURCE, metavar="SOURCE")
@click.argument("folder", type=FOLDER, metavar="DIR")
@click.option(
    "--form", type=click.Choice(FORMS), help="What SOURCE is.  [default: detected from its content]"
)
@of_images("images: ")
@click.option(
    "--data-name", default="data", show_default=True, help="hdf5: name of the dataset of values."
)
@click.option(
    "--label-name", default="label", show_default=True, help="hdf5: name of the dataset of labels."
)
@click.option("--force", is_flag=True, help="Convert again, and replace the database.")
def convert(source: Path, folder: Path, size: str | None, **options: Any) -> None:
    """Convert records in another form to an LMDB: the same records, labels and order.

    \b
    speedo data convert train_leveldb ~/data/mine
    speedo data convert train.h5.txt ~/data/mine --label-name labels
    speedo data convert val.txt ~/data/mine --database test_lmdb --size 256x256

    \b
    leveldb  a LevelDB of Caffe; the keys are kept
    datums   a file of Datum messages, each after its length (a varint), or a folder of such files, in the order
             of their names, 2 before 10
    images   a list of `path label`, as Caffe's convert_imageset takes; see `speedo data images`
    hdf5     an HDF5 file, or a list of such files as the source of an HDF5Data layer; numbers other than bytes
             become float32

    An existing database is kept. If it was made from another source or with other options, the command fails; --force
    replaces it.
    """
    from speedo.data.convert import convert as convert_source

    _check(source, folder)
    make(partial(convert_source, source), folder, size=size_of(size), **options)


def _check(source: Path, folder: Path) -> None:
    check_workplace()
    check_names({"the source": source, "the folder": folder})


def _show(found: Checked) -> None:
    from speedo.data.survey import text_of

    survey = found.survey
    say(f"{found.database}: {survey.records:,} records")
    for shape, count in survey.shapes.most_common(SHOWN_SHAPES):
        say(f"  {count:,} of shape {text_of(shape)}")
    if (more := len(survey.shapes) - SHOWN_SHAPES) > 0:
        say(f"  and {more:,} other shapes")
    if survey.encoded:
        say(f"  {survey.encoded:,} encoded images")
    if survey.cut:
        keys = ", ".join(survey.cut[:SHOWN_CUT]) + (", ..." if len(survey.cut) > SHOWN_CUT else "")
        say(
            f"  {len(survey.cut):,} JPEGs without their end, in which what is missing is gray: {keys}"
        )
    counts = sorted(survey.labels.items())
    if len(counts) <= SHOWN_LABELS:
        say("  labels " + ", ".join(f"{label}: {count:,}" for label, count in counts))
    else:
        (fewest, few), (most, many) = min(counts, key=itemgetter(1)), max(counts, key=itemgetter(1))
        say(
            f"  {len(counts):,} labels, {counts[0][0]} to {counts[-1][0]}; fewest records {few:,} (label {fewest}), "
            f"most {many:,} (label {most})"
        )
    for problem in (*found.problems, *(f"the record {fault}" for fault in survey.faults)):
        say(f"  bad: {problem}")
    if (more := survey.faulty - len(survey.faults)) > 0:
        say(f"  bad: {more:,} more records")


def _as_plain(found: Checked) -> dict[str, Any]:
    survey = found.survey
    return {
        "database": str(found.database),
        "records": survey.records,
        "shapes": [[*shape, count] for shape, count in survey.shapes.most_common()],
        "labels": {str(label): count for label, count in sorted(survey.labels.items())},
        "encoded": survey.encoded,
        "cut": survey.cut,
        "sha256": found.sha256,
        "problems": found.problems,
        "faulty": survey.faulty,
        "faults": survey.faults,
    }
