"""No password, token or signature of a URI is shown or written."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from speedo.cli.unforeseen import unforeseen
from speedo.data.remote.run_copy import RunCopy
from speedo.data.remote.uris import open_remote, store_errors
from speedo.errors import ConfigError, DataError, SpeedoError, StoreError, hide_secrets
from speedo.run.build import config_for_people
from speedo.run.config.run_config import RunConfig, make_config
from speedo.run_dir.directory import write_config
from speedo.system.bounds import said
from speedo.watch.status import StatusBoard
from tests.support.fuzz import randoms, text

SECRET = "TheSecret"
NAMES = (
    "X-Amz-Signature",
    "sig",
    "token",
    "access_token",
    "X-Goog-Signature",
    "key",
    "password",
    "AWSAccessKeyId",
)


@pytest.mark.parametrize(
    ("shown", "hidden"),
    [
        ("sftp://me:TheSecret@h:22/a", "sftp://me:***@h:22/a"),
        ("redis://:TheSecret@h:6379/0", "redis://:***@h:6379/0"),
        ("rediss://u:The/Secret@h", "rediss://u:***@h"),
        ("redis://u:The@Secret@h", "redis://u:***@h"),
        ("unix://u:TheSecret@/x?db=1", "unix://u:***@/x?db=1"),
        ("https:/me:TheSecret@h/a", "https:/me:***@h/a"),
        ("https://TheSecret@h/a", "https://***@h/a"),
        ("https://h/a?X-Amz-Signature=TheSecret&n=1", "https://h/a?X-Amz-Signature=***&n=1"),
        ("https://h/a?n=1&X%2DAmz%2DSecurity%2DToken=TheSecret", "https://h/a?n=1&X%2DAmz%2DSecurity%2DToken=***"),
        ("https://h/a?sv=1;sig=The%2BSecret%3D", "https://h/a?sv=1;sig=***"),
        ("https://h/a#access_token=TheSecret", "https://h/a#access_token=***"),
        ("unix:///x?password=TheSecret", "unix:///x?password=***"),
        ("url='https://h/a?sig=TheSecret', told", "url='https://h/a?sig=***', told"),
        ('{"u": "https://h/a?sig=TheSecret"}', '{"u": "https://h/a?sig=***"}'),
        ("HTTPS://U:TheSecret@H", "HTTPS://U:***@H"),
    ],
)  # fmt: skip
def test_a_secret_is_hidden_and_all_else_stays(shown: str, hidden: str) -> None:
    assert hide_secrets(shown) == hidden
    assert hide_secrets(hidden) == hidden


@pytest.mark.parametrize(
    "shown",
    [
        "s3://bucket/a/b", "sftp://me@host:2222/a", "http://h:8080/a@b?n=1", "redis://127.0.0.1:6379/0", "a: b@c",
        "c:/a:b@c", "http://h/a?versionId=3", "10.0.0.1:56126", "http://[::1]:80/x",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(shown: str) -> None:
    assert hide_secrets(shown) == shown


def test_a_long_text_takes_no_long_time() -> None:
    began = time.process_time()
    for piece in (
        "a" * 200_000,
        "a://" * 50_000,
        "a://b:" * 30_000,
        "ab://?" + "&a" * 100_000,
        "a:/" * 90_000,
    ):
        hide_secrets(piece)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("kind", [DataError, ConfigError, StoreError, SpeedoError])
def test_no_error_of_ours_shows_a_secret(kind: type[SpeedoError]) -> None:
    assert str(kind(f"redis://:{SECRET}@h cannot be reached")) == "redis://:***@h cannot be reached"


def test_a_value_that_is_cut_off_shows_no_part_of_a_secret() -> None:
    assert SECRET not in said(f"https://me:{SECRET}{'x' * 100}@host/a")


def test_a_uri_that_is_refused_is_not_shown_whole() -> None:
    with pytest.raises(ConfigError) as told:
        open_remote(f"sftp://me:{SECRET}@host/a")
    assert "sftp://me:***@host/a has a password in it" in str(told.value)


def test_the_configuration_says_that_a_secret_is_hidden_and_asks_for_it_again(
    tmp_path: Path,
) -> None:
    uri = f"https://h/w.caffemodel?sig={SECRET}"
    config = make_config({"weights": uri, "data_root": uri, "workers": 3})
    values = config_for_people(config, tmp_path / "s.prototxt", 1)
    write_config(tmp_path, values)
    file = tmp_path / "config.yaml"
    assert SECRET not in file.read_text()
    assert file.read_text().startswith("# *** stands for a secret, which is not kept here")
    with pytest.raises(ConfigError) as told:
        make_config({}, file=file)
    assert str(told.value).splitlines() == [
        f"{name} is https://h/w.caffemodel?sig=*** in {file}, which does not keep its secret: give --{flag} again with "
        "the whole URI, or remove that line"
        for name, flag in (("weights", "weights"), ("data_root", "data-root"))
    ]
    # A resumed run has its weights in the checkpoint.
    resumed = make_config({"resume": tmp_path, "data_root": uri})
    assert (resumed.workers, str(resumed.data_root)) == (3, str(Path(uri)))


def secret_uri(chance: Random) -> str:
    """A URI of any scheme with a secret at any of its places, and other things around it."""
    scheme = chance.choice(("s3", "https", "http", "sftp", "redis", "rediss", "unix", "hdfs"))
    noise = "".join(one for one in text(chance) if one.isalnum() or one in "-._~/%")
    secret = SECRET + chance.choice(("", "%2F", "/x", "+a", "==", "@b", "~"))
    if chance.random() < 0.5:
        user = chance.choice(("me", "", "a.b", "a%40b"))
        return f"{scheme}://{user}:{secret}@host{chance.choice(('', ':80'))}/{noise}"
    name = chance.choice(NAMES)
    after = chance.choice(("", "&n=1", "#x", f"&{name}=2"))
    return (
        f"{scheme}://host/{noise}{chance.choice('?&').replace('&', '?n=1&')}{name}={secret}{after}"
    )


@pytest.mark.slow
def test_no_secret_of_any_uri_comes_into_a_message_or_file(tmp_path: Path) -> None:
    board = StatusBoard("sync", 1, 1, 1)
    for number, chance in enumerate(randoms()):
        uri = secret_uri(chance)
        given: dict[str, Any] = {
            name: uri
            for name in (
                "weights",
                "data_root",
                "copy_to",
                "redis",
                "resume",
                "ray",
                "compress",
                "servers",
            )
            if chance.random() < 0.4
        }
        told = ""
        try:
            config = make_config(given) if number % 4 == 0 else RunConfig(**given)
            told += str(config_for_people(config, tmp_path, 1))
        except ConfigError as error:
            told += str(error) + repr(error)
        try:
            with store_errors(uri, "cannot be read"):
                raise OSError(f"403, url={uri!r}")
        except DataError as error:
            told += str(error)
        told += RunCopy(tmp_path, uri, board.notice, watched=()).uri
        told += said(uri) + said([uri, {uri: uri}])
        board.notice(f"fetching {uri!r}, then '{uri}'; and {uri}")
        if number % 50 == 0:
            told += str(unforeseen(ValueError(f"{uri}: cannot"), tmp_path))
        assert SECRET not in told, (uri, told)
    assert SECRET not in str(vars(board))
    for file in tmp_path.rglob("*"):
        assert SECRET not in file.read_text()
