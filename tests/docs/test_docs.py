"""The documentation names only what is there: commands, options, links, paths, targets, variables."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from speedo.cli.main import main
from speedo.cli.original_options import NAMES
from speedo.launch.read_cluster import read_cluster
from speedo.run.config.formats import parse_phase
from speedo.run.config.option_table import rows
from speedo.run.config.run_config import RunConfig, make_config
from speedo.watch.status import Status, WorkerStatus

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCKER = ROOT / "docker"
RESULTS = sorted((ROOT / "bench" / "results").glob("*.md"))  # options there are those of their time
MODULES = [ROOT / "docs" / "architecture.md", ROOT / "docs" / "development.md"]

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
OPTION = re.compile(r"--[a-z][A-Za-z0-9-]*")
# Options of earlier versions, which the changelog names.
RETIRED = {
    *("--pace", "--no-pace", "--same-core", "--no-same-core", "--cpu"),
    *(f"--{no}{row.name.replace('_', '-')}" for row in rows() if row.parent for no in ("", "no-")),
}
# Options of benches and of this suite.
OTHERS = {
    "--rewrite-tables",
    "--rewrite-traces",
    "--sample",
    "--seconds",
    "--turns",
    "--variant",
    "--whole-only",
}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
every_page = pytest.mark.parametrize("page", [*PAGES, *RESULTS], ids=lambda page: page.name)


def blocks(text: str, *languages: str) -> Iterator[str]:
    for language, body in BLOCK.findall(text):
        if language in languages:
            yield body


def spans(text: str) -> list[str]:
    """Code within lines; a span may not cross a line."""
    return [span.strip() for span in SPAN.findall(BLOCK.sub("", text))]


def shell_lines(text: str) -> list[str]:
    """Commands of the page's shell blocks, continuation lines joined, comments removed."""
    lines = "\n".join(blocks(text, "sh")).replace("\\\n", " ").splitlines()
    return [line.split(" #")[0].strip() for line in lines if line.split(" #")[0].strip()]


