"""Prints the lines and modules of each room beside its budget: `python tools/size.py [--enforce]`, see budget.toml."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]


def room_of(path: Path) -> str:
    """Returns the table and the key of the budget that a tracked Python file counts for."""
    parts = path.parts
    if "tests" in parts[:-1] or parts[0] == "tests":
        return "tests.lines"
    if parts[0] == "packages":
        return f"packages.{parts[1]}"
    if parts[:2] == ("src", "tokenloom"):
        return f"rooms.{parts[2]}" if len(parts) > 3 else "rooms.top"
    return ""


def measure() -> tuple[Counter[str], Counter[str]]:
    """Returns lines and modules by key of the budget."""
    lines, modules = Counter[str](), Counter[str]()
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in tracked.stdout.splitlines():
        if (path := ROOT / name).is_file() and (key := room_of(Path(name))):
            num_lines = path.read_bytes().count(b"\n")
            for each in (key, "core.lines") if key.startswith("rooms.") else (key,):
                lines[each] += num_lines
                modules[each] += 1
    return lines, modules


def main() -> int:
    """Prints the table; returns 1 where `--enforce` is given and something is above its budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--enforce", action="store_true", help="fail if anything is above its budget")
    enforces = parser.parse_args().enforce
    budget = tomllib.loads((ROOT / "budget.toml").read_text())
    allowed = {f"{table}.{key}": value for table, rows in budget.items() for key, value in rows.items()}
    lines, modules = measure()
    found = lines | Counter({"core.modules": modules["core.lines"]})
    print(f"{'':24}{'now':>9}{'budget':>9}{'modules':>9}")
    for key in sorted(found | Counter(allowed), key=lambda key: (key.split(".")[0], -found[key])):
        mark = " above" if found[key] > allowed.get(key, found[key]) else ""
        print(f"{key:24}{found[key]:9,}{allowed.get(key, ''):>9}{modules[key] or '':>9}{mark}")
    return int(enforces and any(found[key] > value for key, value in allowed.items()))


if __name__ == "__main__":
    sys.exit(main())
