"""The tiny databases of the engines' tests."""

from tests.engines.conftest import databases, home

__all__ = ["databases", "home"]
