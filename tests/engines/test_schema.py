"""SpeeDO's own schema of Caffe's files is pycaffe's, and where there is no pycaffe everything is read by it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

from caffenets.caffe_schema import caffe_pb2 as ours
from speedo.engines.caffe_import import load_caffe
from tests.support.nets import net_text, write_data, write_solver

ROOT = Path(__file__).resolve().parents[2]
NETS = ROOT / "packages" / "caffe-nets"
FOLDER = Path("caffenets/caffe_schema")
CACHE = Path(os.environ.get("SPEEDO_CACHE") or Path.home() / ".cache" / "speedo")


def described(module: Any) -> dict[str, Any]:
    """Every message, field, enum and value of a generated module, by full name without the package."""
    file = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    package = f".{file.package}."
    found: dict[str, Any] = {}

    def enums(owner: Any, name: str) -> None:
        for enum in owner.enum_type:
            found[f"{name}{enum.name}"] = [(value.name, value.number) for value in enum.value]

    def messages(message: DescriptorProto, name: str) -> None:
        found[name] = sorted(
            (
                field.number, field.name, field.label, field.type, field.type_name.removeprefix(package),
                field.default_value if field.HasField("default_value") else None,
                field.options.SerializeToString(), field.HasField("oneof_index"),
            )
            for field in message.field
        )  # fmt: skip
        found[f"{name}, what else"] = [
            str(one)
            for one in (*message.reserved_range, *message.extension_range, *message.oneof_decl)
        ]
        enums(message, f"{name}.")
        for nested in message.nested_type:
            messages(nested, f"{name}.{nested.name}")

    enums(file, "")
    for message in file.message_type:
        messages(message, message.name)
    return found


@pytest.mark.caffe
def test_our_schema_has_pycaffes_messages_fields_and_enums() -> None:
    """It has those of other Caffes besides, under names and numbers that pycaffe's do not have."""
    theirs, own = described(load_caffe().proto.caffe_pb2), described(ours)
    assert len([name for name in theirs if "what else" in name]) == 63
    more = {"SolverParameter": 3, "LayerParameter": 20, "TransformationParameter": 7, "DropoutParameter": 2,
            "LossParameter": 2, "V1LayerParameter": 1}  # fmt: skip
    for name, value in theirs.items():
        mine = [one for one in own[name] if isinstance(one, str) or one[1] != "unread"]
        if name in more:
            assert set(value) < set(mine), name
            assert len(mine) - len(value) == more[name], name
        else:
            assert mine == value, name


def test_a_prototxt_that_mixes_the_fields_of_other_caffes_is_read() -> None:
    text = """
    layer { type: "Data" transform_param { resize_param { height: 300 width: 300 resize_mode: WARP interp_mode: LINEAR }
      distort_param { hue_prob: 0.5 } expand_param { prob: 0.5 } emit_constraint { emit_type: CENTER } } }
    layer { type: "PSROIPooling" psroi_pooling_param { spatial_scale: 0.0625 output_dim: 21 group_size: 7 } }
    layer { type: "ROIPooling" roi_pooling_param { pooled_h: 7 pooled_w: 7 } }
    layer { type: "MultiBoxLoss" multibox_loss_param { num_classes: 21 nms_param { top_k: 5 } } }
    layer { type: "Interp" interp_param { zoom_factor: 8 } }
    layer { type: "Upsample" upsample_param { scale: 2 } }
    layer { type: "ReLU6" relu6_param { negative_slope: 0.1 } }
    """
    net = text_format.Parse(text, ours.NetParameter())
    again = ours.NetParameter.FromString(net.SerializeToString())
    assert text_format.MessageToString(again) == text_format.MessageToString(net)
    layer = ours.LayerParameter.DESCRIPTOR.fields_by_name
    numbers = {
        "annotated_data_param": 200, "norm_param": 206, "psroi_pooling_param": 149, "roi_pooling_param": 8266711,
        "smooth_l1_loss_param": 8266712, "shuffle_channel_param": 164,
    }  # fmt: skip
    assert {name: layer[name].number for name in numbers} == numbers


def caffes_own_files() -> Iterator[tuple[str, str]]:
    """Name and text of each prototxt in the archive of Caffe's source that `make setup` has fetched."""
    for archive in (CACHE / "source").glob("caffe_*.tar.gz"):
        with tarfile.open(archive) as files:
            for member in files:
                if member.name.endswith(".prototxt"):
                    content = files.extractfile(member)
                    assert content is not None
                    yield member.name, content.read().decode()


def same(text: str, kind: str) -> bool:
    """Whether both schemas read the text as a message of this kind, to the same bytes and text."""
    theirs = getattr(load_caffe().proto.caffe_pb2, kind)()
    try:
        text_format.Parse(text, theirs)
    except text_format.ParseError:
        return False
    own = text_format.Parse(text, getattr(ours, kind)())
    assert own.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)
    assert text_format.MessageToString(own) == text_format.MessageToString(theirs)
    return True


@pytest.mark.caffe
def test_every_prototxt_is_read_alike_by_both_schemas() -> None:
    bundled = [(str(path), path.read_text()) for path in (ROOT / "prototxt").glob("*/*.prototxt")]
    assert len(bundled) == 10
    for name, text in (*bundled, *caffes_own_files()):
        assert same(text, "SolverParameter") or same(text, "NetParameter"), name


