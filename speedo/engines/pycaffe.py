"""Runs a real Caffe solver in this process, step by step.

Caffe's solver keeps its history, and applies clipping, decay, momentum and rate. The loop around it (Caffe:
solver.cpp, Step) is ours, because Caffe's own gives neither the loss of every sub-batch nor the raw gradient. The
steps are the same native calls in the same order, so the weights are bit-identical.

In Caffe the solver's rank and count are properties of the thread, and some data layers read them at every batch. So
they are set before every call: several engines may share one process. A native CHECK that fails aborts the process
(`speedo.engines.native_failures`). Native calls hold the GIL unless `let_others_run`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from speedo.engines.base import Done, RateSchedule, nobody
from speedo.engines.caffe_import import is_cpu_only, load_caffe, prepare_environment
from speedo.engines.caffe_memory import step_memory
from speedo.engines.evaluation import Part, PartOfTest, TestNets, samples_of
from speedo.engines.files import WrittenModel, folder_in, open_memory_file
from speedo.engines.forward_pass import ForwardPass
from speedo.engines.inner_products import InnerProducts
from speedo.engines.native_failures import describe_exception
from speedo.engines.openblas_kernels import use_threads
from speedo.engines.parameters import Parameters
from speedo.engines.placed_records import PlacedRecords
from speedo.engines.python_layers import import_python_layers
from speedo.engines.snapshot_hdf5 import write_model_hdf5
from speedo.engines.solver_engine import SolverEngine
from speedo.engines.solver_history import PREFIX, restore_history, save_history
from speedo.engines.step_memory import StepMemory
from speedo.engines.update_rules import float32
from speedo.engines.weights_check import caffe_blobs, copy_weights
from speedo.errors import EngineError, SpeedoError
from speedo.exchange.factors import Factors, Product
from speedo.exchange.vector import Vector


class PycaffeEngine(SolverEngine):
    """A `ModelEngine` made from the text of a SolverParameter with inline nets and absolute paths.

    `rank` and `count` choose the shard of `Data` and `HDF5Data` layers. Test nets in the text are
    built at the first `evaluate`. `folder` is where the modules of Python layers are searched, and
    `python_layers` names those that may come from elsewhere. `scratch` is a folder for small files.
    `threads` are the BLAS threads of this process; None leaves them. A BLAS other than OpenBLAS takes them only in a
    process that has not imported pycaffe yet.
    """

    _tests: TestNets
    _parameters: Parameters

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
    ) -> None:
        super().__init__(lr_policy, rank, count)
        prepare_environment(threads)
        self._caffe = load_caffe()
        if threads is not None:
            use_threads(threads)
        self._rank, self._count = rank, count
        self._read = 0  # batches, since the net was built
        self._records: PlacedRecords | None = None
        self._temporary = folder_in(scratch)
        self._scratch = Path(self._temporary.name)
        parameter = self._caffe.proto.caffe_pb2.SolverParameter()
        text_format.Parse(solver_text, parameter)
        self._iter_size = int(parameter.iter_size)
        self._type = str(parameter.type)
        self._gpu = not is_cpu_only() and _asks_for_gpu(parameter)
        with self._open():
            import_python_layers(parameter, folder, python_layers)
            self._tests = TestNets(
                self._caffe,
                list(parameter.test_net_param),
                list(parameter.test_iter),
                scratch=self._scratch,
                seed=int(parameter.random_seed),
            )
            self._parameter = self._own_parameter(parameter)
            self._values = (self._parameter.momentum, self._parameter.weight_decay)
            self._build()
            for names in parameter.weights:
                for name in names.split(","):
                    copy_weights(Path(name.strip()), *caffe_blobs(self._net))
            self._batch_size = samples_of(self._net)

    def _build(self) -> None:
        self._solver = self._make_solver()
        self._net = self._solver.net
        self._last_layer = len(self._net.layers) - 1
        self._parameters = Parameters(self._net)
        self._forward = ForwardPass(self._net, self._parameter.train_net_param)
        self._inner = InnerProducts(
            self._net, self._parameter.train_net_param, self._parameters.own_weights()
        )

        if self._records is not None:
            self._records.feed(self._forward)

    @property
    def samples_per_step(self) -> int:
        """Records of one solver step, taken from the shape of the data in the net as built."""
        return self._batch_size * self._iter_size

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {str(name): tuple(blob.shape) for name, blob in self._net.blobs.items()}

    def memory(self) -> StepMemory:
        return step_memory(self._net, self._parameter.train_net_param, self.layout, self._type)

    def next_batch(self) -> Mapping[str, Vector]:
        self.advance(1)
        net = self._net
        sources = [at for at in range(len(net.layers)) if not len(net._bottom_ids(at))]
        tops = [top for layer in sources for top in net._top_ids(layer)]
        return {str(net._blob_names[top]): net._blobs[top].data.copy() for top in tops}

    def step(self, n: int, delta: Vector | None = None) -> float:
        """Run `n` solver steps; mean loss over all their batches. See `Engine.step`."""
        total = 0.0
        with self._open():
            before = self._parameters.read_statistics() if delta is not None else []
            for step in range(n):
                total += self._accumulate(self._iter_size * self._batches)
                self._parameters.scale_gradient(self._batches)
                self._update()
                if delta is not None:
                    self._parameters.take_update(delta, onto=step > 0)
            if delta is not None:
                self._parameters.add_statistics_change(before, delta)
        return total / (n * self._iter_size * self._batches)

    def adjust(
        self, lr: float | None, momentum: float | None, weight_decay: float | None, batches: int
    ) -> None:
        """See `Engine.adjust`.

        pycaffe lets only the rate of a solver be changed. For another momentum or decay the solver is rebuilt, with
        weights, history and its place in the data; its random numbers (dropout) start again.
        """
        self._batches = batches
        self._schedule = self._own_schedule if lr is None else self._own_schedule.from_base(lr)
        own = self._values
        wanted = (
            own[0] if momentum is None else momentum,
            own[1] if weight_decay is None else weight_decay,
        )
        parameter = self._parameter
        if tuple(map(float32, wanted)) == (parameter.momentum, parameter.weight_decay):
            return
        parameter.momentum, parameter.weight_decay = wanted
        weights, history, read = self.layout.zeros(), self.history(), self._read
        self.read_weights(weights)
        with self._open():
            # Memory may not hold both.
            del self._solver, self._net, self._parameters, self._forward, self._inner
            self._build()
        self._read = 0
        if self._records is None:
            self.advance(read)
        self.load_weights(weights)
        self.load_history(history)

    def advance(self, batches: int) -> None:
        """Make every data layer skip this number of batches.

        Random augmentation of the skipped batches (mirroring, cropping) draws the same numbers as in training, so a
        rebuilt net that is advanced continues with the same images.
        """
        self._read += batches
        with self._open():
            for _ in range(batches):
                self._forward.read()

    def place(self, ranges: Sequence[tuple[int, int]], ahead: int = 0) -> None:
        with self._open():
            if self._records is None:
                net = self._parameter.train_net_param
                self._records = PlacedRecords(self._caffe, net, self._batch_size, self._scratch)
                self._records.feed(self._forward)
            self._records.place(ranges, ahead)

    def products(self) -> tuple[Product, ...]:
        return self._inner.products(self._iter_size * self._batches)

    def gradient(
        self, n: int, out: Vector, done: Done = nobody, factors: Sequence[Factors] = ()
    ) -> float:
        """Mean raw gradient over `n * iter_size` batches at the present weights; mean loss. See `Engine.gradient`.

        BatchNorm's running sums have no gradient: their places hold their change instead, and
        `apply_gradient` adds it.
        """
        batches = n * self._iter_size * self._batches
        net, parameters, inner = self._net, self._parameters, self._inner
        given = {one.product.start: one for one in factors}

        def backward(batch: int) -> None:
            inner.clear(factors)
            if batch + 1 < batches:
                net._backward(self._last_layer, 0)
                for one in factors:
                    inner.take(one, batch, batches)
                return
            parameters.take_statistics_change(before, out)
            top = self._last_layer
            for layer in parameters.layers:
                net._backward(top, layer)
                top = layer - 1
                for place in parameters.read_gradient(layer, out, batches, without=given):
                    if place.start in given:
                        inner.take(given[place.start], batch, batches)
                    done(place.start, place.stop)
            if top >= 0:
                net._backward(top, 0)

        with self._open():
            before = parameters.read_statistics()
            total = self._accumulate(batches, backward)
        return total / batches

    def apply_gradient(self, vector: Vector) -> None:
        """One update as Caffe does it: it clips the sum over `iter_size` batches, then divides."""
        with self._open():
            self._parameters.write_gradient(vector, self._iter_size)
            self._parameters.add_statistics(vector)
            self._update()

    def copy_from(self, path: Path) -> None:
        """Copy the parameters of a `.caffemodel`, matching layers by name, as Caffe's `--weights` does."""
        with self._open():
            copy_weights(path, *caffe_blobs(self._net))

    def written(self, *, hdf5: bool) -> WrittenModel:
        """The `.caffemodel`, or `.caffemodel.h5`, of the present weights; what follows needs no engine."""
        file, name = open_memory_file()
        try:
            if hdf5:
                weights = self.layout.zeros()
                self.read_weights(weights)
                write_model_hdf5(self._net._layer_names, self.layout, weights, file)
            else:
                with self._open():
                    self._net.save(name)
        except BaseException:
            file.close()
            raise
        return WrittenModel(file)

    def history(self) -> bytes:
        """A line naming solver type and layout, then Caffe's `.solverstate`."""
        with self._open(as_root=True):
            return save_history(self._solver, self._type, self.layout, self._scratch)

    def load_history(self, state: bytes) -> None:
        """Take over `history()`, weights aside; `EngineError` if it is another solver's."""
        with self._open():
            restore_history(self._solver, self._type, self.layout, state)

    def close(self) -> None:
        """Free net, solver and reading threads."""
        if self._closed:
            return
        self._closed = True
        self._tests.close()
        if self._records is not None:
            self._records.close()
        # The net's data layers stop their reading threads when the last reference goes.
        del self._solver, self._net, self._parameters, self._forward, self._inner
        self._temporary.cleanup()

    def _score(self, share: PartOfTest, passed: Callable[[int], None]) -> Part:
        return self._tests.score(lambda net: net.share_with(self._net), share, passed)

    def _accumulate(self, batches: int, backward: Callable[[int], None] | None = None) -> float:
        """Sum the gradients of `batches` batches in the blobs; the sum of the losses.

        `backward`, if given, makes the backward pass of the batch with this number.
        """
        net = self._net
        net.clear_param_diffs()
        total = 0.0
        self._read += batches
        for batch in range(batches):
            total += self._forward.run()
            if backward is None:
                net._backward(self._last_layer, 0)
            else:
                backward(batch)
        return total

    def _update(self) -> None:
        # Adam's bias correction counts this solver's own updates, as its moments do.
        self._solver.param.base_lr = self._schedule.rate(self._iteration)
        self._solver.apply_update()
        self._iteration += 1

    @contextmanager
    def _open(self, *, as_root: bool = False) -> Iterator[None]:
        """Set this thread's Caffe state for this engine; exceptions of Python layers become ours."""
        caffe = self._caffe
        if self._closed:
            raise EngineError("the engine is closed")
        caffe.set_mode_gpu() if self._gpu else caffe.set_mode_cpu()
        caffe.set_solver_count(self._count)
        # Caffe refuses to snapshot on any rank but 0 (Caffe: solver.cpp, Snapshot).
        caffe.set_solver_rank(0 if as_root else self._rank)
        # Else Caffe refuses Python layers where there are several solvers (Caffe: python_layer.hpp).
        caffe.set_multiprocess(True)
        try:
            yield
        except (SpeedoError, OSError, MemoryError):
            raise
        except Exception as error:
            raise EngineError(f"Caffe failed: {describe_exception(error)}") from error

    def _own_parameter(self, parameter: Any) -> Any:
        """A solver for the train net alone: learning rate, tests and snapshots are controlled from outside."""
        own = type(parameter)()
        own.CopyFrom(parameter)
        # Caffe would open them itself: see `speedo.engines.weights_check`
        own.ClearField("weights")
        for field in ("test_net", "test_net_param", "test_state", "test_iter", "test_interval"):
            own.ClearField(field)
        own.lr_policy = "fixed"
        own.base_lr = self._schedule.rate(0)
        own.snapshot = 0
        own.display = 0
        own.snapshot_prefix = str(self._scratch / PREFIX)
        own.snapshot_format = own.BINARYPROTO
        return own

    def _make_solver(self) -> Any:
        file = self._scratch / "solver.prototxt"
        file.write_text(text_format.MessageToString(self._parameter))
        return self._caffe.get_solver(str(file))


def _asks_for_gpu(parameter: Any) -> bool:
    # Only what is written counts: the field's own default is GPU.
    return bool(parameter.HasField("solver_mode") and parameter.solver_mode == parameter.GPU)
