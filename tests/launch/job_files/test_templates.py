from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import example, given
from hypothesis import strategies as st

from speedo.actors.join.worker_command import GRACE_S
from speedo.cli.main import main
from speedo.errors import ConfigError
from speedo.launch.job_files.templates import TrainingJob, kuberay, kubernetes, slurm, systemd
from tests.launch.job_files.kuberay_fields import RAY_JOB, problems
from tests.support.fuzz import randoms
from tests.support.fuzz import text as awkward
from tests.support.outside import outside as outside

KUBERNETES = "1.31"
# What a shell, YAML and systemd would each read as something else.
AWKWARD = ("a b", "it's", '"', "$HOME", "$(POD_IP)", "100%", "\\", "#", "- x", "{a: b}", "`id`", "")
words = st.one_of(
    st.sampled_from(AWKWARD),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12),
)


def speedo(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["template", *arguments], standalone_mode=False)


def documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def check_kubernetes(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


def pod_as_job(template: dict[str, Any]) -> dict[str, Any]:
    """A pod of a RayJob in a Job of Kubernetes, which has the same template."""
    spec = {"restartPolicy": "Never", **template["spec"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "pod"},
        "spec": {"template": {"metadata": template["metadata"], "spec": spec}},
    }


def check_ray_job(document: dict[str, Any]) -> None:
    assert (document["apiVersion"], document["kind"]) == ("ray.io/v1", "RayJob")
    assert problems(document["spec"], RAY_JOB) == []
    cluster = document["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        check_kubernetes(pod_as_job(group["template"]))


# ------------------------------------------------------------ Kubernetes


def test_a_rule_is_checked_with_its_mode_and_a_class_of_the_users_goes_along(outside: str) -> None:
    """The master refused it, on the cluster."""
    refused = speedo("slurm", "--", "--mode", "async", "--rule", "outer-momentum")
    assert "outer-momentum does not go with mode async" in refused.output
    assert "sbatch" not in refused.output
    words = ("--mode", "sync", "--rule", f"{outside}:Heavy,heavy=0.3", "--team", "off")
    assert " ".join(words) in speedo("slurm", "--", *words).output


@pytest.mark.parametrize("claim", ["", "mnist"])
def test_kubernetes_takes_every_object_of_the_file(claim: str) -> None:
    found = documents(kubernetes(TrainingJob(nodes=3, workers=2, cpus=2), data_claim=claim))
    for document in found:
        check_kubernetes(document)
    kinds = [one["kind"] for one in found]
    assert kinds == ["PersistentVolumeClaim", "Service", "NetworkPolicy", "Job", "Job"]
    master, workers = found[3:]
    assert workers["spec"]["completionMode"] == "Indexed"
    assert workers["spec"]["completions"] == workers["spec"]["parallelism"] == 3
    containers = [job["spec"]["template"]["spec"]["containers"][0] for job in (master, workers)]
    assert containers[0]["args"][2] == "6"  # the master waits for two of each pod
    assert containers[1]["args"][:4] == ["worker", "speedo-master", "--workers", "2"]
    seconds = [
        job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] for job in found[3:]
    ]
    assert seconds[0] > float(containers[0]["args"][4])  # who is stopped hands in what it has
    assert seconds[1] > GRACE_S + 10
    assert "--grace" not in containers[1]["args"]
    for job in (master, workers):
        claims = [
            v.get("persistentVolumeClaim") for v in job["spec"]["template"]["spec"]["volumes"]
        ]
        assert ({"claimName": "mnist", "readOnly": True} in claims) == bool(claim)


def test_the_check_of_kubernetes_finds_a_field_that_it_does_not_know() -> None:
    document = documents(kubernetes(TrainingJob()))[4]
    document["spec"]["completionMod"] = "Indexed"
    with pytest.raises(kubernetes_validate.ValidationError):
        check_kubernetes(document)


@given(st.lists(words, max_size=4))
@example(["$(POD_IP)", "$$(POD_IP)"])
def test_a_container_gets_the_options_as_they_were_given(options: list[str]) -> None:
    job = documents(kubernetes(TrainingJob(options=tuple(options))))[3]
    args = job["spec"]["template"]["spec"]["containers"][0]["args"]
    # Kubernetes makes $ of $$, and replaces $(NAME) only where no $ stands before it.
    assert [one.replace("$$", "$") for one in args[5:]] == options


# ------------------------------------------------------------ KubeRay


@pytest.mark.parametrize("claim", ["", "mnist"])
def test_kuberay_knows_every_field_of_the_file(claim: str) -> None:
    policy, job = documents(kuberay(TrainingJob(nodes=3), ray_version="2.60.0", data_claim=claim))
    check_kubernetes(policy)
    check_ray_job(job)
    assert job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"] == 3


def test_the_check_of_kuberay_finds_a_wrong_field_and_a_wrong_pod() -> None:
    _, job = documents(kuberay(TrainingJob(), ray_version="2.60.0"))
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]
    head["rayStartParams"]["num-cpus"] = 0
    job["spec"]["entrypoints"] = "x"
    assert len(problems(job["spec"], RAY_JOB)) == 2
    head["template"]["spec"]["containers"][0]["imag"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError):
        check_kubernetes(pod_as_job(head["template"]))


