"""Upgrades nets in Caffe's older formats, as Caffe does when it reads a net file.

Caffe does this for files only, not for nets inside a solver, so it must be done before inlining
(Caffe: util/upgrade_proto.cpp). The very first format (`layers { layer { ... } }`) is refused.
"""

from __future__ import annotations

from typing import Any, Final

from speedo.errors import SolverError

# The names that are not simply the old ones in CamelCase.
_TYPES: Final = {
    "ABSVAL": "AbsVal", "ARGMAX": "ArgMax", "BNLL": "BNLL", "HDF5_DATA": "HDF5Data",
    "HDF5_OUTPUT": "HDF5Output", "LRN": "LRN", "MVN": "MVN", "RELU": "ReLU",
    "SOFTMAX_LOSS": "SoftmaxWithLoss", "TANH": "TanH", "NONE": "",
}  # fmt: skip
_TRANSFORM_FIELDS: Final = ("scale", "mean_file", "crop_size", "mirror")
_DATA_FIELDS: Final = {
    "Data": "data_param",
    "ImageData": "image_data_param",
    "WindowData": "window_data_param",
}
# What an old layer says in another way than today's; `layer` is the oldest format's.
_OTHERWISE: Final = {"type", "param", "blob_share_mode", "blobs_lr", "weight_decay", "layer"}


def upgrade_net(net: Any, origin: str) -> None:
    """Upgrade the NetParameter in place; `origin` names it in errors."""
    if net.layers:
        _upgrade_layers(net, origin)
    if net.input:
        _upgrade_input(net, origin)
    for layer in net.layer:
        if layer.type == "BatchNorm" and len(layer.param) == 3:
            for param in layer.param:
                param.lr_mult = 0.0
                param.decay_mult = 0.0


def _upgrade_layers(net: Any, origin: str) -> None:
    if any(old.HasField("layer") for old in net.layers):
        raise SolverError(
            f"{origin}: is in Caffe's first format (`layers {{ layer {{ ... }} }}`): "
            "convert it with Caffe's tool upgrade_net_proto_text"
        )
    if net.layer:
        raise SolverError(
            f'{origin}: has both `layer` and `layers`: write all of it as `layer {{ type: "..." }}`'
        )
    for old in net.layers:
        _upgrade_layer(old, net.layer.add())
    net.ClearField("layers")


def _upgrade_layer(old: Any, new: Any) -> None:
    names = new.DESCRIPTOR.fields_by_name
    for field, value in old.ListFields():
        if field.name in _OTHERWISE or field.name not in names:
            continue
        if hasattr(value, "extend"):
            getattr(new, field.name).extend(value)
        elif field.message_type is not None:
            getattr(new, field.name).CopyFrom(value)
        else:
            setattr(new, field.name, value)
    new.type = _type_name(old)
    count = max(len(old.param), len(old.blob_share_mode), len(old.blobs_lr), len(old.weight_decay))
    params = [new.param.add() for _ in range(count)]
    for param, name in zip(params, old.param, strict=False):
        param.name = name
    for param, mode in zip(params, old.blob_share_mode, strict=False):
        param.share_mode = mode
    for param, lr_mult in zip(params, old.blobs_lr, strict=False):
        param.lr_mult = lr_mult
    for param, decay_mult in zip(params, old.weight_decay, strict=False):
        param.decay_mult = decay_mult
    _upgrade_transform(new)


def _type_name(old: Any) -> str:
    name = old.DESCRIPTOR.enum_types_by_name["LayerType"].values_by_number[old.type].name
    return _TYPES.get(name, "".join(word.capitalize() for word in name.split("_")))


def _upgrade_transform(layer: Any) -> None:
    """Move scale, mean_file, crop_size and mirror into `transform_param`."""
    if layer.type not in _DATA_FIELDS:
        return
    source = getattr(layer, _DATA_FIELDS[layer.type])
    for name in _TRANSFORM_FIELDS:
        if source.HasField(name):
            setattr(layer.transform_param, name, getattr(source, name))
            source.ClearField(name)


def _upgrade_input(net: Any, origin: str) -> None:
    """`input: "data" input_dim: ...` becomes an Input layer, before all others."""
    shapes = [list(shape.dim) for shape in net.input_shape]
    if not shapes:
        sizes = list(net.input_dim)
        shapes = [sizes[start : start + 4] for start in range(0, len(sizes), 4)]
    if shapes and len(shapes) != len(net.input):
        raise SolverError(
            f"{origin}: has {len(net.input)} `input` but {len(shapes)} shapes: give one for each"
        )
    rest = [type(layer).FromString(layer.SerializeToString()) for layer in net.layer]
    if shapes:
        del net.layer[:]
        layer = net.layer.add(name="input", type="Input", top=list(net.input))
        for extents in shapes:
            layer.input_param.shape.add(dim=extents)
        net.layer.extend(rest)
    for field in ("input", "input_shape", "input_dim"):
        net.ClearField(field)
