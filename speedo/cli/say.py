"""Prints a text, as the one way from the commands to a terminal that no text from elsewhere can steer."""

from __future__ import annotations

import sys

import click

from speedo.foreign_text import MOST_TEXT, clean_lines


def say(text: object, *, err: bool = False) -> None:
    """A result to standard output, whole: others read it; or a message to standard error, each line bounded."""
    click.echo(clean_lines(text, MOST_TEXT if err else sys.maxsize - 1), err=err)
