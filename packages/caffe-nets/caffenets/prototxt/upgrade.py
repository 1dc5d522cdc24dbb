"""Upgrades nets in Caffe's older formats, as Caffe does when it reads a net file.

Caffe does this for files only, not for nets inside a solver, so it must be done before inlining
(Caffe: util/upgrade_proto.cpp). The first format is `layers { layer { ... } }`, the second `layers { ... }`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from google.protobuf import text_format

from caffenets.errors import SolverError

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
# Of each type of the first format: that of today, its parameter, and the fields of that, under both names.
_FIRST: Final = {
    "accuracy": ("Accuracy", "", ""),
    "bnll": ("BNLL", "", ""),
    "concat": ("Concat", "concat_param", "concat_dim"),
    "conv": (
        "Convolution", "convolution_param",
        "num_output biasterm=bias_term weight_filler bias_filler pad kernelsize=kernel_size group stride",
    ),
    "data": ("Data", "data_param", "source batchsize=batch_size rand_skip"),
    "dropout": ("Dropout", "dropout_param", "dropout_ratio"),
    "euclidean_loss": ("EuclideanLoss", "", ""),
    "flatten": ("Flatten", "", ""),
    "hdf5_data": ("HDF5Data", "hdf5_data_param", "source batchsize=batch_size"),
    "hdf5_output": ("HDF5Output", "", "hdf5_output_param"),
    "im2col": ("Im2col", "", ""),
    "images": (
        "ImageData", "image_data_param",
        "source batchsize=batch_size rand_skip shuffle_images=shuffle new_height new_width",
    ),
    "infogain_loss": ("InfogainLoss", "infogain_loss_param", "source"),
    "innerproduct": (
        "InnerProduct", "inner_product_param", "num_output biasterm=bias_term weight_filler bias_filler"
    ),
    "lrn": ("LRN", "lrn_param", "local_size alpha beta k"),
    "multinomial_logistic_loss": ("MultinomialLogisticLoss", "", ""),
    "pool": ("Pooling", "pooling_param", "pool kernelsize=kernel_size stride pad"),
    "relu": ("ReLU", "", ""),
    "sigmoid": ("Sigmoid", "", ""),
    "softmax": ("Softmax", "", ""),
    "softmax_loss": ("SoftmaxWithLoss", "", ""),
    "split": ("Split", "", ""),
    "tanh": ("TanH", "", ""),
    "window_data": (
        "WindowData", "window_data_param",
        ("source batchsize=batch_size det_fg_threshold=fg_threshold det_bg_threshold=bg_threshold "
        "det_fg_fraction=fg_fraction det_context_pad=context_pad det_crop_mode=crop_mode"),
    ),
}  # fmt: skip
_FIRST_TRANSFORM: Final = {
    "scale": "scale", "meanfile": "mean_file", "cropsize": "crop_size", "mirror": "mirror"
}  # fmt: skip
_FIRST_COMMON: Final = ("name", "type", "blobs", "blobs_lr", "weight_decay")
# What an old layer says in another way than today's; `layer` is the first format's.
_OTHERWISE: Final = {
    "type", "type_name", "param", "blob_share_mode", "blobs_lr", "weight_decay", "layer", "unread",
}  # fmt: skip


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
    if net.layer:
        raise SolverError(
            f'{origin}: has both `layer` and `layers`: write all of it as `layer {{ type: "..." }}`'
        )
    if any(old.HasField("layer") for old in net.layers):
        for old in _without_padding(net.layers, origin):
            _upgrade_first(old, net.layer.add(), origin)
    else:
        for old in net.layers:
            _upgrade_layer(old, net.layer.add())
    net.ClearField("layers")


def _without_padding(layers: Iterable[Any], origin: str) -> list[Any]:
    """The layers of the first format; what its padding layers did, a convolution or a pooling does itself."""
    kept: list[Any] = []
    makers: dict[str, Any] = {}
    for old in layers:
        layer = type(old).FromString(old.SerializeToString())
        for at, bottom in enumerate(layer.bottom):
            padding = makers.get(bottom)
            if padding is None or padding.layer.type != "padding":
                continue
            if layer.layer.type not in ("conv", "pool") or len(padding.bottom) != 1:
                raise SolverError(
                    f"{origin}: layer {layer.layer.name!r} reads the padding layer {padding.layer.name!r}, which only "
                    "conv and pool can: remove that layer"
                )
            layer.layer.pad = padding.layer.pad
            layer.bottom[at] = padding.bottom[0]
        makers.update(dict.fromkeys(layer.top, layer))
        if layer.layer.type != "padding":
            kept.append(layer)
    return kept


def _upgrade_first(old: Any, new: Any, origin: str) -> None:
    first = old.layer
    if first.type not in _FIRST:
        raise SolverError(
            f"{origin}: layer {first.name!r} has the type {first.type!r}, which is none of Caffe's first format "
            "(`layers { layer { ... } }`): correct it, or write the net in a later format"
        )
    kind, parameter, fields = _FIRST[first.type]
    places = {one.partition("=")[0]: one.rpartition("=")[2] for one in fields.split()}
    new.name, new.type = first.name, kind
    new.bottom.extend(old.bottom)
    new.top.extend(old.top)
    new.blobs.extend(first.blobs)
    for field, value in first.ListFields():
        if field.name in _FIRST_COMMON:
            continue
        into = getattr(new, parameter) if parameter else new
        name = places.get(field.name)
        if field.name in _FIRST_TRANSFORM:
            into, name = new.transform_param, _FIRST_TRANSFORM[field.name]
        if name is None:
            raise SolverError(
                f"{origin}: layer {first.name!r} ({first.type}) takes no {field.name!r}: remove it"
            )
        if field.message_type is not None:
            getattr(into, name).CopyFrom(value)
        elif hasattr(getattr(into, name), "append"):
            getattr(into, name).append(value)
        else:
            setattr(into, name, value)
    _set_params(new, (), (), first.blobs_lr, first.weight_decay)


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
    for text in getattr(old, "unread", ()):  # which today's form of a layer may have
        try:
            new.MergeFrom(text_format.Parse(text, type(new)()))
        except text_format.ParseError:
            new.unread.append(text)
    new.type = getattr(old, "type_name", "") or _type_name(old)
    _set_params(new, old.param, old.blob_share_mode, old.blobs_lr, old.weight_decay)
    _upgrade_transform(new)


def _set_params(new: Any, *columns: Sequence[Any]) -> None:
    """Names, share modes, rates and decays of its blobs, each as far as it is given."""
    params = [new.param.add() for _ in range(max(map(len, columns)))]
    for field, values in zip(("name", "share_mode", "lr_mult", "decay_mult"), columns, strict=True):
        for param, value in zip(params, values, strict=False):
            setattr(param, field, value)


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
