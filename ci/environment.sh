# Sourced by the scripts beside it: makes the project's environment in .venv and puts it on the PATH.
# Needs Python >= 3.11 and a package index; fetches uv when it is missing.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
  for candidate in python3 python3.13 python3.12 python3.11 python; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  echo "Python 3.11 or newer is needed, and none was found: install it, or put it on the PATH." >&2
  return 1
}

find_uv() {
  if command -v uv >/dev/null; then
    command -v uv
    return
  fi
  local python
  python=$(find_python) || return 1
  if [ ! -x .venv-uv/bin/uv ]; then
    echo "Fetching uv, which makes the environment ..." >&2
    "$python" -m venv .venv-uv && .venv-uv/bin/python -m pip install --quiet --disable-pip-version-check uv || return 1
  fi
  echo "$PWD/.venv-uv/bin/uv"
}

# environment [uv sync arguments]: seconds when nothing changed, a minute or two the first time.
environment() {
  UV=$(find_uv) || return 1
  export UV
  if [ ! -d .venv ]; then
    echo "Making the environment in .venv (about 6 GB, a minute or two) ..." >&2
    export UV_COMPILE_BYTECODE=1  # once: Ray's workers import torch at the same time, and uv would compile all anew each time
  fi
  "$UV" sync --quiet --python "$(find_python)" --inexact "$@" || return 1
  export PATH="$PWD/.venv/bin:$PATH" VIRTUAL_ENV="$PWD/.venv"
  unset PYTHONDONTWRITEBYTECODE
  export RAY_ENABLE_UV_RUN_RUNTIME_ENV=0
}
