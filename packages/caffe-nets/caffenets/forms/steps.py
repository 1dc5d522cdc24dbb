"""The layers of a deploy net as exporters see them: options, shapes for every batch, and the names of parameters."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from caffenets.errors import EngineError

Shape = tuple[int, ...]
# A size that is the batch, or grows with it, is None.
Dims = tuple[int | None, ...]

# What a layer cannot be called in a module: attributes of PyTorch's nn.Module that have no underscore before them.
_TAKEN: Final = frozenset(
    """
    T_destination add_module apply bfloat16 buffers call_super_init children compile cpu cuda double dump_patches
    eval extra_repr float forward get_buffer get_extra_state get_parameter get_submodule half ipu load_state_dict
    modules mtia named_buffers named_children named_modules named_parameters parameters register_backward_hook
    register_buffer register_forward_hook register_forward_pre_hook register_full_backward_hook
    register_full_backward_pre_hook register_load_state_dict_post_hook register_load_state_dict_pre_hook
    register_module register_parameter register_state_dict_post_hook register_state_dict_pre_hook requires_grad_
    set_extra_state set_submodule share_memory state_dict to to_empty train training type xpu zero_grad
    """.split()  # noqa: SIM905
)


class NoEqual(EngineError):
    """A layer that a form cannot express; the text is the end of a sentence that begins with the layer."""


class NoFreeBatch(NoEqual):
    """A layer that a form can express for one batch only."""


@dataclass(frozen=True, slots=True)
class Step:
    """One layer: its LayerParameter, the shapes of bottoms and tops, and the shapes of its blobs.

    `name` is an identifier of Python. `keys` name the blobs in a state dict and in ONNX; `owners` are the keys of the
    blobs whose values these share, and equal to `keys` where they share none. `value` is that of a top that depends on
    shapes alone.
    """

    param: Any
    name: str
    bottoms: tuple[Dims, ...]
    tops: tuple[Dims, ...]
    blobs: tuple[Shape, ...] = ()
    keys: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    value: Sequence[Any] | None = None


def identifiers(names: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """A Python identifier for each name, no two alike; names that are identifiers stay."""
    found: dict[str, str] = {}
    used = set(taken)
    for name in names:
        if name in found:
            continue
        base = re.sub(r"\W", "_", name, flags=re.ASCII).strip("_") or "layer"
        if base[0].isdigit() or keyword.iskeyword(base) or base in _TAKEN:
            base = f"layer_{base}"
        word, count = base, 1
        while word in used:
            count += 1
            word = f"{base}_{count}"
        used.add(word)
        found[name] = word
    return found


def with_own_names(net: Any) -> Any:
    """The net, or a copy in which each layer has a name of its own; the first of a name keeps it.

    Caffe takes layers of one name, or without one; it loads weights into the first of a name alone.
    """
    names = [str(layer.name) for layer in net.layer]
    if len(set(names)) == len(names):
        return net
    copy = type(net)()
    copy.CopyFrom(net)
    taken, seen = set(names), set[str]()
    for layer in copy.layer:
        if layer.name in seen:
            base, count = layer.name or str(layer.type), 2
            while f"{base}_{count}" in taken:
                count += 1
            layer.name = f"{base}_{count}"
            taken.add(layer.name)
        seen.add(layer.name)
    return copy


def dims_of(one: Mapping[str, Shape], other: Mapping[str, Shape]) -> dict[str, Dims]:
    """The shapes of one net with two batches: what differs is None."""
    return {
        name: tuple(a if a == b else None for a, b in zip(shape, other[name], strict=True))
        for name, shape in one.items()
    }


def owners_of(
    net: Any, blobs: Mapping[str, Sequence[Shape]]
) -> dict[tuple[str, int], tuple[str, int]]:
    """Of each blob, as layer and index, the one whose values it shares: the first of that param's name."""
    first: dict[str, tuple[str, int]] = {}
    found = {}
    for layer in net.layer:
        for index in range(len(blobs.get(layer.name, ()))):
            key = (str(layer.name), index)
            shared = str(layer.param[index].name) if index < len(layer.param) else ""
            found[key] = first.setdefault(shared, key) if shared else key
    return found


def constant(dims: Dims, what: str) -> Shape:
    """These sizes, which must not depend on the batch. Raises `NoFreeBatch`."""
    if None in dims:
        raise NoFreeBatch(f"needs {what} that do not depend on the batch")
    return tuple(size for size in dims if size is not None)
