"""Where the time of the test suite goes: seconds by folder, from what `pytest --junitxml FILE` wrote.

.venv/bin/python -m bench.suite_time FILE [--files]     # --files: by file instead
"""

from __future__ import annotations

import argparse
from collections import Counter
from xml.etree import ElementTree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file")
    parser.add_argument("--files", action="store_true", help="by file, not by folder")
    asked = parser.parse_args()
    seconds, tests = Counter[str](), Counter[str]()
    for case in ElementTree.parse(asked.file).iter("testcase"):
        parts = case.attrib["classname"].split(".")
        name = "/".join(parts if asked.files else parts[:2])
        seconds[name] += float(case.attrib["time"])  # type: ignore[assignment]
        tests[name] += 1
    for name, spent in seconds.most_common():
        print(f"{spent:9.1f} s {tests[name]:6} tests  {name}")
    print(f"{seconds.total():9.1f} s {tests.total():6} tests  in all")


if __name__ == "__main__":
    main()
