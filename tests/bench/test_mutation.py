from __future__ import annotations

import ast
from pathlib import Path

from bench.support import mutants

SOURCE = '''"""A module."""
LIMIT = 3


def wait(late: int, turns: list[int] = []) -> bool:
    """Whether it waits."""
    if late < 2 and turns:
        turns.clear()
    raise_if(late)
    return late + 1 == len(turns)
'''


def test_each_mutant_has_one_change_and_the_next_begins_with_the_original(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(SOURCE)
    original = ast.unparse(ast.parse(SOURCE)).splitlines()
    found = []
    for mutant in mutants.mutants_of(file):
        changed = mutant.source.splitlines()
        lines = [
            new.strip()
            for old, new in zip(original, changed, strict=True)
            if old.strip() != new.strip()
        ]
        assert len(lines) == 1, mutant.what
        found.append(lines[0])
    assert found == [
        "if not (late < 2 and turns):",
        "if late < 2 or turns:",
        "if late <= 2 and turns:",
        "if late < 3 and turns:",
        "None",
        "None",
        "return late + 1 != len(turns)",
        "return late - 1 == len(turns)",
        "return late + 2 == len(turns)",
    ]


def test_every_equivalent_mutant_is_one_of_a_line_that_is_there() -> None:
    """A line that changed must be looked at again."""
    for (place, line, what), reason in mutants.EQUIVALENT.items():
        lines = (mutants.ROOT / place).read_text().splitlines()
        assert line in {one.strip() for one in lines}, place
        assert what.split("`")[1 if "`" in what else 0].split(" becomes ")[0] in line
        assert reason


def test_a_mutant_belongs_to_the_outermost_function_that_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        "class Counter:\n"
        "    start: int = 3\n"
        "\n"
        "    @property\n"
        "    def next(self) -> int:\n"
        "        def more() -> int:\n"
        "            return self.start + 1\n"
        "\n"
        "        return more()\n"
    )
    found = {
        (mutant.line, function.name if (function := mutants.function_of(mutant)) else None)
        for mutant in mutants.mutants_of(file)
    }
    assert found == {(2, None), (7, "Counter.next")}
