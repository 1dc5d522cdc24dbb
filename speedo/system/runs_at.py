"""Where a worker computes, as it says when it joins."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunsAt:
    """Where a worker computes: the name of its host, its process id, its BLAS threads, and the CPUs that it may run on.
    `cores` is written as the kernel writes lists: `0-3,8`. `device` is PyTorch's, `cpu` or `cuda:0`; empty with Caffe.
    """

    host: str
    process: int
    threads: int
    cores: str
    device: str = ""
