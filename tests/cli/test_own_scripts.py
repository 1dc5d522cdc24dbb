"""The options of a run of scripts on several hosts."""

from __future__ import annotations

import pytest

from speedo.cli.own_scripts import checked_command, options_of_own
from speedo.errors import ConfigError
from speedo.run.config.run_config import make_config


def test_what_a_solver_would_have_is_refused_by_its_flag() -> None:
    options = {
        "lr": 0.1,
        "solver": "lenet.prototxt",
        "workers": 2,
        "servers": None,
        "keep_best": False,
    }
    with pytest.raises(ConfigError, match=r"^--lr, SOLVER: with --own there is no solver"):
        options_of_own(options)


def test_a_run_of_scripts_has_no_team_and_no_last_test_and_may_be_resumed() -> None:
    assert options_of_own({"resume": "run"})["resume"] == "run"
    config = make_config(options_of_own({"workers": 3, "mode": "easgd", "host": "10.0.0.5"}))
    assert (config.own, config.script, config.workers) == (True, (), 3)
    assert (config.final_test, config.splits_batch) == (False, False)


def test_a_command_must_be_there() -> None:
    assert checked_command(()) == ()
    assert checked_command(("python", "train.py")) == ("python", "train.py")
    assert checked_command(("/bin/sh", "train.sh")) == ("/bin/sh", "train.sh")
    with pytest.raises(ConfigError, match="no-such-program is not a program on this host"):
        checked_command(("no-such-program",))
