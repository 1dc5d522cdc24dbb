"""What a worker of a script has of its own in checkpoints: optimizer, counters of its module, what `run.keep` names."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from speedo.errors import ConfigError, PayloadError
from speedo.exchange.channel import first_line
from speedo.exchange.packed import ArrayKind, pack, unpack
from speedo.exchange.transfer import put_history
from speedo.master.slots import Assignment
from speedo.messages import SaveState, StateSaved
from speedo.storage.base import Store


class ScriptState:
    """Saved and restored in the script's own thread, between two steps; no pickle."""

    def __init__(self, stepped: Any) -> None:
        """`stepped` is a module with its optimizer (`ModuleWeights`); None where arrays are trained."""
        self._stepped = stepped
        self._objects: dict[str, Any] = {}
        self._former: dict[str, bytes] = {}  # of the checkpoint, until its object is named
        self._rates: Any = None  # of the optimizers in the checkpoint
        # Of the script's loop: what follows an epoch's last batch may not have been done yet.
        self.epoch: int | None = None

    def keep(self, name: str, thing: Any) -> None:
        """Keep the object in checkpoints. Of a run that is resumed it gets its state back at once.

        Raises `ConfigError` for what cannot be saved.
        """
        if not name:
            raise ConfigError("run.keep was given an empty name: give the object one")
        if not all(
            callable(getattr(thing, one, None)) for one in ("state_dict", "load_state_dict")
        ):
            raise ConfigError(
                f"run.keep({name!r}, ...) was given a {type(thing).__name__}: it needs state_dict() and "
                "load_state_dict(state)"
            )
        if name in self._objects and self._objects[name] is not thing:
            raise ConfigError(
                f"run.keep has another object named {name!r} already: give it another name"
            )
        _pack_object(name, thing)  # a value that cannot be saved is reported now
        self._objects[name] = thing
        self._give_back(name)

    def save(self) -> bytes:
        """What `restore` takes. Raises `ConfigError` for a value that cannot be saved."""
        kept = {name: _pack_object(name, thing) for name, thing in self._objects.items()}
        module = None
        if self._stepped is not None:
            module = {"optimizer": self._stepped.state(), "counters": self._stepped.counters()}
        # What the script has not named yet, or does not any more, stays as it was.
        return pack({"module": module, "kept": {**self._former, **kept}, "epoch": self.epoch})

    def put(
        self, command: SaveState, place: Assignment, store: Store, keyspace: str, samples: int
    ) -> StateSaved:
        """Put it into the store, for a checkpoint; the worker in this place has trained on this many records."""
        who = command.worker, command.incarnation, command.version
        try:
            put_history(store, keyspace, place.worker, command.version, self.save())
        except Exception as error:  # also of the script's own objects
            return StateSaved(*who, problem=first_line(error))
        batch = place.batch_size
        return StateSaved(*who, samples // batch, place.rank, place.count, batch)

    def restore(self, data: bytes) -> None:
        """Take over a former worker's state.

        Raises `PayloadError` if it is damaged, `EngineError` if it is of another optimizer.
        """
        try:
            state = unpack(data)
            module, kept = state["module"] or {}, dict(state["kept"])
            self.epoch = state.get("epoch")
            if not all(isinstance(one, bytes) for one in (*module.values(), *kept.values())):
                raise ValueError("no bytes")
            if module and self._stepped is not None:
                self._stepped.load_state(module["optimizer"])
                self._stepped.load_counters(module["counters"])
                self._rates = self._stepped.rates()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PayloadError(
                f"the worker's state in the checkpoint is damaged: {error}"
            ) from None
        self._former = kept
        for name in self._objects:
            self._give_back(name)

    def _give_back(self, name: str) -> None:
        data = self._former.pop(name, None)
        if data is None:
            return
        try:
            state = unpack(data, _kinds())
        except ValueError as error:
            raise PayloadError(
                f"the state of {name!r} in the checkpoint is damaged: {error}"
            ) from None
        self._objects[name].load_state_dict(state)
        if self._rates is not None:  # a scheduler that was made since then has set its first ones
            self._stepped.set_rates(self._rates)


def _pack_object(name: str, thing: Any) -> bytes:
    return pack(thing.state_dict(), f"run.keep: {name}", _kinds())


def _kinds() -> Mapping[str, ArrayKind]:
    """Tensors, where the script has PyTorch."""
    if "torch" not in sys.modules:
        return {}
    from speedo.engines.pytorch.packed_tensors import TENSORS

    return TENSORS
