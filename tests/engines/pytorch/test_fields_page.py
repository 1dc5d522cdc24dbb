"""docs/fields.md says of each field of Caffe's parameters, and of other Caffes', what computing with it says."""

# ruff: noqa: E501  tables of texts
from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf import text_format

from caffenets.caffe_schema import caffe_pb2
from caffenets.prototxt.dialect import caffes_text
from caffenets.prototxt.forks import (
    about_field,
    changes_the_net,
    in_bvlcs_words,
    unread,
)
from caffenets.prototxt.text import read_text
from speedo.errors import EngineError, SolverError
from tests.support import field_probes as probes
from tests.support.field_probes import ACTS, NONE, REFUSED
from tests.support.fork_fields import FIELDS, VALUES
from tests.support.probed_files import write_files

pytestmark = [pytest.mark.torch]

PAGE = Path(__file__).resolve().parents[3] / "docs" / "fields.md"
BEGIN = "<!-- fields: written by `pytest tests/engines/pytorch/test_fields_page.py --rewrite-tables` -->\n"
END = "<!-- end of fields -->\n"
FORKS = "<!-- other Caffes: written by the same -->\n"
END_FORKS = "<!-- end of other Caffes -->\n"
# Records, weights and what is in them: no parameters.
RECORDS: Final = {
    "BlobShape", "BlobProto", "BlobProtoVector", "Datum", "SolverState", "NormalizedBBox", "Annotation",
    "AnnotationGroup", "AnnotatedDatum", "LabelMapItem", "LabelMap",
}  # fmt: skip
KEPT = "read and written; a net with it is not computed"
_PRINTS = "prints more in Caffe"
_OLD_FORM = "Caffe reads it in the old form `layers` alone, where it is moved to transform_param"
_SAVED = "only with output_directory, which is refused"
_HARD = "only with mining_type HARD_EXAMPLE, which is refused"
_MODES = "only with a resize_mode that is refused"
# Why a field is without effect.
WHY: Final = {
    **dict.fromkeys((f"{one}Parameter.engine" for one in (
        "Convolution", "LRN", "Pooling", "ReLU", "Sigmoid", "Softmax", "SPP", "TanH")), "chooses between Caffe's own kernels"),
    "ConvolutionParameter.force_nd_im2col": "the same result in another way",
    "EltwiseParameter.stable_prod_grad": "the same gradient in another way",
    "RecurrentParameter.debug_info": _PRINTS, "SolverParameter.debug_info": _PRINTS, "NetParameter.debug_info": _PRINTS,
    **dict.fromkeys((f"{one}.{field}" for one in ("DataParameter", "ImageDataParameter")
                     for field in ("scale", "mean_file", "crop_size", "mirror")), _OLD_FORM),
    "DataParameter.rand_skip": "BVLC's Caffe does not read it; every worker has a shard of its own",
    "DataParameter.force_encoded_color": "BVLC's Caffe does not read it: use force_color of transform_param",
    "DataParameter.prefetch": "how many batches are read ahead",
    **dict.fromkeys((f"SaveOutputParameter.{field}" for field in (
        "output_name_prefix", "output_format", "label_map_file", "name_size_file", "num_test_image", "resize_param")), _SAVED),
    "DetectionOutputParameter.visualize_threshold": "only with visualize, which is refused",
    "DetectionEvaluateParameter.resize_param": "only with name_size_file, which is refused",
    **dict.fromkeys((f"MultiBoxLossParameter.{field}" for field in ("nms_param", "sample_size", "use_prior_for_nms")), _HARD),
    "AnnotatedDataParameter.label_map_file": "SSD compares the names of the classes with it",
    "AnnotatedDataParameter.anno_type": "BBOX is the only one",
    **dict.fromkeys((f"ResizeParameter.{field}" for field in ("pad_mode", "pad_value", "height_scale", "width_scale")), _MODES),
    "NetParameter.force_backward": "Caffe computes gradients of inputs, too, which no step reads",
    "SolverParameter.display": "lines of Caffe's log", "SolverParameter.average_loss": "lines of Caffe's log",
    "SolverParameter.solver_mode": "`--device` decides; the engine caffe reads it",
    "SolverParameter.device_id": "`--device` decides",
    "SolverParameter.test_compute_loss": "Caffe prints the loss of its test; the test nets' outputs are reported",
    "SolverParameter.layer_wise_reduce": "how Caffe's own GPUs exchange gradients",
    "SolverParameter.eval_type": "the test net's layers decide what is measured",
    **dict.fromkeys((f"LayerParameter.{one}_param" for one in ("sigmoid", "tanh")), "has only `engine`"),
    **dict.fromkeys((f"V1LayerParameter.{one}_param" for one in ("sigmoid", "tanh")), "has only `engine`"),
}  # fmt: skip

