"""The image is pinned, runs as nobody special, holds no secret, and what is beside it fits."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
SCRIPTS = sorted(DOCKER.glob("*.sh"))
# Beside the interpreter of .venv, or installed otherwise.
HADOLINT = Path(sys.executable).with_name("hadolint")


def stages() -> list[list[tuple[str, str]]]:
    """The Dockerfile's stages, each a list of instructions with their words; comments are left out."""
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    found: list[list[tuple[str, str]]] = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        name, _, words = line.partition(" ")
        if name == "FROM":
            found.append([])
        found[-1].append((name, " ".join(words.split())))
    return found


def words_of(stage: list[tuple[str, str]], instruction: str) -> list[str]:
    return [words for name, words in stage if name == instruction]


def compose() -> dict[str, Any]:
    text: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
    return text


# ---------------------------------------------------------------- Dockerfile


def test_every_base_is_an_earlier_stage_or_bears_a_date() -> None:
    earlier: set[str] = set()
    for stage in stages():
        base, *name = words_of(stage, "FROM")[0].split(" AS ")
        assert base in earlier or re.fullmatch(r"debian:bookworm-20\d{6}-slim", base), base
        earlier.update(name)


def test_the_runtime_has_a_user_without_rights_a_health_check_and_an_init() -> None:
    runtime = stages()[-1]
    assert words_of(runtime, "USER") == ["1000:1000"]
    names = [name for name, _ in runtime]
    assert "USER" in names[names.index("COPY") :], "what is copied must belong to root"
    assert len(words_of(runtime, "HEALTHCHECK")) == 1
    assert words_of(runtime, "ENTRYPOINT") == ['["tini", "--", "speedo-entrypoint"]']


def test_the_runtime_has_no_compiler_and_nothing_of_the_build_but_the_environment() -> None:
    runtime = stages()[-1]
    assert words_of(runtime, "FROM") == ["system"]
    copied = [words for words in words_of(runtime, "COPY") if "--from=" in words]
    assert copied == ["--from=build /opt/speedo /opt/speedo"]
    assert not any("apt-get" in words for words in words_of(runtime, "RUN"))


def test_package_lists_are_removed_by_the_step_that_fetched_them() -> None:
    steps = [words for stage in stages() for words in words_of(stage, "RUN") if "apt-get" in words]
    assert steps
    for step in steps:
        assert "/var/lib/apt/lists/*" in step.partition("apt-get update")[2], step
        assert "--no-install-recommends" in step


def test_no_secret_and_no_server_is_named() -> None:
    for file in [DOCKER / "Dockerfile", DOCKER / "compose.yaml", *SCRIPTS]:
        assert not re.search(r"://\w", file.read_text(encoding="utf-8")), file
    for stage in stages():
        for words in words_of(stage, "ENV") + words_of(stage, "ARG") + words_of(stage, "LABEL"):
            assert not re.search(r"token|password|secret", words, re.IGNORECASE), words


def test_what_is_copied_is_there_and_passes_the_list_of_what_is_ignored() -> None:
    let_in = {
        line[1:].rstrip("/")
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    for stage in stages():
        for words in words_of(stage, "COPY"):
            if words.startswith("--from="):
                continue
            for source in words.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert source.split("/")[0] in let_in, source


def test_tokens_and_runs_never_enter_the_build() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in lines, "everything that is not let in by name stays out"
    assert lines.index("docker/token") > lines.index("!docker/")
    assert "/token" in (DOCKER / ".gitignore").read_text(encoding="utf-8").splitlines()


@pytest.mark.processes
def test_hadolint_finds_nothing() -> None:
    subprocess.run([HADOLINT, DOCKER / "Dockerfile"], check=True)


# ---------------------------------------------------------------- scripts and compose.yaml


@pytest.mark.processes
def test_shellcheck_finds_nothing() -> None:
    subprocess.run(["shellcheck", "-x", *SCRIPTS], cwd=ROOT, check=True)


def test_compose_has_a_master_and_three_workers_of_one_image() -> None:
    services = compose()["services"]
    assert set(services) == {"master", "worker"}
    assert {service["image"] for service in services.values()} == {"speedo"}
    assert services["worker"]["deploy"]["replicas"] == 3
    assert services["master"]["command"][:3] == ["master", "master", "3"]
    assert services["worker"]["command"] == ["worker", "master"]
    # Docker kills 10 s after SIGTERM, unless told; a worker hands in what it has within 25 s.
    assert (services["worker"]["stop_grace_period"], services["master"]["stop_grace_period"]) == (
        "40s",
        "60s",
    )


def test_compose_opens_nothing_and_hands_the_secret_on_as_a_file() -> None:
    whole = compose()
    for name, service in whole["services"].items():
        assert not {"ports", "privileged", "network_mode", "cap_add"} & set(service), name
        assert service["secrets"] == ["speedo_token"]
        given = {key: value for key, value in service["environment"].items() if value is not None}
        assert given == {"SPEEDO_TOKEN_FILE": "/run/secrets/speedo_token"}
    assert whole["secrets"] == {"speedo_token": {"file": "token"}}


def test_only_the_master_of_compose_writes_to_the_volume() -> None:
    services = compose()["services"]
    assert services["master"]["volumes"] == ["shared:/srv/speedo"]
    assert services["worker"]["volumes"] == ["shared:/srv/speedo:ro"]
