"""The fields of a RayJob that KubeRay's published reference of ray.io/v1 lists, as far as a file of ours may use them.

`Pod` stands for Kubernetes' own PodTemplateSpec. A name that is not here is a mistake, as it is to the operator.
"""

from __future__ import annotations

from typing import Any

POD = "PodTemplateSpec"
STRINGS = dict[str, str]

AUTH = {"mode": ("disabled", "token"), "secretName": str}
HEAD = {"template": POD, "rayStartParams": STRINGS, "serviceType": str, "enableIngress": bool}
WORKERS = {
    "groupName": str,
    "replicas": int,
    "minReplicas": int,
    "maxReplicas": int,
    "idleTimeoutSeconds": int,
    "numOfHosts": int,
    "suspend": bool,
    "rayStartParams": STRINGS,
    "template": POD,
}
CLUSTER = {
    "rayVersion": str,
    "authOptions": AUTH,
    "enableInTreeAutoscaling": bool,
    "headGroupSpec": HEAD,
    "workerGroupSpecs": [WORKERS],
    "suspend": bool,
}
RAY_JOB: dict[str, Any] = {
    "activeDeadlineSeconds": int,
    "backoffLimit": int,
    "entrypoint": str,
    "entrypointNumCpus": float,
    "entrypointNumGpus": float,
    "jobId": str,
    "metadata": STRINGS,
    "rayClusterSpec": CLUSTER,
    "runtimeEnvYAML": str,
    "shutdownAfterJobFinishes": bool,
    "submissionMode": ("K8sJobMode", "HTTPMode", "InteractiveMode"),
    "suspend": bool,
    "ttlSecondsAfterFinished": int,
}


def problems(value: Any, form: Any, place: str = "spec") -> list[str]:
    """Where `value` is not of `form`."""
    if form == POD:
        return [] if isinstance(value, dict) and {"spec"} <= set(value) else [f"{place}: no pod"]
    if isinstance(form, tuple):
        return [] if value in form else [f"{place}: {value!r} is none of {form}"]
    if form == STRINGS:
        bad = {name: one for name, one in value.items() if not isinstance(one, str)}
        return [f"{place}: {bad} are not strings"] if bad else []
    if isinstance(form, list):
        return [
            found
            for index, one in enumerate(value)
            for found in problems(one, form[0], f"{place}[{index}]")
        ]
    if isinstance(form, dict):
        unknown = [f"{place}.{name}: unknown" for name in set(value) - set(form)]
        return unknown + [
            found
            for name in set(value) & set(form)
            for found in problems(value[name], form[name], f"{place}.{name}")
        ]
    return [] if type(value) is form else [f"{place}: {value!r} is no {form.__name__}"]