DATA = (
    'layer { name: "d" type: "DummyData" top: "d" dummy_data_param { shape { dim: 2 dim: 3 } } } '
)
IP = 'layer {{ name: "{0}" type: "InnerProduct" bottom: "d" top: "{0}" {1} inner_product_param {{ num_output: 2 }} }} '
LOSS = 'layer { name: "r" type: "Reduction" bottom: "a" top: "loss" loss_weight: 1 } '
TWO = DATA + IP.format("a", "%s") + IP.format("b", '%s param { name: "w" }') + LOSS
ONE = DATA + IP.format("a", "%s") + LOSS
# Of fields of nets: two nets of which the second has the field, or another value of it.
NETS: Final = {
    "NetParameter.name": (ONE % "", f'name: "n" {ONE % ""}'),
    "NetParameter.layer": (ONE % "", (ONE + LOSS.replace('"loss"', '"more"')) % ""),
    "NetParameter.layers": (ONE % "", 'layers { name: "d" type: DUMMY_DATA top: "d" dummy_data_param { num: 2 channels: 1 height: 1 width: 1 } }'),
    "NetParameter.input": ("", 'input: "x" input_dim: 1 input_dim: 2 input_dim: 3 input_dim: 4'),
    "NetParameter.input_dim": ('input: "x" input_shape { dim: 2 }', 'input: "x" input_dim: 1 input_dim: 2 input_dim: 3 input_dim: 4'),
    "NetParameter.input_shape": ('input: "x" input_shape { dim: 2 }', 'input: "x" input_shape { dim: 3 }'),
    "NetParameter.force_backward": (ONE % "", f'force_backward: true {ONE % ""}'),
    "NetParameter.debug_info": (ONE % "", f'debug_info: true {ONE % ""}'),
    "NetParameter.state": ((TWO % ("", "")).replace('name: "b"', 'include { stage: "s" } name: "b"'),
                           'state { stage: "s" } ' + (TWO % ("", "")).replace('name: "b"', 'include { stage: "s" } name: "b"')),
    "NetState.phase": (TWO % ("", "include { phase: TEST }"), "state { phase: TEST } " + TWO % ("", "include { phase: TEST }")),
    "NetState.level": (TWO % ("", "exclude { min_level: 2 }"), "state { level: 2 } " + TWO % ("", "exclude { min_level: 2 }")),
    "NetState.stage": (TWO % ("", 'exclude { stage: "s" }'), 'state { stage: "s" } ' + TWO % ("", 'exclude { stage: "s" }')),
    "NetStateRule.phase": (TWO % ("", ""), TWO % ("", "include { phase: TEST }")),
    "NetStateRule.min_level": (TWO % ("", ""), TWO % ("", "include { min_level: 1 }")),
    "NetStateRule.max_level": (TWO % ("", ""), TWO % ("", "include { max_level: -1 }")),
    "NetStateRule.stage": (TWO % ("", ""), TWO % ("", 'include { stage: "s" }')),
    "NetStateRule.not_stage": ('state { stage: "s" } ' + TWO % ("", ""), 'state { stage: "s" } ' + TWO % ("", 'include { not_stage: "s" }')),
    "ParamSpec.name": (TWO % ("", ""), TWO % ('param { name: "w" }', "")),
    "ParamSpec.share_mode": (TWO % ('param { name: "w" }', ""), (TWO % ('param { name: "w" }', "")).replace(
        'param { name: "w" } inner_product_param { num_output: 2 } } layer { name: "r"',
        'param { name: "w" share_mode: PERMISSIVE } inner_product_param { num_output: 1 axis: 0 } } layer { name: "r"')),
    "ParamSpec.lr_mult": (ONE % "", ONE % "param { lr_mult: 2 }"),
    "ParamSpec.decay_mult": (ONE % "", ONE % "param { decay_mult: 2 }"),
    "LayerParameter.name": (ONE % "", (ONE % "").replace('name: "a"', 'name: "other"')),
    "LayerParameter.type": (ONE % "", (ONE % "").replace('"Reduction"', '"Split"')),
    "LayerParameter.bottom": (ONE % "", (ONE % "").replace('bottom: "a"', 'bottom: "d"')),
    "LayerParameter.top": (ONE % "", (ONE % "").replace('top: "loss"', 'top: "sum"')),
    "LayerParameter.loss_weight": (ONE % "", (ONE % "").replace("loss_weight: 1", "loss_weight: 2")),
    "LayerParameter.param": (ONE % "", ONE % "param { lr_mult: 2 }"),
    "LayerParameter.blobs": (ONE % "", ONE % "blobs { shape { dim: 2 dim: 3 } data: [1, 2, 3, 4, 5, 6] } blobs { shape { dim: 2 } data: [1, 2] }"),
    "LayerParameter.include": (TWO % ("", ""), TWO % ("", "include { phase: TEST }")),
    "LayerParameter.exclude": (TWO % ("", ""), TWO % ("", "exclude { phase: TRAIN }")),
    "LayerParameter.phase": (ONE % "" + 'layer { name: "o" type: "Dropout" bottom: "a" top: "o" }',
                             ONE % "" + 'layer { name: "o" phase: TEST type: "Dropout" bottom: "a" top: "o" }'),
    "LayerParameter.propagate_down": (ONE % "", (ONE % "").replace("loss_weight: 1", "loss_weight: 1 propagate_down: false")),
}  # fmt: skip
SOLVER = "net_param { " + ONE % "" + '} base_lr: 0.1 lr_policy: "fixed" max_iter: 8 '
TESTED = SOLVER + "test_iter: 2 test_interval: 3 "
SOLVERS: Final = {
    **{f"SolverParameter.{field}": (SOLVER, SOLVER + text) for field, text in {
        "display": "display: 3", "momentum": "momentum: 0.5", "weight_decay": "weight_decay: 0.1", "snapshot": "snapshot: 2",
        "snapshot_prefix": 'snapshot_prefix: "p"', "snapshot_diff": "snapshot_diff: true", "solver_mode": "solver_mode: CPU",
        "device_id": "device_id: 1", "test_compute_loss": "test_compute_loss: true", "random_seed": "random_seed: 3",
        "debug_info": "debug_info: true", "train_state": 'train_state { stage: "s" }',
        "snapshot_after_train": "snapshot_after_train: false", "solver_type": "solver_type: ADAM", "delta": "delta: 1",
        "average_loss": "average_loss: 3", "clip_gradients": "clip_gradients: 1", "iter_size": "iter_size: 2",
        "snapshot_format": "snapshot_format: HDF5", "rms_decay": "rms_decay: 0.5", "momentum2": "momentum2: 0.5",
        "type": 'type: "Adam"', "layer_wise_reduce": "layer_wise_reduce: false", "weights": 'weights: "w.caffemodel"',
        "show_per_class_result": "show_per_class_result: true", "eval_type": 'eval_type: "detection"',
        "ap_version": 'ap_version: "MaxIntegral"', "test_iter": "test_iter: 2 test_interval: 3",
    }.items()},
    **{f"SolverParameter.{field}": (SOLVER, SOLVER.replace(a, b)) for field, a, b in (
        ("base_lr", "0.1", "0.2"), ("max_iter", "8", "9"),
        ("lr_policy", '"fixed"', '"poly" power: 2'), ("power", '"fixed"', '"poly" power: 2'),
        ("gamma", '"fixed"', '"exp" gamma: 0.5'), ("stepsize", '"fixed"', '"step" gamma: 0.5 stepsize: 2'),
        ("stepvalue", '"fixed"', '"multistep" gamma: 0.5 stepvalue: 2'), ("net_param", '"a"', '"b"'),
        ("train_net_param", 'net_param { ' + ONE % "", 'train_net_param { ' + TWO % ("", "")), ("net", 'net_param { ' + ONE % "" + '}', 'net: "other.prototxt"'),
        ("train_net", 'net_param { ' + ONE % "" + '}', 'train_net: "other.prototxt"'))},
    "SolverParameter.regularization_type": (SOLVER + "weight_decay: 1", SOLVER + 'weight_decay: 1 regularization_type: "L1"'),
    "SolverParameter.test_interval": (TESTED, TESTED.replace("test_interval: 3", "test_interval: 4")),
    "SolverParameter.test_initialization": (TESTED, TESTED + "test_initialization: false"),
    "SolverParameter.test_state": (TESTED, TESTED + 'test_state { stage: "s" }'),
    "SolverParameter.test_net": (TESTED, TESTED + 'test_net: "other.prototxt"'),
    "SolverParameter.test_net_param": (TESTED, TESTED + "test_net_param { " + TWO % ("", "") + "}"),
}  # fmt: skip