@pytest.mark.caffe
def test_the_archive_of_caffe_holds_what_is_compared() -> None:
    if not list((CACHE / "source").glob("caffe_*.tar.gz")):
        pytest.skip(f"no archive of Caffe's source in {CACHE}")
    assert len(list(caffes_own_files())) > 40


@pytest.mark.processes
def test_the_generated_module_is_that_of_the_schema(tmp_path: Path) -> None:
    protoc = shutil.which("protoc")
    if protoc is None:
        pytest.skip("no protoc: apt-get install protobuf-compiler")
    version = subprocess.run([protoc, "--version"], capture_output=True, text=True, check=True)
    if " 3.21." not in version.stdout:
        pytest.skip(f"the schema is generated by protoc 3.21, not by {version.stdout.strip()}")
    command = [protoc, "--proto_path=.", f"--python_out={tmp_path}", f"{FOLDER}/caffe.proto"]
    subprocess.run(command, cwd=NETS, check=True)
    made = (tmp_path / FOLDER / "caffe_pb2.py").read_text()
    assert made == (NETS / FOLDER / "caffe_pb2.py").read_text(), "run `make schema`"


WITHOUT = """
import json, sys
from pathlib import Path
sys.modules["caffe"] = None  # now its import fails
home = Path(sys.argv[1])
from speedo.cli.main import main as command
from caffenets.caffe_schema import caffe_pb2
from speedo.engines.record_check import first_problem
from speedo.engines.record_rules import record_rules
from speedo.engines.weights_check import check_weights
from speedo.study.planning.made_up_records import with_made_up_records
from speedo.run.caffe_snapshot import read_snapshot
from speedo.engines.solver import Draws, read_solver, solver_for_server, solver_for_tester, solver_for_worker
from speedo.engines.solver.bundled import bundled_names, bundled_solver
from speedo.engines.solver.data_layers import count_records
from speedo.engines.solver.holding import holding_of
from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import parse_text
from speedo.engines.solver.rewrite import solver_for_scoring
from speedo.engines.solver.scored_nets import read_tests
from caffenets.checks.sources import source_problems, transform_problems
import speedo.run_dir.resume

answer = {}
for name in bundled_names():
    spec = read_solver(bundled_solver(name))
    answer[name] = [spec.batch_size, spec.max_iter, len(spec.layer_names())]
# Their records are not here, so only sizes are: what a crop says.
made_up = with_made_up_records(read_solver(bundled_solver("alexnet")))
made_up = parse_text(made_up.text, caffe_schema().SolverParameter())
answer["made up"] = made_up.train_net_param.layer[0].type

spec = read_solver(home / "solver.prototxt")
for make in (solver_for_server, solver_for_tester, solver_for_scoring):
    parse_text(make(spec), caffe_schema().SolverParameter())
text = solver_for_worker(spec, rank=0, count=1, batch_size=4, draws=Draws.DOUBTFUL)
net = parse_text(text, caffe_schema().SolverParameter()).train_net_param
answer["problems"] = [
    problem
    for layer in net.layer
    for problems in (source_problems, transform_problems)
    for problem in problems(layer, spec.search)
]
answer["records"] = count_records(spec)
holding_of(spec)
read_tests(home / "solver.prototxt")
answer["rules"] = [first_problem(rule, lambda: False) for rule in record_rules(net)]
weights = caffe_pb2.NetParameter()
layer = weights.layer.add(name="ip")
blob = layer.blobs.add(data=[1.0, 2.0])
blob.shape.dim.append(2)
(home / "good.caffemodel").write_bytes(weights.SerializeToString())
check_weights(home / "good.caffemodel", spec.layer_names())
state = caffe_pb2.SolverState(iter=7, learned_net=str(home / "good.caffemodel"))
(home / "some.solverstate").write_bytes(state.SerializeToString())
answer["snapshot"] = read_snapshot(home / "some.solverstate").iteration
try:
    command(["data", "check", str(home / "train")], standalone_mode=False)
except SystemExit as end:
    answer["data check"] = end.code
else:
    answer["data check"] = 0
print("answer", json.dumps(answer))
"""


@pytest.mark.processes
def test_without_pycaffe_solvers_records_and_weights_are_read(tmp_path: Path) -> None:
    write_data(tmp_path)
    write_solver(tmp_path, net_text(train="train", test="test"))
    child = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "answer" in child.stdout, child.stderr
    answer = json.loads(child.stdout.partition("answer ")[2])
    assert answer == {
        # batch, max_iter and the layers of the train net
        "alexnet": [128, 900000, 24],
        "cifar10_full": [100, 60000, 14],
        "cifar10_quick": [100, 4000, 13],
        "googlenet": [32, 2400000, 159],
        "lenet": [64, 1876, 9],
        "made up": "DummyData",
        "problems": [],
        "records": 64,
        "rules": [[None, True]],
        "snapshot": 7,
        "data check": 0,
    }


@pytest.mark.processes
def test_a_process_with_our_schema_alone_never_imports_pycaffe() -> None:
    script = (
        "import sys; from caffenets import host_program; from speedo.engines import schema; schema.use_own_schema(); "
        "from speedo.engines.solver import read_solver; from speedo.engines.solver.bundled import bundled_solver; "
        "read_solver(bundled_solver()); print(host_program.caffe_schema().__name__, 'caffe' in sys.modules)"
    )
    child = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert child.stdout.split() == ["caffenets.caffe_schema.caffe_pb2", "False"]
