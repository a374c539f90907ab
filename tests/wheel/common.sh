# Sourced by the scripts of this folder, in the root of the repository.

# Runs a command without a word; when it fails, all that it said is shown.
quietly() {
  local log
  log=$(mktemp)
  if ! "$@" > "$log" 2>&1; then
    cat "$log" >&2
    rm "$log"
    return 1
  fi
  rm "$log"
}

# environment PYTHON FOLDER: an environment with what builds wheels.
environment() {
  if [ ! -e "$2/installed" ] || [ tests/wheel/requirements.txt -nt "$2/installed" ]; then
    rm -rf "$2"
    quietly "$1" -m venv "$2"
    quietly "$2/bin/python" -m pip install -r tests/wheel/requirements.txt
    command -v cmake > /dev/null || quietly "$2/bin/python" -m pip install cmake
    touch "$2/installed"
  fi
}

# The first Python of 3.12 or newer, if there is one: of it comes the wheel for the stable ABI, which PYTHON_ABI3 may name.
python_of_abi3() {
  local python
  for python in ${PYTHON_ABI3:-python3.12 $HOME/.pyenv/versions/3.12.*/bin/python python3.13 $HOME/.pyenv/versions/3.13.*/bin/python python3.14}; do
    if "$python" -c "import sys, ensurepip; sys.exit(sys.version_info < (3, 12))" 2> /dev/null; then
      echo "$python"
      return
    fi
  done
}
