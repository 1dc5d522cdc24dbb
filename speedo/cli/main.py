"""The command line: parse, validate, one call each. Results go to standard output, the rest to standard error.

A command is imported when it is called: `--help` and a mistake cost no import of what a run needs.
"""

from __future__ import annotations

import errno
import sys
from collections import UserDict
from importlib import import_module
from typing import Any, Final, NoReturn

import click

from speedo.cli.say import complain
from speedo.cli.unforeseen import unforeseen
from speedo.errors import ConfigError, SpeedoError
from speedo.system.standard_streams import (
    NOBODY_READS,
    escape_what_cannot_be_written,
    open_closed_streams,
    unread,
)
from speedo.version import VERSION

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
NO_FILES: Final = (errno.EMFILE, errno.ENFILE)


# Where each command is, and its line in the list of commands: what trains, what looks at runs, what prepares one.
# fmt: off
GROUPS: Final = {
    "Train": {
        "train": ("train.train", "Train on this machine, with workers on its cores."),
        "run": ("run.run", "Train with a script of your own, with workers on this machine's cores."),
        "master": ("train.master", "Train with workers that join from other machines."),
        "worker": ("join.worker", "Join a master with workers on this machine."),
        "server": ("join.server", "Serve a range of the center of a master started with --servers, without training."),
        "launch": ("launch.launch", "Train on many hosts over ssh."),
        "scale": ("control.scale", "Change the number of workers of a run."),
        "leave": ("control.leave", "Let a host go, once its workers have handed in their results."),
        "stop": ("control.stop", "End a run early; its model is tested and exported."),
    },
    "Look": {
        "status": ("control.status", "Show the state of a run on this machine."),
        "logs": ("logs.logs", "Print the logs of all processes of a run as one."),
        "watch": ("watch.watch", "Watch a run, live, in the terminal or as a page."),
        "test": ("score.score", "Score a model, or all snapshots of a run, with several workers."),
        "report": ("report.report", "Make one page of figures, or a picture, of any runs."),
        "compare": ("compare.compare",
                    "Train a solver or a script in every mode, and report which learns fastest."),
    },
    "Prepare": {
        "doctor": ("doctor.doctor", "Check this machine before a run, and name the remedies."),
        "data": ("databases.data", "Prepare datasets: LMDB databases and a mean file in a folder."),
        "plan": ("plan.plan", "Predict images/s for numbers of workers, modes and links."),
        "topology": ("topology.topology", "Write which worker runs on which cores of which host."),
        "template": ("template.template", "Print a ready file for Slurm, Kubernetes, KubeRay or systemd."),
    },
    "Deliver": {
        "export": ("export.export", "Write a model as ONNX, as a PyTorch module, or as a deploy net."),
        "import": ("export.import_", "Take the weights of an exported file back into a .caffemodel."),
    },
}
# fmt: on
HIDDEN: Final = {"launch-host": "launch.launch_host"}
PLACES: Final = HIDDEN | {
    name: place for group in GROUPS.values() for name, (place, _) in group.items()
}


class CalledCommands(UserDict[str, Any]):
    """The commands by their names, each imported when it is looked up."""

    def __getitem__(self, name: str) -> click.Command:
        module, function = self.data[name].split(".")
        command: click.Command = getattr(import_module(f"speedo.cli.{module}"), function)
        return command


class Commands(click.Group):
    """Prints one clear message for every error that a user can fix."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing one."""
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])

    def main(self, *args: Any, **extra: Any) -> Any:
        open_closed_streams()
        escape_what_cannot_be_written()
        try:
            # In this mode click hands the status of --help and --version back.
            status = super().main(
                *args, **{"prog_name": "speedo", **extra, "standalone_mode": False}
            )
            print(end="", flush=True)
            return status
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.ClickException as error:
            complain(_usage(error))
            sys.exit(error.exit_code)
        except (KeyboardInterrupt, click.Abort):
            complain("stopped by Ctrl-C")
            sys.exit(130)
        except ConfigError as error:
            complain(*error.problems)
            sys.exit(error.exit_code)
        except SpeedoError as error:
            _end_with(error)
        except OSError as error:
            if error.errno in (*NOBODY_READS, *NO_ROOM):
                unread(1)
            if error.errno in NO_ROOM:
                complain(
                    f"{error.filename or 'standard output'} cannot be written: {error.strerror}; make room or make "
                    "it writable, and try again"
                )
                sys.exit(1)
            if error.errno == errno.ENAMETOOLONG:
                complain(
                    f"{str(error.filename)[:60]}... is no path: {error.strerror}; give a shorter one"
                )
                sys.exit(2)
            if error.errno in NO_FILES:
                complain(f"{error.strerror}: raise the limit with `ulimit -n` and try again")
                sys.exit(1)
            # Of these the reader of our output, such as head, has closed it.
            if error.errno not in NOBODY_READS:
                _end_with(unforeseen(error))
        except Exception as error:
            _end_with(unforeseen(error))


@click.group(
    cls=Commands,
    commands=CalledCommands(PLACES),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(VERSION, prog_name="speedo", message="%(prog)s %(version)s")
def main() -> None:
    """Train one Caffe model with many workers.

    \b
    On one machine:   speedo train SOLVER --mode easgd --workers 4
    On several:       speedo master SOLVER --mode easgd --workers 3 --host ADDRESS
                      speedo worker --master ADDRESS     (on each other machine)
                      speedo launch CLUSTER.yaml SOLVER  (all of it over ssh)

    SOLVER is an ordinary solver.prototxt. Without it, $SPEEDO_SOLVER is trained, or the bundled LeNet on
    Fashion-MNIST. Modes: sync, async, partial (bounded staleness), weed-out, easgd (elastic averaging),
    hybrid (phases of the others). Each command has a --help.
    """


def _usage(error: click.ClickException) -> str:
    """Click's message as one sentence that names the help page."""
    text = error.format_message().strip().rstrip(".")
    parts = sys.modules.get("speedo.cli.option_parts")  # of a command with options of a run
    if isinstance(error, click.NoSuchOption) and parts is not None:
        text = parts.now_given_with(error.option_name) or text
    context = getattr(error, "ctx", None)
    page = f"; see `{context.command_path} --help`" if context is not None else ""
    return text[:1].lower() + text[1:] + page


def _end_with(error: SpeedoError) -> NoReturn:
    complain(str(error))
    sys.exit(error.exit_code)