def leaf(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that `speedo WORDS...` names, as far as it goes, and what is left."""
    command: click.Command = main
    rest = words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"there is no command {' '.join(words)!r}"
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def options_of(command: click.Command) -> set[str]:
    """Every option of this command and of those below it."""
    names = {"--help", "--help-all"}
    for parameter in command.params:
        names.update(parameter.opts + parameter.secondary_opts)
    if isinstance(command, click.Group):
        for below in command.commands.values():
            names |= options_of(below)
    return names


def speedo_commands() -> list[tuple[str, str]]:
    return [
        (page.name, line[line.index("speedo ") :])
        for page in PAGES
        for line in shell_lines(page.read_text(encoding="utf-8"))
        if re.match(r"(.* && )?(\.venv/bin/)?speedo ", line)
    ]


@pytest.mark.parametrize(("page", "line"), speedo_commands())
def test_a_command_in_a_block_parses_and_passes_the_checks_of_the_configuration(
    page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "mine:" in line:  # the rule of the page, in a file
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        begin = text.index("# mine.py")
        (tmp_path / "mine.py").write_text(text[begin : text.index("```", begin)])
    command, words = leaf(shlex.split(line))
    for name in words:
        if name.endswith(".txt"):
            (tmp_path / name).touch()  # a list of images has to be there
    check(command, words)


def check(command: click.Command, words: list[str]) -> None:
    """Parse the words as the command does, and make the configuration of a run of them."""
    with command.make_context(command.name, words) as context:
        if command.name not in ("train", "master", "launch"):
            return
        fields = RunConfig.model_fields
        given = {name: value for name, value in context.params.items() if name in fields}
    given["phases"] = [parse_phase(text) for text in context.params["phases"]] or None
    make_config(given)


def container_calls() -> list[list[str]]:
    """What a container is told: by `docker run` in the pages, by the image itself, by each service of compose.yaml."""
    image = re.search(r"^CMD (.*)$", (DOCKER / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert image is not None
    alone = list(json.loads(image[1]))
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text("utf-8"))["services"].values()
    calls = [alone, *(list(service["command"]) for service in services)]
    for page in PAGES:
        for line in shell_lines(page.read_text(encoding="utf-8")):
            words = shlex.split(line)
            if words[:2] == ["docker", "run"]:
                calls.append(words[words.index("speedo") + 1 :] or alone)
            elif words[:2] == ["docker", "compose"] and "exec" in words:
                calls.append(words[words.index("exec") + 2 :])
    return calls


@pytest.mark.processes
@pytest.mark.parametrize("call", container_calls(), ids=" ".join)
def test_what_a_container_is_told_passes_its_entrypoint_and_the_checks_of_the_configuration(
    call: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "speedo"
    program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    program.chmod(0o755)
    known = [
        "localhost" if word == "master" and place == 1 else word for place, word in enumerate(call)
    ]
    done = subprocess.run(
        [DOCKER / "entrypoint.sh", *known],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    command, words = leaf(["speedo", *done.stdout.splitlines()])
    check(command, words)


def test_a_container_alone_trains_as_the_original_did() -> None:
    command, words = leaf(["speedo", *container_calls()[0]])
    with command.make_context(command.name, words) as context:
        assert command.name == "train"
        assert (context.params["mode"], context.params["workers"]) == ("async", 3)
        assert context.params["max_iter"] == 1000


@each_page
def test_options_exist(page: Path) -> None:
    known = options_of(main) | OTHERS | RETIRED | NAMES
    for span in spans(page.read_text(encoding="utf-8")):
        words = span.split()
        if words[0] == "speedo":
            command, _ = leaf(words)
            assert set(OPTION.findall(span)) <= options_of(command), span
        elif span.startswith("-"):
            assert set(OPTION.findall(span)) <= known, span


@each_page
def test_yaml_examples_are_configurations_or_clusters(page: Path, tmp_path: Path) -> None:
    for number, body in enumerate(blocks(page.read_text(encoding="utf-8"), "yaml")):
        file = tmp_path / f"{number}.yaml"
        file.write_text(body)
        if re.search("^workers:$", body, re.MULTILINE):
            read_cluster(file, {})
        else:
            make_config({}, file=file)


@every_page
def test_links_resolve(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    """The names that headings get: lower case, spaces as hyphens, other signs gone."""
    headings = re.findall(
        r"^#+ (.+)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE
    )
    return {
        re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings
    }


@each_page
def test_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    text = page.read_text(encoding="utf-8")
    for line in [*spans(text), *shell_lines(text)]:
        named = re.match(r"make ([a-z]+)", line)
        if named:
            assert named[1] in targets, line


@pytest.mark.parametrize("page", MODULES, ids=lambda page: page.name)
def test_paths_of_the_repository_exist(page: Path) -> None:
    tops = ("speedo/", "tests/", "prototxt/", "scripts/", "bench/", "docs/")
    for span in spans(page.read_text(encoding="utf-8")):
        if span.startswith(tops):
            assert (ROOT / span).exists(), span


@each_page
def test_environment_variables_are_read_somewhere(page: Path) -> None:
    files = [*(ROOT / "speedo").rglob("*.py"), *(ROOT / "scripts").glob("*.sh")]
    source = "\n".join(file.read_text(encoding="utf-8") for file in files)
    for name in set(re.findall(r"\bSPEEDO_[A-Z_]+\b", page.read_text(encoding="utf-8"))):
        assert name in source, name


@every_page
def test_no_machine_is_named(page: Path) -> None:
    """Paths and servers of one machine are of no use to a reader of another."""
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"/(work|root|home|tmp)/|https?://", text)


def fields_of_status() -> tuple[set[str], set[str]]:
    """The fields of `speedo status --json` that running.md names: of a run, and of each of its workers."""
    text = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    table = text.partition("`speedo status --json` prints")[2].partition("| field | meaning |")[2]
    rows = [row.strip("|").split("|") for row in table.partition("\n\n")[0].splitlines()[2:]]
    named = {name for row in rows for name in SPAN.findall(row[0])}
    (workers,) = (row[1] for row in rows if row[0].strip() == "`workers`")
    return named, set(SPAN.findall(workers.partition(";")[0]))


def test_the_fields_of_a_status_are_in_the_table() -> None:
    """tests/watch holds the table and the output of a run together; this finds a new field without a run."""
    run, worker = fields_of_status()
    assert {one.name for one in dataclasses.fields(Status)} <= run
    assert worker == {one.name for one in dataclasses.fields(WorkerStatus)} | {"away"}


def test_the_pages_are_found() -> None:
    assert {"README.md", "CHANGELOG.md", "architecture.md", "modes.md", "running.md"} <= {
        page.name for page in PAGES
    }
    assert len(speedo_commands()) > 10
