"""A command is imported when it is called: help, the version and a mistake cost no import of what a run needs."""

from __future__ import annotations

import re
import subprocess
import sys

import click
import pytest

from speedo.cli.main import GROUPS, HIDDEN, main

HEAVY = {"ray", "numpy", "pydantic", "google", "torch", "matplotlib", "rich", "yaml", "redis"}


def imported_by(*words: str) -> set[str]:
    """The packages that `speedo WORDS...` imports."""
    command = [sys.executable, "-X", "importtime", "-m", "speedo", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    modules = re.findall(r"^import time: .*\| +(\S+)$", done.stderr, re.MULTILINE)
    return {name.split(".")[0] for name in modules}


@pytest.mark.processes
@pytest.mark.parametrize("words", [(), ("--help",), ("--version",), ("tarin",), ("--mode", "sync")])
def test_click_alone_is_imported_for_help_the_version_and_a_mistake(words: tuple[str, ...]) -> None:
    found = imported_by(*words)
    assert "click" in found
    assert not found & HEAVY


@pytest.mark.processes
def test_the_page_of_train_needs_no_ray_and_no_terminal() -> None:
    found = imported_by("train", "--help")
    assert "pydantic" in found  # its options are those of the configuration
    assert not found & {"ray", "google", "torch", "matplotlib", "rich", "redis", "lmdb"}


def test_every_command_of_the_list_is_there_under_its_name() -> None:
    page = " ".join(main.get_help(click.Context(main)).split())
    for group, commands in GROUPS.items():
        assert f" {group}: {next(iter(commands))} " in page
        for name, (_, text) in commands.items():
            assert main.commands[name].name == name
            assert not main.commands[name].hidden
            assert text.endswith(".")
            assert f" {name} {text}" in page
    for name in HIDDEN:
        assert main.commands[name].hidden
        assert name not in page
