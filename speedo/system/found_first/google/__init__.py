"""The package `google` as a regular one.

That of protobuf has no `__init__.py`; so any folder on the import path that has a `google/__init__.py` would hide it.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
