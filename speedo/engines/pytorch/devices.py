"""Imports PyTorch, and chooses the device that a process computes on."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from speedo.errors import EngineError
from speedo.system.remedies import install_extra

META: Final = "meta"  # PyTorch's device without memory: shapes and no values


@cache
def load_torch() -> Any:
    """The module `torch`; raises `EngineError` where there is none."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a library that it needs does not load
        raise EngineError(
            f"PyTorch cannot be imported here ({error}): install it with {install_extra('torch')} on this node, "
            "or train with --engine caffe"
        ) from error
    return torch


def device_count() -> int:
    """CUDA devices that PyTorch sees on this machine."""
    torch = load_torch()
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def names_of_devices() -> list[str]:
    """The names of these devices, as PyTorch has them."""
    torch = load_torch()
    return [str(torch.cuda.get_device_name(index)) for index in range(device_count())]


def bytes_of_devices() -> list[int]:
    """The memory of each of these devices."""
    torch = load_torch()
    found = map(torch.cuda.get_device_properties, range(device_count()))
    return [int(one.total_memory) for one in found]


def device_for(device: str, number: int) -> str:
    """The device of worker `number` of this host, `cpu` or `cuda:K`; workers take the devices in turn.

    Raises `EngineError` for a device that this machine does not have.
    """
    return chosen_device(device, number, device_count() if device != "cpu" else 0)


def device_of_tester(device: str, number: int) -> str:
    """As `device_for`, from the last device on; the CPU where this machine, the master's, has not that device."""
    count = device_count() if device != "cpu" else 0
    try:
        return chosen_device(device, -1 - number, count)
    except EngineError:
        return "cpu"


def use_device(name: str) -> Any:
    """The `torch.device` of that name, made ready for this process. Raises `EngineError` if it is not here."""
    torch = load_torch()
    try:
        torch.device(name)
    except RuntimeError:
        raise EngineError(f"the device {name!r} is none of cpu, cuda and cuda:N") from None
    device = torch.device(chosen_device(name, 0, device_count() if name != "cpu" else 0))
    if device.type == "cuda":
        # Else page-locked memory would occupy the first GPU, too.
        torch.cuda.set_device(device)
        # PyTorch's convolutions would round float32 to the 10 bits of TF32.
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
    return device


def chosen_device(device: str, number: int, count: int) -> str:
    """The device for this worker number, round robin over this many. Raises `EngineError` if it is not among them."""
    if device in ("cpu", META):
        return device
    if device == "auto" and not count:
        return "cpu"
    if not count:
        raise EngineError(
            f"the device is {device}, but PyTorch sees no CUDA device on this machine: use --device auto or cpu, or "
            "install a driver and a build of PyTorch that fit the GPU"
        )
    if device in ("auto", "cuda"):
        return f"cuda:{number % count}"
    if int(device.removeprefix("cuda:")) >= count:
        raise EngineError(
            f"the device is {device}, but PyTorch sees only cuda:0 to cuda:{count - 1} on this machine: use one of "
            "these, or --device cuda for all in turn"
        )
    return device
