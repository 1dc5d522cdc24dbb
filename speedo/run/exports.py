"""What a run writes for other tools, by its options: checked before the start, made with the parts of the run."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from speedo.errors import ConfigError
from speedo.master.center import RunCenter
from speedo.run.config.run_config import AUTO_LOG, RunConfig
from speedo.run.script_job import ScriptJob
from speedo.run.settings import RunSettings
from speedo.run_dir.checkpoint_file import Counters
from speedo.run_dir.directory import CAFFE_LOG
from speedo.version import VERSION
from speedo.watch.export.background import Background, CenterCopies, Exporter
from speedo.watch.export.caffe_log import CaffeLog, display_of
from speedo.watch.export.prometheus import HOST, PrometheusMetrics
from speedo.watch.export.tensorboard import TensorBoardFile
from speedo.watch.status import StatusBoard


def check_exports(config: RunConfig, *, resumed: bool) -> str | None:
    """The whole path of `--caffe-log`; raises `ConfigError` if a port is taken or a file cannot be written."""
    if (port := config.metrics_port) is not None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                why = (error.strerror or str(error)).lower()
                raise ConfigError(
                    f"metrics_port {port} cannot be served on {HOST} ({why}): give another"
                ) from None
    if config.caffe_log in (None, AUTO_LOG):
        return config.caffe_log
    assert config.caffe_log is not None
    path = Path(os.path.abspath(config.caffe_log))
    if path.exists() and not resumed:
        raise ConfigError(
            f"caffe_log {path} is there already: give another file, or move that away; "
            "a tool would take both logs for one run"
        )
    if not os.access(path if path.exists() else path.parent, os.W_OK) or path.is_dir():
        raise ConfigError(f"caffe_log {path} cannot be written: give a file in a folder of yours")
    return str(path)


def make_exports(
    config: RunConfig,
    settings: RunSettings,
    run_dir: Path,
    center: RunCenter,
    board: StatusBoard,
    resumed: Counters | None,
    clock: Callable[[], float],
) -> tuple[Background | None, CenterCopies | None]:
    """The observers that the options ask for. A port that was taken since the check is only reported."""
    spec, made = settings.spec, list[Exporter]()
    wall_s = time.time() - clock()
    rate = None if isinstance(spec, ScriptJob) else spec.lr_policy.rate
    if config.tensorboard or config.tensorboard_histograms:
        made.append(TensorBoardFile(run_dir, rate, center.layout, resumed=resumed, wall_s=wall_s))
    if config.caffe_log is not None:
        solver = settings.solver
        path = run_dir / CAFFE_LOG if config.caffe_log == AUTO_LOG else Path(config.caffe_log)
        display, policy = display_of(solver.text), solver.lr_policy
        made.append(
            CaffeLog(
                path,
                solver.net_name,
                display,
                policy.rate,
                policy.policy,
                resumed=resumed,
                wall_s=wall_s,
            )
        )
    if config.metrics_port is not None:
        metrics = PrometheusMetrics(
            settings.run,
            VERSION,
            lambda: board.status(clock()),
            lambda: (center.payload_bytes, center.center_bytes),
            resumed=resumed,
        )
        try:
            metrics.serve(config.metrics_port)
            made.append(metrics)
        except OSError as error:
            why = error.strerror or str(error)
            board.notice(f"warning: no metrics: port {config.metrics_port} of {HOST}: {why}")
    if not made:
        return None, None
    background = Background(made, board.notice)
    if not config.tensorboard_histograms:
        return background, None
    return background, CenterCopies(lambda: center.vector, background)
