"""Which work a host brings to its master, and which does not fit it."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedo.actors.join.host_link import Offer
from speedo.engines.solver import read_solver
from speedo.errors import ConfigError
from speedo.run.script_job import ScriptJob
from tests.support.nets import net_text, write_solver

SCRIPTS = ScriptJob(Path("each host's own script"))
ADDRESS = "10.0.0.5:56126"


def offer(*command: str, device: str | None = None) -> Offer:
    return Offer(
        ADDRESS, 2, Path("logs"), Path("data"), device=device, command=command, folder="/home/user"
    )


def test_a_hosts_own_command_is_what_its_workers_run_in_its_folder() -> None:
    job = offer("python", "train.py", "--epochs", "3").work(SCRIPTS)
    assert isinstance(job, ScriptJob)
    assert (job.words, job.folder) == (("python", "train.py", "--epochs", "3"), "/home/user")
    assert job.command[1:] == ["train.py", "--epochs", "3"]
    assert Path(job.command[0]).is_absolute()  # the one that has SpeeDO here


def test_a_master_of_scripts_takes_no_host_without_one_nor_one_with_a_device() -> None:
    with pytest.raises(ConfigError, match=f"speedo worker --master {ADDRESS} -- python train.py"):
        offer().work(SCRIPTS)
    with pytest.raises(ConfigError, match="a script itself decides where it computes"):
        offer("./train", device="cuda").work(SCRIPTS)


def test_a_master_with_a_solver_takes_no_host_with_a_command(tmp_path: Path) -> None:
    spec = read_solver(write_solver(tmp_path, net_text(batch=24)))
    assert offer().work(spec) is spec
    with pytest.raises(ConfigError, match=r"trains the solver \w+.prototxt.*leave out `-- python"):
        offer("python", "train.py").work(spec)
