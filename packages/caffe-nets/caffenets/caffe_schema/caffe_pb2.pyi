# The messages are made when the generated module is imported.
from typing import Any

def __getattr__(name: str) -> Any: ...
