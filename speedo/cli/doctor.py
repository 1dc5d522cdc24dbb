"""`speedo doctor`: finds what a node lacks for a run before the run starts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from speedo.cli.page import PagedCommand, json_option
from speedo.cli.run_options import FILE, PATH, checked_device, checked_threads, options_named
from speedo.cli.say import say
from speedo.errors import ConfigError, SpeedoError
from speedo.run.config.run_config import DEFAULT_PORT, LARGEST_WORKERS, make_config
from speedo.system.bounds import said, whole_number
from speedo.system.cores import USUAL, Bind
from speedo.system.workplace import check_names, check_workplace

if TYPE_CHECKING:
    from speedo.study.doctor import Finding, NodeRequest

_IN_SIGHT: Final = (
    *("address", "workers", "data_root", "run_dir", "host", "engine", "device", "own", "as_json"),
)


@click.command(cls=PagedCommand, in_sight=_IN_SIGHT)
@click.argument("solver", required=False, type=PATH)
@click.option(
    "--master",
    "address",
    metavar="HOST[:PORT]",
    help="Check as a node with workers of this running master.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, LARGEST_WORKERS),
    metavar="N",
    help="Workers to run on this machine.  [default: 2, or 1 with --master]",
)
@options_named("data_root")
@click.option(
    "--token-file", type=FILE, help="The shared secret.  [default: ~/.config/speedo/token]"
)
@options_named("redis", "run_dir", "host")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    metavar="N",
    help="Port that workers would connect to.",
)
@options_named("threads", "bind")
@options_named("engine", "device", "micro_batch", "ignore_unknown")
@click.option(
    "--own",
    is_flag=True,
    help="Check for scripts (`speedo run`, `speedo master --own`), which need neither engine nor solver.",
)
@json_option
@click.option("--facts", is_flag=True, hidden=True, help="Print the solver's facts first, as JSON.")
@click.option("--facts-stdin", is_flag=True, hidden=True, help="Read them from standard input.")
def doctor(
    solver: Path | None,
    address: str | None,
    workers: int | None,
    threads: str | None,
    bind: Bind | None,
    as_json: bool,
    facts: bool,
    facts_stdin: bool,
    **options: Any,
) -> None:
    """Check this machine before a run, and name the remedies.

    Checks Python, Ray, Redis, both engines and the token; the solver, its nets and their data; the memory of a training
    step, by layer; memory, cores, disk and temporary folder. With --master also: the master can be reached and accepts
    this node; versions and clocks agree; the data here has as many records as the master's, and the net the same
    layout. Without SOLVER, the solver is then the master's.

    It leaves no files. Each line is `ok`, `warn` (it works, but perhaps not as you expect) or `FAIL`, with the remedy
    below.

    \b
    speedo doctor                                      a machine for `speedo train` or `speedo master`
    speedo doctor my/solver.prototxt --workers 4
    speedo doctor --host 10.0.0.5                      a machine for `speedo master --host 10.0.0.5`
    speedo doctor --master 10.0.0.5 --workers 2        a machine for `speedo worker`
    \f
    Exit status: 0 if nothing failed, else 1. --json: `{"ok": true, "checks": [{"name", "level", "text",
    "remedy"}, ...]}`, level being ok, warn or fail. The check `step` also has `rows`: `{"layer", "type", "parameters",
    "values", "workspace"}` for each layer, in bytes.
    """
    from speedo.study.doctor import NodeRequest, examine

    check_workplace()
    check_names({"the solver": solver, "the data root": options["data_root"]})
    master = None if address is None else with_port(address)
    checked_device(options["device"])
    make_config({"micro_batch": options["micro_batch"]})
    given = {name: value for name, value in options.items() if value is not None}
    workers = workers or (1 if master else 2)
    request = NodeRequest(
        solver,
        master,
        workers,
        threads=checked_threads(threads),
        bind=bind or USUAL.bind,
        facts=_facts_of_stdin() if facts_stdin else None,
        **given,
    )
    if facts:
        _print_facts(request)
    findings = examine(request)
    failed = [one for one in findings if one.level == "fail"]
    warned = [one for one in findings if one.level == "warn"]
    if as_json:
        checks = [_plain(one) for one in findings]
        say(json.dumps({"ok": not failed, "checks": checks}))
    else:
        _print(findings)
        say(_summary(len(failed), len(warned)))
    if failed:
        raise SystemExit(1)


def with_port(address: str, option: str = "--master") -> str:
    """HOST or HOST:PORT as HOST:PORT; raises `ConfigError`."""
    host, colon, port = address.rpartition(":")
    if not colon and address:
        return f"{address}:{DEFAULT_PORT}"
    number = whole_number(port)
    if not host or number is None or not 1 <= number <= 65535:
        raise ConfigError(
            f"{option} {said(address)} is not HOST or HOST:PORT; for example {option} 10.0.0.5:{DEFAULT_PORT}"
        )
    return f"{host}:{number}"


def _print_facts(request: NodeRequest) -> None:
    """A line with the facts, if the solver can be read; if not, the findings say why."""
    try:
        from speedo.study.doctor.solver import facts_of

        found = facts_of(request)
    except (SpeedoError, ImportError):
        return
    say(json.dumps({"facts": found}))
    sys.stdout.flush()


def _plain(finding: Finding) -> dict[str, Any]:
    """For --json; `rows` only where there are some."""
    plain = {name: getattr(finding, name) for name in finding.__slots__}
    return {name: value for name, value in plain.items() if name != "rows" or value}


def _print(findings: list[Finding]) -> None:
    width = max(len(one.name) for one in findings)
    for one in findings:
        label = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}[one.level]
        indent = " " * (len(label) + width + 4)
        text = one.text.replace("\n", f"\n{indent}")
        say(f"{label}  {one.name:<{width}}  {text}")
        if one.remedy:
            say(f"{indent}{one.remedy}")


def _summary(failed: int, warned: int) -> str:
    if failed:
        return f"{failed} to fix before a run" + (f", {warned} to look at" if warned else "")
    if warned:
        return f"ready, with {warned} to look at"
    return "ready"


def _facts_of_stdin() -> dict[str, Any]:
    """What `speedo launch` says of the master's solver. Raises `ConfigError`."""
    try:
        facts = json.load(sys.stdin)["facts"]
    except (ValueError, LookupError, TypeError):
        facts = None
    if not isinstance(facts, dict):
        raise ConfigError(
            "standard input is not what `speedo launch` writes; leave --facts-stdin out"
        )
    return facts
