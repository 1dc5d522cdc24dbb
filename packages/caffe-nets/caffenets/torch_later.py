"""PyTorch, imported at its first use: the shapes of layers, and their export, need none."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.autograd import Function
    from torch.nn import functional
else:
    Tensor = Any

    class _Later:
        def __init__(self, name: str) -> None:
            self._name, self._module = name, None

        def __getattr__(self, attribute: str) -> Any:
            if self._module is None:
                self._module = import_module(self._name)
            return getattr(self._module, attribute)

    torch, functional = _Later("torch"), _Later("torch.nn.functional")

    class Function:
        """A `torch.autograd.Function` once it is applied."""

        @classmethod
        def apply(cls, *given: Any) -> Any:
            return _made(cls).apply(*given)

    @cache
    def _made(kind: type) -> Any:
        own = {name: one for name, one in vars(kind).items() if name[:2] != "__"}
        return type(kind.__name__, (torch.autograd.Function,), own)


Called = TypeVar("Called", bound=Callable[..., Any])

__all__ = ["Function", "Tensor", "functional", "torch", "without_gradient"]


def without_gradient(function: Called) -> Called:
    """As `torch.no_grad` for a function."""

    @wraps(function)
    def call(*given: Any) -> Any:
        with torch.no_grad():
            return function(*given)

    return call  # type: ignore[return-value]
