"""What a type checker knows of the installed package: `python known_types.py PYRIGHT`, in its environment."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LEAST = 0.99

NAMESPACES = re.search(r"^_NAMESPACES = \((.*?)\)$", Path("src/tokenloom/__init__.py").read_text(), re.M | re.S)[1]
NAMES = re.search(r"^__all__ = \[(.*?)\]$", Path("src/tokenloom/__init__.py").read_text(), re.M | re.S)[1]


def asked(*words: str) -> Any:
    """Runs pyright away from the sources, and returns its report."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*words, "--outputjson"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    return json.loads(done.stdout)


def check_completeness(pyright: str) -> None:
    found = asked(pyright, "--verifytypes", "tokenloom", "--ignoreexternal")["typeCompleteness"]
    score = found["completenessScore"]
    if score < LEAST:
        for symbol in found["symbols"]:
            if symbol["isExported"] and not symbol["isTypeKnown"]:
                print(symbol["name"], *(each["message"].splitlines()[0] for each in symbol["diagnostics"]), sep="\n  ")
    print(f"wheel-check: pyright knows the types of {score:.2%} of the public names")
    assert score >= LEAST, f"expected at least {LEAST:.0%}"


def check_names(pyright: str) -> None:
    """With `import tokenloom` alone, every name at the top and every namespace is known."""
    names = re.findall(r'"(\w+)"', NAMES + NAMESPACES)
    program = "import tokenloom\n" + "".join(f"reveal_type(tokenloom.{name})\n" for name in names)
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(program)
        file.flush()
        report = asked(pyright, file.name)["generalDiagnostics"]
    errors = [each["message"] for each in report if each["severity"] == "error"]
    unknown = [each["message"] for each in report if "Unknown" in each["message"]]
    revealed = [each for each in report if each["severity"] == "information"]
    assert (errors, unknown, len(revealed)) == ([], [], len(names))
    print(f"wheel-check: {len(names)} names of `tokenloom` are known where only `import tokenloom` is written")


if __name__ == "__main__":
    check_completeness(sys.argv[1])
    check_names(sys.argv[1])
