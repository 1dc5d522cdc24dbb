"""Who may import whom in `speedo/` (DESIGN, section 2), and what no module may do; read from the source alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "speedo"

# From the ground up: a room imports from rooms below it and from itself, never from beside or above.
LAYERS = (
    ("errors", "failpoints", "line_file", "files", "bounds"),
    (
        "weights",
        "bundled",
        "token",
        "config_file",
        "mode_options",
        "json_lines",
        "original_options",
        "private_folders",
        "background_process",
        "workplace",
        "run_files",
        "crash",
    ),
    ("messages", "config", "checkpoint", "result"),
    ("status", "runlog", "trace", "control"),
    ("picture", "progress", "control_view", "resume"),
    ("run_dir",),
    ("sgd_modes", "storage", "engines", "data", "compression"),
    ("solver",),
    ("settings", "scratch", "rescue"),
    ("caffe_snapshot", "vectors_in_store", "turn_buffers"),
    (
        "books",
        "gate",
        "divergence",
        "deadlines",
        "pacing",
        "history_transfer",
        "worker",
        "sharding",
        "supervision",
    ),
    ("coordinator", "center", "roster", "overlap"),
    ("roles", "checkpointing"),
    ("driver", "outputs"),
    ("training", "simulator", "preparation"),
    ("actors", "planning"),
    ("doctor",),
    ("speedo",),  # the public names
    ("run_options", "data_cli", "control_cli", "doctor_cli", "plan_cli"),
    ("cli",),
    ("__main__",),
)

# Narrower than their layer: all that these rooms import of the rest of the package.
ONLY: dict[str, set[str]] = {
    "messages": {"weights"},
    "sgd_modes": {"messages", "weights", "config", "mode_options"},
    "storage": {"background_process", "errors", "failpoints", "private_folders"},
    "engines": {"errors", "files", "weights"},
    "data": {"bounds", "errors", "files"},
    "compression": {"config_file", "errors", "weights"},
    # It reads prototxt with Caffe's own messages, and lets nets read a conversion of a LevelDB.
    "solver": {"errors", "files", "engines.caffe_import", "data.leveldb"},
    "books": {"messages", "sgd_modes.rules", "weights"},
    "coordinator": {"books", "messages", "sgd_modes.base", "sgd_modes.rules"},
    "gate": {"weights"},
    "divergence": {"weights"},
    "deadlines": {"messages"},
    "pacing": set(),
    "json_lines": set(),
    "line_file": set(),
    "driver": {"center", "coordinator", "deadlines", "messages", "roles"},
    "sharding": {"solver"},
    "supervision": set(),
    "roster": {"checkpoint", "sharding"},
}

# Packages from outside that have one door.
DOORS: dict[str, set[str]] = {
    "ray": {"actors"},
    "orjson": {"json_lines"},
    "redis": {"storage.redis_store"},
    "caffe": {"engines.caffe_import"},
    "click": {"cli", "control_cli", "data_cli", "doctor_cli", "plan_cli", "run_options"},
    "lmdb": {"data", "engines", "solver"},
    "plyvel": {"data.leveldb"},
}

# Time and chance are arguments there, and nothing reads or writes but the store it is given.
PURE = (
    "pacing",
    "messages",
    "weights",
    "books",
    "gate",
    "divergence",
    "coordinator",
    "center",
    "driver",
    "worker",
    "sgd_modes",
)
IMPURE = {
    "asyncio",
    "datetime",
    "os",
    "pathlib",
    "random",
    "socket",
    "subprocess",
    "threading",
    "time",
}

UNSAFE = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}

MODES = ("asynchronous", "easgd", "hybrid", "partial", "synchronous", "weed_out")


def modules() -> dict[str, str]:
    """Source by name within the package: `errors`, `storage.keys`, `storage`; `speedo` is the package."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__") or "speedo"
        found[name] = path.read_text(encoding="utf-8")
    return found


SOURCES = modules()


