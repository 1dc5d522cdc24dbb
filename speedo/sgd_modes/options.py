"""The options of turns and merge rules that every mode has; each mode's file declares its additional ones."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from speedo.sgd_modes.foreign import look_in
from speedo.sgd_modes.turn_length import Steps, as_steps, check_sync_when
from speedo.system.bounds import Option


class ModeOptions(BaseModel):
    """A mode with its options: of a run, or of a phase of mode hybrid. None means the default of the mode.

    `speedo.sgd_modes.registry` knows which mode uses which option. What is only named here is declared by a rule, and
    is looked at by others, too.
    """

    # A process that only receives options, as the master does, need not build what checks them.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    # fmt: off
    mode: str
    rule: str | None = None
    local_steps: Annotated[str | int, BeforeValidator(as_steps), Option(
        "Solver steps between two exchanges (tau); 1,10@500: 1, then 10 from iteration 500 on; adaptive:10/50: 10 at "
        "first, fewer as the loss falls, decided every 50 iterations.", Steps(),
        source="an exchange after every step, as in the original", metavar="N[,N@ITERATION...]|adaptive:N[/N]")] = 1
    sync_when: Annotated[str | None, Option(
        "A worker sends when its delta since the last send has an L2 norm above X, and after --local-steps steps at "
        "the latest.", check_sync_when, metavar="norm>X")] = None
    moving_rate: float | None = None
    delta_scale: float | None = None
    server_gradient: Annotated[bool | None, Option(
        "Workers send raw gradients; the master, or each server for its range, applies the solver's update.",
        usual="in sync with one local step, for solvers other than SGD and Nesterov, and with clip_gradients",
        source="only then the step is that of one solver")] = None
    momentum_correction: Annotated[bool | None, Option(
        "Workers use Nesterov's form of momentum, which anticipates the steps of the other workers; with the elastic "
        "rule this is EAMSGD.",
        usual="for solver type SGD with momentum and several workers, if deltas are added",
        source="measured: modes.md, momentum and the scale of deltas")] = None
    staleness_scaling: bool | None = None
    # fmt: on

    foreign: dict[str, Any] = {}  # options that a mode or rule outside the package declares
    code_from: str = ""  # where its module is looked for, besides

    def __setstate__(self, state: dict[Any, Any]) -> None:
        """In another process its modules are found as in the first."""
        super().__setstate__(state)
        look_in(self.code_from)

    @property
    def told_rule(self) -> str:
        """The rule that was asked for, as it follows the mode in a line for people."""
        return f", rule {self.rule}" if self.rule else ""

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_as_a_number(cls, value: Any, field: ValidationInfo) -> Any:
        """`workers: yes` in YAML is a mistake, not 1."""
        kind = str(cls.model_fields[field.field_name or ""].annotation)
        if isinstance(value, bool) and "bool" not in kind:
            raise PydanticCustomError(
                "float_type" if "float" in kind else "int_type", "no truth value"
            )
        return value


class PhaseOptions(ModeOptions):
    """A phase of mode hybrid: another mode, for this many iterations or until a test fulfils `until`.

    The rest takes the place of the run's solver values while the phase lasts.
    """

    iterations: int | None = None
    until: str | None = None
    lr: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    batch: int | None = None
    test_interval: int | None = None

    @property
    def has_own_values(self) -> bool:
        """Whether it has solver values of its own."""
        own = (self.lr, self.momentum, self.weight_decay, self.batch)
        return any(value is not None for value in own)


class RunOptions(ModeOptions):
    """The mode of a run, and the phases if it is hybrid."""

    phases: tuple[PhaseOptions, ...] = ()