def test_only_the_run_and_the_operator_reach_a_cluster_of_kuberay_and_only_with_the_token() -> None:
    """The dashboard answers on every address: the operator asks it from another pod, in each way to submit."""
    policy, job = documents(kuberay(TrainingJob(name="mine"), ray_version="2.60.0"))
    cluster = job["spec"]["rayClusterSpec"]
    pods = [one["template"] for one in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    own = {"matchLabels": {"app": "mine"}}
    assert policy["spec"]["podSelector"] == own
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    team, operator = policy["spec"]["ingress"]
    assert team == {"from": [{"podSelector": own}]}
    assert operator["ports"] == [{"protocol": "TCP", "port": 8265}]
    (asking,) = operator["from"]
    assert asking["podSelector"] == {
        "matchLabels": {"app.kubernetes.io/component": "kuberay-operator"}
    }
    for pod in pods:
        assert pod["metadata"]["labels"]["app"] == "mine"
        (container,) = pod["spec"]["containers"]
        assert container["env"] == [
            {"name": "RAY_AUTH_MODE", "value": "token"},
            {
                "name": "RAY_AUTH_TOKEN",
                "valueFrom": {"secretKeyRef": {"name": "mine-token", "key": "auth_token"}},
            },
        ]
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert cluster["authOptions"] == {"mode": "token", "secretName": "mine-token"}


@given(st.lists(words, max_size=4))
def test_the_entrypoint_is_one_command_for_a_shell(options: list[str]) -> None:
    _, job = documents(kuberay(TrainingJob(options=tuple(options)), ray_version="2.60.0"))
    found = shlex.split(job["spec"]["entrypoint"])
    assert found[:4] == ["speedo", "train", "--ray", "auto"]
    assert found[len(found) - len(options) :] == options


# ------------------------------------------------------------ Slurm


@pytest.mark.processes
@pytest.mark.parametrize("more", [{}, {"apptainer": "my image.sif"}, {"pyxis": "a/b:1"}])
def test_bash_reads_the_script_of_slurm(more: dict[str, str]) -> None:
    text = slurm(TrainingJob(), data_root="/a b", **more)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    directives = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --nodes=2" in directives
    # The master alone is stopped before the end of the time, and has --grace 100.
    assert "#SBATCH --signal=B:TERM@120" in directives
    # Who is cancelled or preempted has 30 s, by Slurm's usual KillWait.
    assert "--grace" not in text.partition(" worker --master")[2]
    assert GRACE_S < 30
    assert text.splitlines().index(directives[-1]) < text.splitlines().index("set -euo pipefail")


@pytest.mark.processes
@given(st.lists(words, max_size=4))
def test_the_shell_reads_the_options_as_they_were_given(options: list[str]) -> None:
    (line,) = [
        one
        for one in slurm(TrainingJob(options=tuple(options))).splitlines()
        if one.startswith("options=")
    ]
    script = line + '\nprintf "%s\\0" "${#options[@]}" "${options[@]}"'
    output = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    count, *found = output.stdout.split("\0")[:-1]
    assert int(count) == len(options)
    assert found[: len(options)] == options


def slurm_stand_ins(folder: Path, workers_status: int) -> Path:
    """Slurm's commands for one node that is this machine, and a speedo that writes down how it was called."""
    tools = {
        "scontrol": "echo node1",
        "srun": 'while [[ "$1" == --* ]]; do shift; done\nexec "$@"',
        "getent": "echo 10.0.0.7 STREAM node1",
        "speedo": f'echo "$*" >>{folder}/calls\nstat -c "%a" "$SPEEDO_TOKEN_FILE" >>{folder}/modes\n'
        f'wc -c <"$SPEEDO_TOKEN_FILE" >>{folder}/modes\n[ "$1" = master ] && exit 3\nexit {workers_status}',
    }
    for name, text in tools.items():
        path = folder / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
    return folder


@pytest.mark.processes
@pytest.mark.parametrize("workers_status", [0, 1])
def test_the_script_ends_with_the_status_of_the_master_and_without_the_token(
    tmp_path: Path, workers_status: int
) -> None:
    tools = slurm_stand_ins(tmp_path, workers_status)
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node1",
    }
    text = slurm(TrainingJob(nodes=1, workers=2, cpus=3, options=("--mode", "easgd")))
    done = subprocess.run(
        ["bash", "-s"], input=text, text=True, cwd=tmp_path, env=environment, timeout=30
    )
    assert done.returncode == 3
    calls = sorted((tmp_path / "calls").read_text().splitlines())
    assert calls == [
        "master --host 10.0.0.7 --port 20700 --workers 2 --grace 100 --mode easgd",
        "worker --master 10.0.0.7:20700 --workers 2 --threads 3",
    ]
    modes = (tmp_path / "modes").read_text().split()
    assert sorted(modes) == ["600", "600", "64", "64"]
    assert not list(tmp_path.glob(".speedo-*"))


