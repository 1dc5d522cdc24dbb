"""Texts, values and lines as a hostile host, worker or file would choose them."""

from __future__ import annotations

import copy
import json
import os
import unicodedata
from random import Random
from typing import Any, Final

INPUTS: Final = int(os.environ.get("SPEEDO_FUZZ", "2000"))  # of each kind
NASTY: Final = (
    "[/x]", "[bold red]", "[/]", "[link=file:///etc/passwd]", "\\[", ":warning:", "\x1b[2J", "\x1b]0;owned\x07",
    "\x9b31m", "\x1bP", "\x00", "\r", "\n", "\n\n", "\t", "\x7f", "\u202e", "\u2066", "\u200b", "\u2028", "\ufeff",
    "\ud800", "\udcff", "\U000e0001", "日本", "é", "\u3000", "<script>alert(1)</script>", '" onload="x', "$\\frac{$",
    "_", "{0}", "%s%n", "\\", "../../x", "iteration 999999999999999999999999/1", "worker 0: ", "joined the master",
    "speedo: all is well",
)  # fmt: skip


def is_clean(text: str, *, lines: bool = False) -> bool:
    """Whether a terminal only prints it."""
    return all(
        one.isprintable() or unicodedata.category(one) == "Zs" or (lines and one == "\n")
        for one in text
    )


class Foreign:
    """Makes them from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def text(self) -> str:
        draw = self.random
        parts = [
            draw.choice(NASTY) if draw.random() < 0.7 else chr(draw.randrange(0x110000))
            for _ in range(draw.choice((0, 1, 1, 2, 5, 20)))
        ]
        return "".join(parts) * (draw.choice((50, 3000)) if draw.random() < 0.03 else 1)

    def value(self, depth: int = 0) -> Any:
        draw = self.random
        kind = draw.randrange(12 if depth < 3 else 9)
        if kind < 3:
            return self.text()
        if kind < 9:
            return draw.choice(
                (None, True, False, 0, -1, 1, 2**31, 10**15, 10**16, 10**400, -0.0, 1e308, float("nan"), float("inf"),
                 1.5, "", "0", [], {})
            )  # fmt: skip
        if kind == 9:
            return [self.value(depth + 1) for _ in range(draw.randrange(4))]
        return {self.text(): self.value(depth + 1) for _ in range(draw.randrange(4))}

    def mutated(self, values: dict[str, Any]) -> dict[str, Any]:
        """The same with some fields changed, added or taken away, also in the objects in it."""
        made = copy.deepcopy(values)
        for _ in range(self.random.choice((0, 1, 1, 2))):
            place = made
            while (inner := [one for one in place.values() if isinstance(one, dict)]) and (
                self.random.random() < 0.4
            ):
                place = self.random.choice(inner)
            name = self.random.choice([*place, "surprise"])
            match self.random.randrange(4):
                case 0:
                    place.pop(name, None)
                case 1:
                    place[self.text()] = self.value()
                case _:
                    place[name] = self.value()
        return made

    def texts_in(self, values: dict[str, Any], *names: str) -> dict[str, Any]:
        """The same with other texts in these fields."""
        return {**values, **{name: self.text() for name in names if name in values}}

    def line(self, values: dict[str, Any]) -> bytes:
        """A mutated object as a line of JSON without its end, at times torn or no JSON at all."""
        made = json.dumps(self.mutated(values)).encode()
        match self.random.randrange(20):
            case 0:
                return made[: self.random.randrange(len(made) + 1)]
            case 1:
                return self.random.randbytes(self.random.randrange(100)).replace(b"\n", b"")
            case 2:
                return b"[" * 5000
        return made
