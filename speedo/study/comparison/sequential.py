"""One Caffe, or one PyTorch, that trains alone, in a process of its own: the run that the modes are compared with.

`python -m speedo.study.comparison.sequential CONFIG.yaml RUN_DIR` makes the solver's own steps, one after another, and
leaves the files of a run: configuration, metrics, result, model. Its clock stands still while it tests.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from speedo.data.roots import default_data_root
from speedo.engines.make import CAFFE, EngineChoice, make_engine
from speedo.engines.solver import (
    SolverOverrides,
    SolverSpec,
    read_solver,
    solver_for_tester,
    solver_for_worker,
)
from speedo.engines.solver.data_layers import count_records
from speedo.errors import ConfigError, SpeedoError
from speedo.run.chosen_solver import chosen_solver
from speedo.run.engine_choice import choice_of
from speedo.run_dir.directory import METRICS, MODEL, create_run_dir, write_config, write_result
from speedo.sgd_modes.conditions import score_in
from speedo.system.json_lines import line_of
from speedo.system.line_file import LineFile
from speedo.watch.report.figures import SEQUENTIAL


def engine_of(options: Mapping[str, Any], note: Callable[[str], None]) -> EngineChoice:
    """What a run with these options computes with. Raises `ConfigError`, `EngineError`."""
    names = ("engine", "device", "precision")
    return choice_of(note, **{name: options[name] for name in names if name in options})


def spec_of(options: dict[str, Any], choice: EngineChoice) -> SolverSpec:
    """The solver of a run with these options. Raises `SolverError`, `ConfigError`."""
    root, solver = options.get("data_root"), options.get("solver")
    names = ("max_iter", "lr", "momentum", "weight_decay", "batch", "seed", "ignore_unknown")
    overrides = SolverOverrides(
        test_interval=options.get("test_interval") or None,
        cpu=choice.device == "cpu",
        engine=choice.engine,
        **{name: options[name] for name in names if name in options},
    )
    return read_solver(
        chosen_solver(Path(solver) if solver else None),
        overrides=overrides,
        data_root=(Path(root) if root else default_data_root()).absolute(),
    )


class Sequential:
    """The training of one engine, and its log."""

    def __init__(
        self, spec: SolverSpec, run_dir: Path, *, tests: bool, choice: EngineChoice = CAFFE
    ) -> None:
        """`tests` says whether to test during training, too, as the solver's test_interval has it."""
        self._spec, self._run_dir, self._tests = spec, run_dir, tests
        lists = run_dir / "lists"  # those whose names are relative
        text = solver_for_worker(spec, rank=0, count=1, batch_size=spec.batch_size, scratch=lists)
        options: dict[str, Any] = {
            "lr_policy": spec.lr_policy, "folder": spec.folder, "python_layers": spec.python_layers,
        }  # fmt: skip
        self._engine = make_engine(choice.of_worker(0), text, **options)
        self._tester = None
        if spec.has_test:
            self._tester = make_engine(
                choice.of_tester(0), solver_for_tester(spec, scratch=lists), **options
            )
        self._log = LineFile(run_dir / METRICS)
        self._seconds = 0.0
        self._metrics: dict[str, float] = {}

    def run(self) -> None:
        """Train to the end. Raises `EngineError`, `OSError`."""
        spec, batch = self._spec, self._spec.batch
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._write("clock", at=now, records=count_records(spec))
        self._write("joined", worker=0, incarnation=1)
        if self._tests and spec.test_initialization:
            self._test(0)
        iteration, reason = 0, f"reached max_iter {spec.max_iter}"
        while iteration < spec.max_iter:
            began = time.perf_counter()
            loss = self._engine.step(1)
            took = time.perf_counter() - began
            self._seconds += took
            iteration += 1
            self._write(
                "result", decision="merged", worker=0, incarnation=1, ticket=iteration, version=iteration,
                iteration=iteration, staleness=0, samples=batch, loss=loss, rate=1.0, timings={"compute": took},
            )  # fmt: skip
            if not math.isfinite(loss):
                reason = f"the loss is not finite at iteration {iteration}: training has diverged"
                break
            if self._tests and iteration % spec.test_interval == 0 and iteration < spec.max_iter:
                self._test(iteration)
        complete = iteration == spec.max_iter
        self._write("finish", complete=complete, reason=reason)
        if complete:
            self._test(iteration)
        self._engine.save(self._run_dir / MODEL)
        self._log.close()
        write_result(
            self._run_dir,
            {
                "mode": SEQUENTIAL, "workers": 1, "complete": complete, "reason": reason, "iteration": iteration,
                "version": iteration, "accuracy": score_in(self._metrics), "metrics": self._metrics,
                "images_per_s": iteration * batch / self._seconds, "seconds": self._seconds,
                "samples": iteration * batch, "model": str(self._run_dir / MODEL), "run_dir": str(self._run_dir),
            },
        )  # fmt: skip

    def _test(self, iteration: int) -> None:
        """Score the present weights, by the clock of training in no time."""
        if self._tester is None:
            return
        vector = self._engine.layout.zeros()
        self._engine.read_weights(vector)
        self._tester.load_weights(vector)
        self._metrics = dict(self._tester.evaluate())
        self._write(
            "test", version=iteration, iteration=iteration, metrics=self._metrics, problem=None
        )

    def _write(self, event: str, **fields: Any) -> None:
        self._log.write(line_of({"time": round(self._seconds, 6), "event": event, **fields}))


def main(arguments: list[str]) -> None:
    """The process: status 0 once the files are there, 2 with one sentence for what a user can mend."""
    options = yaml.safe_load(Path(arguments[0]).read_text(encoding="utf-8"))
    try:
        run_dir = create_run_dir(Path(arguments[1]))
        write_config(run_dir, {**options, "mode": SEQUENTIAL, "workers": 1})
        choice = engine_of(options, lambda line: print(line, file=sys.stderr))
        tests = bool(options.get("test_interval"))
        Sequential(spec_of(options, choice), run_dir, tests=tests, choice=choice).run()
    except ConfigError as error:
        raise SystemExit("\n".join(f"speedo: {problem}" for problem in error.problems)) from None
    except SpeedoError as error:
        raise SystemExit(f"speedo: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main(sys.argv[1:])