# ------------------------------------------------------------ systemd


@pytest.mark.processes
@pytest.mark.parametrize("role", ["master", "worker", "server"])
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path, role: str) -> None:
    command = tmp_path / "speedo"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    text = systemd(
        TrainingJob(options=("--lr", "0.1")),
        role=role,
        address="10.0.0.5",
        speedo=str(command),
        data_root="/data",
    )
    unit = tmp_path / f"speedo-{role}.service"
    unit.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (done.returncode, str(unit) in done.stderr) == (0, False), done.stderr


@pytest.mark.processes
def test_systemd_finds_a_wrong_line(tmp_path: Path) -> None:
    unit = tmp_path / "speedo-worker.service"
    text = systemd(TrainingJob(), role="worker", address="a", speedo="/bin/true")
    unit.write_text(text.replace("KillMode=mixed", "KillMode=mixxed"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert "mixxed" in done.stderr


# ------------------------------------------------------------ the command


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("slurm", "--", "--mode", "esgd"), "'esgd' is not one of"),
        (("slurm", "--memory", "4"), "--memory '4'"),
        (("slurm", "--time", "soon"), "--time 'soon'"),
        (("slurm", "--partition", "a\nb"), "--partition"),
        (("slurm", "--apptainer", "a", "--pyxis", "b"), "one of them"),
        (("kubernetes", "--name", "Speedo"), "--name 'Speedo'"),
        (("kubernetes", "--image", "a b"), "--image 'a b'"),
        (("kubernetes", "--data-claim", "x}"), "--data-claim"),
        (("kubernetes", "--", "a\nb"), "control character"),
        (("systemd", "worker", "--address", "a b"), "--address"),
        (("systemd", "worker", "--address", "a", "--speedo", "speedo"), "--speedo"),
        (("kubernetes", "--", "a\x7f"), "control character"),
        (("kuberay", "--", "a\u2028b"), "cannot be printed"),
        (("slurm", "--data-root", "a\nb"), "--data-root 'a\\nb' has a control character"),
        (("slurm", "--apptainer", "a\n#SBATCH --uid=0"), "--apptainer"),
        (("slurm", "--pyxis", "a\rb"), "--pyxis"),
        (("systemd", "worker", "--address", "a", "--speedo", "/a\x1b"), "--speedo"),
        (
            ("systemd", "worker", "--address", "a", "--data-root", "/d\nExecStartPre=/bin/id"),
            "--data-root '/d\\nExecStartPre=/bin/id' has a control character",
        ),
        (
            ("systemd", "master", "--address", "a", "--", "--redis", "redis://:TheSecret@h"),
            "has a secret",
        ),
        (("systemd", "boss", "--address", "a"), "'boss' is not one of"),
    ],
)
def test_a_value_that_the_file_could_not_hold_is_refused(
    arguments: tuple[str, ...], told: str
) -> None:
    result = speedo(*arguments)
    assert result.exit_code != 0 or result.exception is not None
    assert told in f"{result.output}{result.exception}"
    assert "apiVersion" not in result.output


def test_a_value_with_the_form_of_a_name_of_the_template_stays_as_it_is() -> None:
    for data_root in ("/@{role}", "/@{nothing}"):
        text = systemd(TrainingJob(), role="worker", address="a", data_root=data_root)
        assert f"Environment=SPEEDO_DATA={data_root}\n" in text


def test_a_unit_has_the_data_root_as_it_was_given() -> None:
    text = systemd(TrainingJob(), role="worker", address="a", data_root='/a b/100%/$HOME/"q"/\\')
    # $ begins a variable in ExecStart alone.
    assert 'Environment="SPEEDO_DATA=/a b/100%%/$HOME/\\"q\\"/\\\\"\n' in text


def test_a_letter_beyond_16_bits_stays_one() -> None:
    options = ("a\U0001f600", "é")
    job = documents(kubernetes(TrainingJob(options=options)))[3]
    assert job["spec"]["template"]["spec"]["containers"][0]["args"][5:] == [*options]


def test_no_value_adds_a_line_or_a_key_to_a_file() -> None:
    made: dict[str, Callable[[str], str]] = {
        "slurm": lambda one: slurm(TrainingJob(options=(one,)), apptainer=one, data_root=one),
        "pyxis": lambda one: slurm(TrainingJob(name=one), pyxis=one, partition=one),
        "systemd": lambda one: systemd(
            TrainingJob(options=(one,)), role="master", address="a", data_root=one
        ),
        "kubernetes": lambda one: kubernetes(TrainingJob(options=(one,)), image="x", storage="1Gi"),
        "kuberay": lambda one: kuberay(TrainingJob(options=(one,)), ray_version="2"),
    }
    lines = {name: len(make("a").splitlines()) for name, make in made.items()}
    taken = 0
    for chance in randoms():
        name = chance.choice([*lines])
        one = awkward(chance) or "a"
        try:
            found = made[name](one)
        except ConfigError:
            continue
        taken += 1
        assert len(found.splitlines()) == lines[name], (name, one)
    assert taken