def imports(source: str) -> list[tuple[str, int]]:
    """All that a module imports, wherever it does: full names, with the number of leading dots."""
    found: list[tuple[str, int]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(alias.name, 0) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            for alias in node.names:
                name = f"{module}.{alias.name}".removeprefix("speedo.")
                is_module = module.split(".")[0] == "speedo" and name in SOURCES
                found.append((f"speedo.{name}" if is_module else module, node.level))
    return found


def layer(room: str) -> int:
    return next(number for number, rooms in enumerate(LAYERS) if room in rooms)


def is_within(module: str, places: set[str]) -> bool:
    return any(module == place or module.startswith(f"{place}.") for place in places)


def objections(module: str, source: str) -> list[str]:
    """What this module imports and must not, a sentence each."""
    found, room = [], module.split(".")[0]
    for name, dots in imports(source):
        top, _, inner = name.partition(".")
        if dots:
            found.append(f"{module} imports relatively")
        elif top == "speedo" and inner:  # `import speedo` alone is for its version
            target = inner.split(".")[0]
            allowed = is_within(inner, ONLY[room]) if room in ONLY else True
            if target != room and not (layer(target) < layer(room) and allowed):
                found.append(f"{module} imports {inner}")
        elif top in UNSAFE:
            found.append(f"{module} imports {top}, which runs what it reads")
        elif top in DOORS and not is_within(module, DOORS[top]):
            found.append(f"{module} imports {top}, which only {sorted(DOORS[top])} may")
        elif top in IMPURE and room in PURE:
            found.append(f"{module} imports {top}")
    return found


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_a_module_imports_only_what_its_room_may(module: str) -> None:
    assert objections(module, SOURCES[module]) == []


def test_every_room_has_its_layer() -> None:
    assert {module.split(".")[0] for module in SOURCES} == {
        room for rooms in LAYERS for room in rooms
    }


@pytest.mark.parametrize(
    ("module", "source", "objection"),
    [
        ("weights", "from speedo.messages import Train", "weights imports messages"),
        ("messages", "import speedo.config.run_config", "messages imports config"),
        ("engines.new", "from speedo.storage import keys", "engines.new imports storage.keys"),
        ("engines.new", "from speedo import messages", "engines.new imports messages"),
        ("solver.new", "from speedo.engines import pycaffe", "solver.new imports engines.pycaffe"),
        ("coordinator", "from speedo.storage.base import Store", "coordinator imports storage.base"),
        ("driver", "def f():\n    import time", "driver imports time"),
        ("sgd_modes.new", "from random import random", "sgd_modes.new imports random"),
        ("simulator", "from speedo.actors.ray_cluster import RayCluster", "simulator imports actors.cluster"),
        ("center", "from speedo.master.coordinator import Plan", "center imports coordinator"),
        ("training", "import ray", "training imports ray, which only ['actors'] may"),
        ("actors.new", "import redis.client", "actors.new imports redis, which only ['storage.redis_store'] may"),
        ("engines.new", "import caffe", "engines.new imports caffe, which only ['engines.caffe_import'] may"),
        ("runlog", "import pickle", "runlog imports pickle, which runs what it reads"),
        ("data.new", "from .base import Prepared", "data.new imports relatively"),
    ],
)  # fmt: skip
def test_a_violation_is_noticed(module: str, source: str, objection: str) -> None:
    assert objections(module, source) == [objection]


def test_what_is_allowed_is_not_objected_to() -> None:
    source = "import speedo\nimport ray.util\nfrom speedo.storage import RedisStore\nimport time"
    assert objections("actors.new", source) == []


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_a_file_has_at_most_450_lines(module: str) -> None:
    assert SOURCES[module].count("\n") <= 450


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_has_at_most_80_lines(mode: str) -> None:
    assert SOURCES[f"sgd_modes.{mode}"].count("\n") <= 80


def test_no_child_looks_for_modules_in_the_working_directory() -> None:
    """`python -m` does, without -P: another user may have put some there."""
    started = [
        (module, line.strip())
        for module, source in SOURCES.items()
        for line in source.splitlines()
        if '"-m"' in line and "sys.executable" in line
    ]
    assert len(started) == 6
    assert [one for one in started if '"-P", "-m"' not in one[1]] == []
