"""Says whether `import caffe` gives a pycaffe that SpeeDO can train with; exits 0 only then.

It builds a two-layer net from constants and takes two solver steps, so that a placeholder package,
an old binding or a missing shared library is found here and not in the middle of a run.
"""

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("GLOG_minloglevel", "2")

NET = """
layer { name: "x" type: "DummyData" top: "x" top: "y"
  dummy_data_param { shape { dim: 4 dim: 3 } shape { dim: 4 dim: 2 }
    data_filler { type: "constant" value: 1 } data_filler { type: "constant" value: 2 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
  inner_product_param { num_output: 2 weight_filler { type: "constant" value: 0.5 } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "y" top: "loss" }
"""
SOLVER = """
net: "{net}" base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 max_iter: 10 display: 0
snapshot_prefix: "{folder}/check" snapshot_after_train: false solver_mode: CPU
"""
FUNCTIONS = (
    "get_solver",
    "layer_type_list",
    "set_mode_cpu",
    "set_random_seed",
    "set_solver_count",
    "set_solver_rank",
)


def main() -> None:
    """Run the check and print one line about what was found."""
    try:
        import caffe
        from caffe.proto import caffe_pb2
    except Exception as error:  # whatever it is, this pycaffe is of no use
        sys.exit(f"import caffe fails: {type(error).__name__}: {error}")
    missing = [name for name in FUNCTIONS if not hasattr(caffe, name)]
    if missing:
        sys.exit(f"{caffe.__name__} from {list(caffe.__path__)} lacks {', '.join(missing)}")
    caffe.set_mode_cpu()
    with tempfile.TemporaryDirectory() as folder:
        net, solver_file = Path(folder, "net.prototxt"), Path(folder, "solver.prototxt")
        net.write_text(NET)
        solver_file.write_text(SOLVER.format(net=net, folder=folder))
        solver = caffe.get_solver(str(solver_file))
        solver.step(1)
        solver.param.base_lr = 0.05
        solver.step(1)
        loss = float(solver.net.blobs["loss"].data)
        weights = solver.net.params["ip"][0].data
        if solver.iter != 2 or not 0 < loss < 1 or weights.shape != (2, 3):
            sys.exit(f"two solver steps went wrong: iteration {solver.iter}, loss {loss}")
        solver.net.clear_param_diffs()
        solver.apply_update()
    caffe_pb2.SolverParameter().FromString(
        caffe_pb2.SolverParameter(base_lr=0.1).SerializeToString()
    )
    version = getattr(caffe, "__version__", "of unknown version")
    layers = len(caffe.layer_type_list())
    print(f"caffe {version}, {layers} layer types, {Path(caffe.__file__).parent}")


if __name__ == "__main__":
    main()
