"""Writes the stub of the compiled module: `make stub`, or `python native/make_stub.py FILE`.

It is nanobind's, in which arrays of any dtype and tuples of anything say so, so that checkers know the whole of it.
"""

import re
import subprocess
import sys
from pathlib import Path


def main(path: Path) -> None:
    subprocess.run([sys.executable, "-m", "nanobind.stubgen", "-m", "tokenloom._native", "-o", str(path)], check=True)
    text = path.read_text()
    text = text.replace("import Annotated, overload", "import Annotated, Any, overload")
    text = text.replace("Annotated[NDArray, ", "Annotated[NDArray[Any], ")
    path.write_text(re.sub(r"(?<=[>:|] )tuple(?=[,:)])", "tuple[Any, ...]", text))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
