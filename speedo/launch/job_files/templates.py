"""Fills the templates of this room: each value is quoted for the language of its file."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Final

from speedo.errors import ConfigError, hide_secrets

NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?")
MEMORY: Final = re.compile(r"[1-9][0-9]*(Mi|Gi)")
TIME: Final = re.compile(r"([0-9]+-)?[0-9]{1,2}:[0-5][0-9](:[0-5][0-9])?")
# No white space or quotes: these stand in comments and in plain YAML too.
REFERENCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]*")
# Ray keeps 80 MB there, and the vectors of workers on one host are there.
SHARED_MEMORY: Final = "1Gi"


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """What is to be trained, and by how many: `nodes` hosts or pods with `workers` each.

    `options` are those of `speedo master`, with SOLVER. `cpus` are cores for each worker, `memory` is for one host or
    pod, as in 4Gi.
    """

    name: str = "speedo"
    nodes: int = 2
    workers: int = 1
    cpus: int = 1
    memory: str = "4Gi"
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check("--name", self.name, NAME, "lower-case letters, digits and -, at most 42")
        _check("--memory", self.memory, MEMORY, "a number and Mi or Gi, as in 4Gi")
        for option in self.options:
            _check_text("option", option)
            if (shown := hide_secrets(option)) != option:
                raise ConfigError(
                    f"option {shown} has a secret, which everybody who sees the file or the list of processes could "
                    "read: leave it out, and give it to the master in a variable, as SPEEDO_REDIS_PASSWORD"
                )

    @property
    def total(self) -> int:
        """Workers of the run."""
        return self.nodes * self.workers


def slurm(
    training: TrainingJob,
    *,
    time: str = "04:00:00",
    partition: str = "",
    apptainer: str = "",
    pyxis: str = "",
    data_root: str = "",
) -> str:
    """A script for sbatch. `apptainer`: an image file that runs it; `pyxis`: an image for `srun --container-image`.

    Raises `ConfigError` for values that Slurm would not take.
    """
    _check("--time", time, TIME, "HOURS:MINUTES:SECONDS or DAYS-HOURS:MINUTES")
    if partition:
        _check("--partition", partition, REFERENCE, "one name")
    for option, value in (
        ("--apptainer", apptainer),
        ("--pyxis", pyxis),
        ("--data-root", data_root),
    ):
        _check_text(option, value)
    if apptainer and pyxis:
        raise ConfigError("--apptainer and --pyxis are two ways to run one image: give one of them")
    command = ["speedo"]
    if apptainer:
        command = ["apptainer", "exec", "--bind", "$PWD", apptainer, "speedo"]
    srun = ""
    if pyxis:
        srun = f'--container-image={shlex.quote(pyxis)} --container-mounts="$PWD:$PWD" --container-workdir="$PWD" '
    root = f"--data-root {shlex.quote(data_root)} " if data_root else ""
    return _fill(
        "slurm.sh",
        name=training.name,
        nodes=training.nodes,
        workers=training.workers,
        total=training.total,
        threads=training.cpus,
        cpus_per_node=training.workers * training.cpus + 1,
        memory=training.memory.removesuffix("i"),
        time=time,
        partition_line=f"#SBATCH --partition={partition}" if partition else "",
        command=" ".join('"$PWD"' if one == "$PWD" else shlex.quote(one) for one in command),
        options=shlex.join([*training.options, *(("--data-root", data_root) if data_root else ())]),
        srun_options=srun,
        worker_options=root,
    )


def kubernetes(
    training: TrainingJob, *, image: str = "speedo", storage: str = "1Gi", data_claim: str = ""
) -> str:
    """Jobs for a master and its workers, with service, network policy and volume.

    `data_claim` is a volume claim that is mounted read-only as the data root. Raises `ConfigError`.
    """
    _check("--storage", storage, MEMORY, "a number and Mi or Gi, as in 1Gi")
    _check_image(image)
    return _fill(
        "kubernetes.yaml",
        name=training.name,
        workers=training.nodes,
        workers_per_pod=training.workers,
        threads=training.cpus,
        total=training.total,
        image=json.dumps(image),
        cpus=training.workers * training.cpus,
        memory=training.memory,
        storage=storage,
        shared_memory=SHARED_MEMORY,
        options="".join(f", {_yaml(_kept(one))}" for one in training.options),
        **_data(data_claim),
    )


def kuberay(
    training: TrainingJob,
    *,
    image: str = "speedo",
    ray_version: str,
    runs_claim: str = "speedo-runs",
    data_claim: str = "",
) -> str:
    """A RayJob of KubeRay, which trains by `speedo train --ray auto`. Raises `ConfigError`."""
    _check_image(image)
    _check("--runs-claim", runs_claim, NAME, "the name of a volume claim")
    resources = ["--ray", f"resources=cpu={training.cpus}"]
    command = ["speedo", "train", "--ray", "auto", "--workers", str(training.total), *resources]
    return _fill(
        "kuberay.yaml",
        name=training.name,
        workers=training.nodes,
        image=json.dumps(image),
        cpus=training.workers * training.cpus,
        memory=training.memory,
        ray_version=ray_version,
        runs_claim=runs_claim,
        shared_memory=SHARED_MEMORY,
        entrypoint=_yaml(shlex.join([*command, *training.options])),
        **_data(data_claim),
    )


def systemd(
    training: TrainingJob,
    *,
    role: str,
    address: str,
    speedo: str = "/opt/speedo/bin/speedo",
    data_root: str = "",
) -> str:
    """A unit for a master at `address`, or for a worker or server that joins the one there. Raises `ConfigError`."""
    _check("--address", address, REFERENCE, "a host's name or address")
    _check("--speedo", speedo, re.compile(r"/[^\s\"'\\%$]*"), "an absolute path")
    _check_text("--speedo", speedo)
    _check_text("--data-root", data_root)
    if role == "master":
        arguments = ["master", "--host", address, "--workers", str(training.total), "--grace", "75"]
        arguments += training.options
        restart = "Restart=no"
    else:
        arguments = [role, "--master", address]
        if role == "worker":
            arguments += ["--workers", str(training.workers), "--threads", str(training.cpus)]
        restart = "# It waits for the next run of the master.\nRestart=always\nRestartSec=10"
    return _fill(
        "systemd.service",
        role=role,
        unit=f"{training.name}-{role}.service",
        command=" ".join(_unit_word(one) for one in [speedo, *arguments]),
        restart=restart,
        data_line=f"Environment={_quoted('SPEEDO_DATA=' + data_root)}" if data_root else "",
    )


def _fill(file: str, **values: object) -> str:
    """The file with a value for each `@{name}`; `$` belongs to the shell.

    A name that has a line for itself may stand for several lines, or for none.
    """
    text = (Path(__file__).parent / file).read_text(encoding="utf-8")

    def filled(found: re.Match[str]) -> str:
        if found[3]:
            return str(values[found[3]])
        value = str(values[found[2]])
        return indent(value, found[1]) + "\n" if value else ""

    # In one pass: a value may have the form of a name.
    return re.sub(r"^( *)@\{(\w+)\}\n|@\{(\w+)\}", filled, text, flags=re.MULTILINE)


def _data(claim: str) -> dict[str, str]:
    """The lines that mount a claim at the data root of the image."""
    if not claim:
        return {"data_mount": "", "data_volume": ""}
    _check("--data-claim", claim, NAME, "the name of a volume claim")
    return {
        "data_mount": "- {name: data, mountPath: /srv/speedo/data, readOnly: true}",
        "data_volume": "- name: data\n"
        f"  persistentVolumeClaim: {{claimName: {claim}, readOnly: true}}",
    }


def _kept(argument: str) -> str:
    """An argument of a container in which Kubernetes replaces nothing: it would take $(NAME) for a variable."""
    return argument.replace("$", "$$")


def _unit_word(word: str) -> str:
    """One word of a command in a unit, where $ begins a variable."""
    return _quoted(word.replace("$", "$$"))


def _quoted(word: str) -> str:
    """One word of any line of a unit: % is systemd's own, and white space divides."""
    word = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{word}"' if not word or re.search(r"[\s;']", word) else word


def _check(option: str, value: str, form: re.Pattern[str], what: str) -> None:
    if not form.fullmatch(value):
        raise ConfigError(f"{option} {value!r}: give {what}")


def _check_image(image: str) -> None:
    _check("--image", image, REFERENCE, "an image's name, as in registry/speedo:1.0")


def _check_text(option: str, value: str) -> None:
    """A line end would begin another line of the file; other characters that nobody sees have no place there either."""
    if not value.isprintable():
        raise ConfigError(
            f"{option} {value!r} has a control character, or another that cannot be printed: it cannot stand in a file"
        )


def _yaml(text: str) -> str:
    """A quoted string: JSON's, but with characters beyond 16 bits as they are, which YAML has no pairs for."""
    return json.dumps(text, ensure_ascii=False)
