"""Trains a Caffe solver's net with PyTorch, step by step, on a CPU or a GPU.

Solver and net mean what they mean in Caffe, and history and model files are Caffe's: a run that one engine has begun
can be resumed by the other. Parameters, gradients and updates are float32; with bfloat16 only the layers compute in it,
where PyTorch deems it safe (`torch.autocast`).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from google.protobuf import text_format
from torch import Tensor

from caffenets.caffe_schema import caffe_pb2
from caffenets.weight_files.caffemodel import write_model
from speedo.engines.base import Done, RateSchedule, nobody
from speedo.engines.evaluation import Part, PartOfTest
from speedo.engines.files import WrittenModel
from speedo.engines.pytorch.devices import use_device
from speedo.engines.pytorch.leaving import LeavingGradient, backward_of, inner_products, products
from speedo.engines.pytorch.memory import free_unused_memory, is_lack_of_memory
from speedo.engines.pytorch.micro_batch import MicroBatches, lacks_memory, micro_batches
from speedo.engines.pytorch.net import Net
from speedo.engines.pytorch.scoring import net_blobs
from speedo.engines.pytorch.step_memory import step_memory
from speedo.engines.pytorch.test_nets import TestNets
from speedo.engines.pytorch.updates import ParameterUpdate
from speedo.engines.snapshot_hdf5 import write_model_hdf5
from speedo.engines.solver_engine import SolverEngine
from speedo.engines.solver_history import history_from, solverstate_in
from speedo.engines.solver_update import multipliers
from speedo.engines.solverstate import read_solverstate, write_solverstate
from speedo.engines.step_memory import StepMemory
from speedo.engines.update_rules import SolverFields, float32
from speedo.engines.weights_check import copy_weights
from speedo.errors import EngineError
from speedo.exchange.factors import Factors, Product
from speedo.exchange.vector import Vector
from speedo.system.kept_memory import keep_freed_memory

PRECISIONS = ("float32", "bfloat16")


class PytorchEngine(SolverEngine):
    """A `ModelEngine` made from the text of a SolverParameter with inline nets and absolute paths.

    `rank` and `count` choose the shard of the data layers. Test nets in the text are built at the first `evaluate`.
    `folder` is where files with relative names are searched. `threads` are PyTorch's in this process; None leaves
    them. `device` is "cpu", "cuda", "cuda:N", or "meta" for shapes without values, `precision` "float32" or "bfloat16".
    `micro_batch` are the records that go through the net at a time, or "auto"; empty for all of a batch
    (`speedo.engines.pytorch.micro_batch`). So many processes are `sharing` the device's memory.
    `python_layers` and `scratch` are those of `PycaffeEngine`, and are not needed here.
    """

    def __init__(
        self,
        solver_text: str,
        *,
        lr_policy: RateSchedule,
        rank: int = 0,
        count: int = 1,
        folder: Path | None = None,
        python_layers: Collection[str] = (),
        scratch: Path | None = None,
        threads: int | None = 1,
        device: str = "cpu",
        precision: str = "float32",
        micro_batch: str = "",
        sharing: int = 1,
    ) -> None:
        super().__init__(lr_policy, rank, count)
        if precision not in PRECISIONS:
            raise EngineError(f"the precision {precision!r} is not one of {', '.join(PRECISIONS)}")
        self._device = use_device(device)
        self._bfloat16 = precision == "bfloat16"
        _use_threads(threads)
        if self._device.type == "cpu":
            keep_freed_memory()
        parameter = caffe_pb2.SolverParameter()
        text_format.Parse(solver_text, parameter)
        self._parameter = parameter.train_net_param
        self._fields = SolverFields.from_solver(parameter)
        self._type = self._fields.type
        seed = int(parameter.random_seed)
        # Found faster on CPUs; on GPUs only the tensor cores, which float32 does not use, want this order.
        channels_last = self._device.type != "cuda" or self._bfloat16
        self._tests = TestNets(
            list(parameter.test_net_param),
            list(parameter.test_iter),
            seed=seed,
            device=self._device,
            folder=folder,
            precision=self._precision,
            channels_last=channels_last,
            form=parameter.ap_version,
            each_class=parameter.show_per_class_result,
        )
        # Caffe adds the rank, so that workers drop out different units (Caffe: solver.cpp, Init).
        torch.manual_seed(seed + rank) if seed >= 0 else torch.seed()
        self._net = Net(
            self._parameter,
            "TRAIN",
            rank=rank,
            count=count,
            seed=seed if seed >= 0 else None,
            folder=folder,
            device=self._device,
            channels_last=channels_last,
        )
        self._parameters = self._net.parameters
        try:
            self._micro = micro_batches(self._net, micro_batch, sharing)
        except EngineError:
            self._net.close()
            raise
        self._inner = inner_products(self._net) if self._micro is None else {}
        blobs = multipliers(self._parameter, self.layout)
        self._update = ParameterUpdate(self._fields, self.layout, blobs, self._net.flat)
        try:
            for names in parameter.weights:
                for name in names.split(","):
                    self.copy_from(Path(name.strip()))
        except BaseException:
            self.close()
            raise

    @property
    def samples_per_step(self) -> int:
        """Records of one solver step, taken from the shape of the data in the net as built."""
        return self._net.batch * self._fields.iter_size

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._net.shapes

    def memory(self) -> StepMemory:
        with self._open():
            return step_memory(self._net, len(self._update.history))

    def next_batch(self) -> Mapping[str, Vector]:
        with self._open():
            return {name: top.float().cpu().numpy() for name, top in self._net.next_batch().items()}

    def step(self, n: int, delta: Vector | None = None) -> float:
        """Run `n` solver steps; mean loss over all their batches. See `Engine.step`."""
        batches = self._fields.iter_size * self._batches
        losses: list[Tensor] = []
        with self._open():
            parameters = self._parameters
            room = None if delta is None else parameters.room_for(delta)
            before = parameters.read_statistics() if delta is not None else []
            for step in range(n):
                losses += self._accumulate(batches)
                self._apply(parameters.gradients(), batches, room, onto=step > 0)
            parameters.clear_gradients()
            if delta is not None and room is not None:
                parameters.read_statistics_change(before, room)
                parameters.deliver(room, delta)
            return self._mean(losses)

    def adjust(
        self, lr: float | None, momentum: float | None, weight_decay: float | None, batches: int
    ) -> None:
        self._batches = batches
        self._schedule = self._own_schedule if lr is None else self._own_schedule.from_base(lr)
        own = self._fields
        self._update.use(
            replace(
                own,
                momentum=own.momentum if momentum is None else momentum,
                weight_decay=own.weight_decay if weight_decay is None else weight_decay,
            )
        )

    def advance(self, batches: int) -> None:
        """Make every data layer skip this number of batches.

        The skipped batches draw the random numbers that reading would draw, so a net that is built and advanced
        continues with the same images.
        """
        with self._open():
            self._net.skip(batches)

    def place(self, ranges: Sequence[tuple[int, int]], ahead: int = 0) -> None:
        with self._open():
            self._net.read_next(ranges)

    def products(self) -> tuple[Product, ...]:
        if self._micro is not None:
            return ()
        return products(self._net, self._fields.iter_size * self._batches)

    def gradient(
        self, n: int, out: Vector, done: Done = nobody, factors: Sequence[Factors] = ()
    ) -> float:
        """Mean raw gradient over `n * iter_size` batches at the present weights; mean loss. See `Engine.gradient`.

        What a GPU computes is done at the end.
        """
        batches = n * self._fields.iter_size * self._batches
        on_host = self._device.type == "cpu"
        with self._open():
            parameters = self._parameters
            room = parameters.room_for(out)
            leaving = LeavingGradient(parameters, room, batches, done if on_host else nobody)
            with leaving.as_factors(self._inner, factors):
                losses = self._accumulate(batches, leaving)
            parameters.clear_gradients()
            if not on_host:
                parameters.deliver(room, out)
                for _, place in reversed(list(self.layout.slices())):
                    done(place.start, place.stop)
            return self._mean(losses)

    def apply_gradient(self, vector: Vector) -> None:
        """One update as Caffe does it: the sum over `iter_size` batches is clipped, then divided."""
        with self._open():
            whole = self._parameters.on_device(vector)
            self._parameters.add_statistics(whole)
            self._apply(self._parameters.as_gradients(whole), 1)

    def copy_from(self, path: Path) -> None:
        """Copy the parameters of a `.caffemodel`, matching layers by name, as Caffe's `--weights` does.

        Raises `EngineError`, and changes nothing, where a shape differs.
        """
        with self._open():
            copy_weights(path, *net_blobs(self._net))

    def written(self, *, hdf5: bool) -> WrittenModel:
        """The `.caffemodel`, or `.caffemodel.h5`, of the present weights; what follows needs no engine."""
        file = io.BytesIO()
        with self._open():
            if hdf5:
                weights = self.layout.zeros()
                self.read_weights(weights)
                names = [layer.name for layer in self._net.layers]
                write_model_hdf5(names, self.layout, weights, file)
            else:
                found = zip(self._parameter.layer, self._net.blobs_of_layers(), strict=True)
                layers = [
                    (param, [blob.cpu().numpy() for blob in blobs]) for param, (_, blobs) in found
                ]
                write_model(file, str(self._parameter.name), layers)
        return WrittenModel(file)

    def history(self) -> bytes:
        """A line naming solver type and layout, then Caffe's `.solverstate`."""
        with self._open():
            vectors = list(self._update.history.cpu().numpy())
            content = write_solverstate(self.layout, vectors, self._update.updates)
            return history_from(self._type, self.layout, content)

    def load_history(self, state: bytes) -> None:
        """Take over `history()`, weights aside; `EngineError` if it is another solver's."""
        with self._open():
            content = solverstate_in(self._type, self.layout, state)
            vectors = len(self._update.history)
            self._update.restore(*read_solverstate(self.layout, vectors, content))

    def close(self) -> None:
        """Free nets and solver, and end the reading threads."""
        if self._closed:
            return
        self._closed = True
        self._tests.close()
        self._net.close()
        del self._net, self._parameters, self._update, self._inner

    def _score(self, share: PartOfTest, passed: Callable[[int], None]) -> Part:
        return self._tests.score(self._net, share, passed=passed)

    def _accumulate(self, batches: int, leaving: LeavingGradient | None = None) -> list[Tensor]:
        """Sum the gradients of `batches` batches; their losses, which may still be computed."""
        if self._micro is not None:
            return self._accumulate_parts(self._micro, batches, leaving)
        backward = backward_of if leaving is None else leaving.backward
        self._parameters.clear_gradients()
        losses = []
        for _ in range(batches):
            with self._precision():
                loss, _ = self._net.forward()
            losses.append(loss.detach())
            backward(loss)
        return losses

    def _accumulate_parts(
        self, micro: MicroBatches, batches: int, leaving: LeavingGradient | None
    ) -> list[Tensor]:
        """The same with batches in parts; where the memory does not suffice, once more with smaller ones."""
        read: list[dict[int, Tensor]] = []
        backward = backward_of if leaving is None else leaving.backward
        before = self._parameters.read_statistics()
        while True:
            self._parameters.clear_gradients()
            if leaving is not None:
                leaving.begin(batches * micro.parts)
            losses: list[Tensor] = []
            try:
                for number in range(batches):
                    if number == len(read):
                        read.append(self._net.read())
                    losses.append(micro.loss(read[number], backward, self._precision))
                return losses
            except (RuntimeError, EngineError) as error:
                if not lacks_memory(error) or not micro.halve():
                    raise
            # Outside of the handler: until then the error's frames hold the tensors of the pass.
            self._parameters.clear_gradients()
            free_unused_memory(self._device)
            self._parameters.write_statistics(before)

    def _apply(
        self,
        gradients: Sequence[Tensor | None],
        divisor: int,
        delta: Tensor | None = None,
        *,
        onto: bool = False,
    ) -> None:
        # Adam's bias correction counts this solver's own updates, as its moments do.
        rate = float32(self._schedule.rate(self._iteration))
        self._update.apply(gradients, rate, divisor=divisor, delta=delta, onto=onto)
        self._iteration += 1

    def _mean(self, losses: Sequence[Tensor]) -> float:
        """In double precision, as Python's floats; the only place where the host waits for a GPU."""
        mean = (
            float(torch.stack([loss.double() for loss in losses]).sum()) / len(losses)
            if losses
            else 0.0
        )
        self._net.check_indices()
        return mean

    def _precision(self) -> Any:
        """The context of a forward pass."""
        if not self._bfloat16:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=torch.bfloat16)

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Refuse a closed engine; errors of PyTorch become ours."""
        if self._closed:
            raise EngineError("the engine is closed")
        try:
            yield
        except RuntimeError as error:
            if is_lack_of_memory(error):
                raise EngineError(
                    f"{self._device} has too little memory: use --engine torch,micro_batch=auto, or fewer workers on it"
                ) from error
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise EngineError(f"PyTorch failed: {first}") from error


def _use_threads(threads: int | None) -> None:
    if threads is None:
        return
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() > 1:
        with suppress(RuntimeError):  # PyTorch allows it once, before the first work
            torch.set_num_interop_threads(1)
