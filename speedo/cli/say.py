"""Prints a text, as the one way from the commands to a terminal that no text from elsewhere can steer."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from caffenets.files import open_to_write
from speedo.errors import ConfigError, hide_secrets
from speedo.system.foreign_text import MOST_TEXT, clean_lines
from speedo.system.standard_streams import unread


def say(text: object, *, err: bool = False) -> None:
    """A result to standard output, whole: others read it; or a message to standard error, each line bounded."""
    click.echo(clean_lines(text, MOST_TEXT if err else sys.maxsize - 1), err=err)


def put(text: str, output: Path | None) -> None:
    """A text of ours to standard output, or to a file, whose name is said then. Raises `ConfigError`."""
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        with open_to_write(output) as file:
            file.write(text.encode())
    except OSError as error:
        raise ConfigError(
            f"--output {output} cannot be written ({error.strerror}); give another"
        ) from None
    say(output)


def complain(*problems: str) -> None:
    """One line of standard error for each problem."""
    try:
        for problem in problems:
            # Indented, so that no name of a file with an end of line in it speaks in our name.
            say(f"speedo: {hide_secrets(problem)}".replace("\n", "\n  "), err=True)
    except OSError:
        unread(2)
