"""Modes and rules of the user's among the options of a run: objects become places, their own options are kept apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from speedo.errors import ConfigError
from speedo.sgd_modes.base import OwnOption, options_of
from speedo.sgd_modes.foreign import folders_of, is_foreign, mode_at, place_of, rule_at
from speedo.sgd_modes.registry import PLAIN, RULES
from speedo.sgd_modes.rules import MergeRule
from speedo.system.bounds import said


def as_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a call in which mode or rule are a class, or an object: its place, and its own options.

    An option that the call gives, too, is the call's. Raises `ConfigError` for a class that cannot be imported by name.
    """
    found = dict(given)
    mode = found.get("mode")
    inner = getattr(mode, "rule", None)
    if isinstance(inner, MergeRule):  # of a strategy that has been made
        found.setdefault("rule", inner)
        if isinstance(steps := getattr(mode, "local_steps", 1), int) and steps != 1:
            found.setdefault("local_steps", steps)
    names: dict[str, dict[Any, str]] = {
        "mode": {mode.schedule: name for name, mode in PLAIN.items()},
        "rule": {rule: name for name, rule in RULES.items()},
    }
    for word, known in names.items():
        if (thing := found.get(word)) is None or isinstance(thing, str):
            continue
        made_of: Any = thing if isinstance(thing, type) else type(thing)
        if not (issubclass(made_of, MergeRule) or hasattr(made_of, "on_result")):
            continue  # a mistake, which the check of its type tells
        found[word] = known.get(made_of) or place_of(made_of)
        if thing is not made_of:
            for name, own in options_of(made_of).items():
                if (value := getattr(thing, name, own.default)) != own.default:
                    found.setdefault(name, value)
    return found


def with_code(given: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """The options of a run or a phase, where those that a mode or rule outside the package declares are in `foreign`.

    `known` are the options of the run itself. Raises `ConfigError`.
    """
    options = dict(given)
    options.pop("code_from", None)  # no file says where code is
    if isinstance(former := options.pop("foreign", {}), Mapping):
        options = {**former, **options}
    declared_own: dict[str, OwnOption] = {}
    if is_foreign(mode := options.get("mode")):
        declared_own |= mode_at(mode).own
    if is_foreign(rule := options.get("rule")):
        declared_own |= options_of(rule_at(rule))
    if not (is_foreign(mode) or is_foreign(rule)):
        return options
    taken = [name for name in declared_own if name in known]
    if taken:
        raise ConfigError(
            f"{rule or mode} declares the option {taken[0]}, which a run has already; give it another name"
        )
    own = dict[str, Any]()
    for name, one in declared_own.items():
        if name in options:
            own[name] = options.pop(name)
        if name in own:
            try:
                own[name] = TypeAdapter(one.kind).validate_python(own[name])
            except ValidationError:
                kind = getattr(one.kind, "__name__", str(one.kind))
                raise ConfigError(
                    f"{name} is {said(own[name])}; use a value of type {kind}"
                ) from None
    return {
        **options,
        "foreign": own,
        "code_from": folders_of(*(str(one) for one in (mode, rule) if is_foreign(one))),
    }