def net_outcome(text: str) -> Any:
    """A train net: its loss, gradient, outputs, and what its parameters are called and multiplied by."""
    import torch

    from caffenets.prototxt.state import filter_net
    from caffenets.prototxt.upgrade import upgrade_net
    from speedo.engines.pytorch.leaving import backward_of
    from speedo.engines.pytorch.net import Net
    from speedo.engines.solver_update import multipliers

    net = text_format.Parse(text, caffe_pb2.NetParameter())
    torch.manual_seed(1)
    try:
        upgrade_net(net, "net")
        filtered = filter_net(net, caffe_pb2.TRAIN, None, "net")
        filtered.ClearField("state")
        made = Net(filtered, "TRAIN")
        made.flat.copy_(torch.linspace(0, 1, made.flat.numel()) + made.flat)
        loss, outputs = (
            made.forward()
            if "Input" not in {layer.type for layer in filtered.layer}
            else (torch.zeros(()), {})
        )
        backward_of(loss)
        gradients = [None if one is None else one.tolist() for one in made.parameters.gradients()]
        return (
            str(net.name), repr(made.layout), repr(multipliers(filtered, made.layout)), loss.item(), gradients,
            sorted((name, one.tolist()) for name, one in outputs.items()), sorted(made.shapes.items()),
        )  # fmt: skip
    except (EngineError, SolverError):
        return REFUSED


