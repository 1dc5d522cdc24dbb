"""What a container makes of its arguments, its secrets and its health, tried on the scripts themselves."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

DOCKER = Path(__file__).resolve().parents[2] / "docker"
NOBODY = 65534

# Stands in for the command: says what it was called with, and which secrets it sees.
SPEEDO = """#!/bin/sh
for word in "$@"; do printf '<%s>' "$word"; done
echo
echo "token $(stat -c '%a %u' "$SPEEDO_TOKEN_FILE" 2>/dev/null) $(cat "$SPEEDO_TOKEN_FILE" 2>/dev/null)"
echo "password $SPEEDO_REDIS_PASSWORD"
"""


@pytest.fixture
def container(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "speedo"
    program.write_text(SPEEDO)
    program.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    return tmp_path


def run(
    container: Path, script: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [DOCKER / script, *arguments],
        env={
            "PATH": f"{container / 'bin'}:{os.environ['PATH']}",
            "TMPDIR": str(container / "tmp"),
            **environment,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )


def called_with(container: Path, *arguments: str) -> str:
    done = run(container, "entrypoint.sh", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[0]


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (
            "master 10.0.0.5 3 --mode easgd",
            "master --host 10.0.0.5 --workers 3 --mode easgd",
        ),
        ("master localhost 2 net.prototxt", "master --host 127.0.0.1 --workers 2 net.prototxt"),
        ("master --host 10.0.0.5 --workers 3", "master --host 10.0.0.5 --workers 3"),
        ("master", "master"),
        ("worker 10.0.0.5", "worker --master 10.0.0.5"),
        ("worker chief:7000 --workers 2", "worker --master chief:7000 --workers 2"),
        ("worker --master 10.0.0.5", "worker --master 10.0.0.5"),
        ("train --workers 4", "train --workers 4"),
        ("speedo data mnist m", "data mnist m"),
        ("--help", "--help"),
    ],
)
def test_the_calls_of_the_original_and_every_command_reach_speedo(
    container: Path, arguments: str, command: str
) -> None:
    expected = "".join(f"<{word}>" for word in command.split())
    assert called_with(container, *arguments.split()) == expected


def test_words_with_spaces_stay_whole(container: Path) -> None:
    assert called_with(container, "train", "my net.prototxt") == "<train><my net.prototxt>"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("master 10.0.0.5", "say how many workers to wait for"),
        ("master 10.0.0.5 many", "say how many workers to wait for"),
        ("master no.such.host.invalid 3", "the name no.such.host.invalid is not known"),
        ("worker 10.0.0.5 192.0.2.77", "192.0.2.77 is no address of this container"),
    ],
)
def test_a_call_that_cannot_work_is_told_in_a_sentence(
    container: Path, arguments: str, words: str
) -> None:
    done = run(container, "entrypoint.sh", *arguments.split())
    assert done.returncode == 2
    assert done.stderr.startswith("speedo: ")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


# ---------------------------------------------------------------- secrets


def test_a_private_token_is_used_where_it_lies(container: Path) -> None:
    token = container / "token"
    token.write_text("a secret\n")
    token.chmod(0o600)
    done = run(container, "entrypoint.sh", "train", SPEEDO_TOKEN_FILE=str(token))
    assert done.stdout.splitlines()[1] == f"token 600 {os.getuid()} a secret"
    assert not list((container / "tmp").iterdir())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_a_secret_that_the_engine_made_readable_for_all_is_copied_and_closed(
    container: Path,
) -> None:
    token = container / "token"
    token.write_text("a secret\n")
    token.chmod(0o444)
    os.chown(token, NOBODY, NOBODY)
    done = run(container, "entrypoint.sh", "train", SPEEDO_TOKEN_FILE=str(token))
    assert done.stdout.splitlines()[1] == f"token 600 {os.getuid()} a secret"
    (copy,) = (container / "tmp").iterdir()
    assert copy.stat().st_mode & 0o777 == 0o600


def test_the_own_token_that_is_open_to_others_is_left_for_speedo_to_refuse(
    container: Path,
) -> None:
    token = container / "token"
    token.write_text("a secret\n")
    token.chmod(0o644)
    done = run(container, "entrypoint.sh", "train", SPEEDO_TOKEN_FILE=str(token))
    assert done.stdout.splitlines()[1].startswith("token 644 ")


def test_a_password_comes_from_a_file_and_never_shows_among_the_arguments(container: Path) -> None:
    file = container / "password"
    file.write_text("of redis\n")
    done = run(container, "entrypoint.sh", "train", SPEEDO_REDIS_PASSWORD_FILE=str(file))
    assert done.stdout.splitlines()[::2] == ["<train>", "password of redis"]


def test_a_password_file_that_is_missing_is_named(container: Path) -> None:
    done = run(container, "entrypoint.sh", "train", SPEEDO_REDIS_PASSWORD_FILE="/no/such/file")
    assert done.returncode == 2
    assert "/no/such/file" in done.stderr


# ---------------------------------------------------------------- health


def test_a_master_and_a_worker_are_well_while_the_master_answers(container: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        for arguments in (
            ("master", "127.0.0.1", "3", "--port", port),
            ("master", "127.0.0.1", "3", f"--port={port}"),
            ("worker", f"127.0.0.1:{port}"),
        ):
            called_with(container, *arguments)
            assert run(container, "healthcheck.sh").returncode == 0, arguments
    sick = run(container, "healthcheck.sh")
    assert sick.returncode == 1
    assert sick.stdout == f"nothing answers at 127.0.0.1:{port}\n"


def test_without_an_option_the_port_is_the_one_of_speedo(container: Path) -> None:
    from speedo.run.config.run_config import DEFAULT_PORT

    for arguments in (("master", "127.0.0.1", "3"), ("worker", "127.0.0.1")):
        called_with(container, *arguments)
        served = (container / "tmp" / "speedo-served").read_text()
        assert served == f"127.0.0.1 {DEFAULT_PORT}\n"


def test_other_commands_are_well_as_long_as_they_run(container: Path) -> None:
    called_with(container, "train")
    assert run(container, "healthcheck.sh").returncode == 0


@pytest.mark.parametrize("call", ["master 127.0.0.1 1", "worker 127.0.0.1"])
def test_nothing_is_written_through_a_link_that_another_user_put_in_the_way(
    container: Path, call: str
) -> None:
    precious = container / "precious"
    precious.write_text("kept")
    (container / "tmp" / "speedo-served").symlink_to(precious)
    done = run(container, "entrypoint.sh", *call.split())
    assert done.returncode == 0, done.stderr
    assert precious.read_text() == "kept"
    assert (container / "tmp" / "speedo-served").read_text().startswith("127.0.0.1 56126")