def solver_outcome(text: str) -> Any:
    """A solver: what a run takes from it, its nets, the first rates, and the fields that the engine reads."""
    from speedo.engines.pytorch import engine
    from speedo.engines.solver import SolverOverrides, read_solver
    from speedo.engines.update_rules import SolverFields

    file = Path("solver.prototxt")
    file.write_text(text)
    try:
        spec = read_solver(file, overrides=SolverOverrides(engine="torch"))
    except SolverError:
        return REFUSED
    parameter = text_format.Parse(spec.text, caffe_pb2.SolverParameter())
    read = [
        name
        for name in ("ap_version", "show_per_class_result", "weights")
        if f"parameter.{name}" in inspect.getsource(engine)
    ]
    return (
        repr(replace(spec, text="")), str(parameter.train_net_param), [str(one) for one in parameter.test_net_param],
        repr(SolverFields.from_solver(parameter)), [spec.lr_policy.rate(at) for at in range(8)],
        [str(getattr(parameter, name)) for name in read],
    )  # fmt: skip


def old_outcomes(message: str, field: Any) -> Iterator[tuple[Any, Any]]:
    """Layers in the old forms, without and with the field: what they are upgraded to."""
    from caffenets.prototxt.upgrade import _FIRST, upgrade_net

    first = message == "V0LayerParameter"
    for kind in sorted(_FIRST) if first else ["DATA", "CONVOLUTION"]:
        found = []
        for given in (False, True):
            net = caffe_pb2.NetParameter()
            old = net.layers.add(bottom=["x"], top=["y"])
            old = old.layer if first else old
            old.type = (
                kind
                if first
                else old.DESCRIPTOR.enum_types_by_name["LayerType"].values_by_name[kind].number
            )
            old.name = "a"
            if given:
                _give(old, field)
            try:
                upgrade_net(net, "net")
                found.append(str(net))
            except SolverError:
                found.append(REFUSED)
        yield found[0], found[1]


def _give(message: Any, field: Any) -> None:
    """Set the field to something that is not its default."""
    if field.name == "type" and field.enum_type is None:
        message.type = "relu" if message.type != "relu" else "tanh"
    elif field.name == "layer":
        message.layer.type = "relu"
    elif field.message_type is not None:
        value = getattr(message, field.name)
        value.add() if hasattr(value, "add") else value.SetInParent()
    else:
        value = {field.TYPE_STRING: "other", field.TYPE_BOOL: not field.default_value}.get(
            field.type, 1
        )
        if field.default_value == value:
            value = 2
        if hasattr(getattr(message, field.name), "append"):
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)


def verdict(message: str, field: Any, known: dict[str, dict[str, str]]) -> str:
    name = f"{message}.{field.name}"
    for texts, outcome in ((NETS, net_outcome), (SOLVERS, solver_outcome)):
        if name in texts:
            base, with_it = map(outcome, texts[name])
            assert base != REFUSED, name
            return REFUSED if with_it == REFUSED else ACTS if base != with_it else NONE
    if message in ("V0LayerParameter", "V1LayerParameter"):
        if (
            message[1] == "1"
            and field.message_type is not None
            and field.message_type.name in known
        ):
            return _of_message(known[field.message_type.name])
        pairs = list(old_outcomes(message, field))
        acts = any(b not in (a, REFUSED) for a, b in pairs)
        return ACTS if acts else REFUSED if any(b == REFUSED for _, b in pairs) else NONE
    if message == "LayerParameter":
        return _of_message(known[field.message_type.name])
    return probes.verdict(message, field)


def _of_message(fields: dict[str, str]) -> str:
    found = set(fields.values())
    return ACTS if ACTS in found else REFUSED if REFUSED in found else NONE


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    import torch

    from speedo.engines import schema

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found: dict[str, dict[str, str]] = {}
    schema.use_own_schema()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder := tmp_path_factory.mktemp("fields"))
        write_files(folder)
        (folder / "other.prototxt").write_text((ONE % "").replace('"a"', '"o"'))
        for message in sorted(caffe_pb2.DESCRIPTOR.message_types_by_name, key=_late):
            if message not in RECORDS:
                found[message] = {
                    field.name: verdict(message, field, found)
                    for field in probes.fields_of(message)
                }
    schema.use_own_schema(False)
    torch.set_num_threads(threads)
    return found


def _late(message: str) -> tuple[bool, str]:
    return message in ("LayerParameter", "V0LayerParameter", "V1LayerParameter"), message


def test_every_field_acts_or_is_refused_or_is_named_as_without_effect(
    verdicts: dict[str, dict[str, str]],
) -> None:
    idle = {
        f"{m}.{field}"
        for m, fields in verdicts.items()
        for field, what in fields.items()
        if what == NONE
    }
    assert idle == set(WHY)


def test_a_field_of_another_caffe_is_kept_or_read_as_bvlcs(tmp_path: Path) -> None:
    """One that only a solver has is refused. Also with --ignore-unknown none is left out."""
    for names in FIELDS.values():
        for name in names:
            owner, field = name.split(".")
            message = caffe_pb2.DESCRIPTOR.message_types_by_name[owner]
            assert field not in message.fields_by_name, name
            assert about_field(owner, field), name
            assert changes_the_net(owner, field), name
    path = tmp_path / "net.prototxt"
    for texts in VALUES.values():
        for text in texts:
            path.write_text(text)
            net = caffe_pb2.NetParameter()
            read_text(path, net, [])
            if text.startswith("layers"):
                assert net.layers[0].type_name == "DenseImageData"
            else:
                assert [*unread(net)] == [("LossParameter", "normalization")]
            assert caffes_text(path)


def tables(verdicts: dict[str, dict[str, str]]) -> tuple[str, str]:
    lines = ["| message | acts | refused | without effect |", "|---|---|---|---|"]
    for message, fields in sorted(verdicts.items()):
        kinds = [
            [name for name, what in fields.items() if what == kind]
            for kind in (ACTS, REFUSED, NONE)
        ]
        lines.append(f"| {message} | {' | '.join(', '.join(one) or '-' for one in kinds)} |")
    reasons: dict[str, list[str]] = {}
    for name, why in WHY.items():
        reasons.setdefault(why, []).append(name)
    lines += ["", "Why a field is without effect:", "", "| reason | fields |", "|---|---|"]
    lines += [f"| {why} | {', '.join(names)} |" for why, names in reasons.items()]
    others = ["| Caffe | field | here |", "|---|---|---|"]
    for caffe, names in FIELDS.items():
        rows: dict[str, list[str]] = {}
        for name in names:
            owner, field = name.split(".")
            said = in_bvlcs_words(owner, field, "false" if field == "ceil_mode" else "2")
            kept = "unread" in caffe_pb2.DESCRIPTOR.message_types_by_name[owner].fields_by_name
            here = f"read as `{said.partition(':')[0]}`" if said else KEPT if kept else "refused"
            rows.setdefault(here, []).append(name)
        others += [f"| {caffe} | {', '.join(names)} | {here} |" for here, names in rows.items()]
    others += [
        f"| {caffe} | `{text}` | {KEPT} |" for caffe, texts in VALUES.items() for text in texts
    ]  # fmt: skip
    return "\n".join(lines), "\n".join(others)


def test_the_page_is_current(
    verdicts: dict[str, dict[str, str]], request: pytest.FixtureRequest
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    fields, others = tables(verdicts)
    for begin, end, table in ((BEGIN, END, fields), (FORKS, END_FORKS, others)):
        before, rest = text.split(begin)
        _, after = rest.split(end)
        text = f"{before}{begin}\n{table}\n\n{end}{after}"
    if request.config.getoption("--rewrite-tables"):
        PAGE.write_text(text, encoding="utf-8")
    else:
        assert PAGE.read_text(encoding="utf-8") == text, (
            "write it again: pytest tests/engines/pytorch/test_fields_page.py --rewrite-tables"
        )


def test_the_pairs_name_fields_that_there_are() -> None:
    names: Sequence[str] = [*NETS, *SOLVERS, *WHY, *probes.PAIRS, *probes.VALUES, *probes.DECIDES]
    for name in names:
        owner, field = name.split(".")
        assert field in caffe_pb2.DESCRIPTOR.message_types_by_name[owner].fields_by_name, name
