#!/bin/sh
# The suite against a real Ray cluster on this machine, in a virtual environment of its own.
#   tests/foreign/ray/run.sh VENV_DIRECTORY [PYTEST_ARGUMENTS…]
# Needs about 2 GB of disk for VENV_DIRECTORY, which is kept.
set -eu
venv=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
if [ ! -e "$venv/.installed" ]; then
  [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
  pip="$venv/bin/pip install --quiet --disable-pip-version-check -c $root/constraints.txt"
  # torch comes first and alone: it is the build without CUDA where pip is told of one.
  $pip torch
  $pip -e "$root[lab,ray]" pytest pytest-timeout
  touch "$venv/.installed"
fi
python="$(cd "$venv" && pwd)/bin/python"
cd "$root"
# The conftest of the other tests needs packages that are not in this environment.
OMP_NUM_THREADS=1 PYTHONPATH="$root:$root/proto" exec "$python" -m pytest -c /dev/null \
  --rootdir "$root" --confcutdir "$here" --import-mode=importlib -p no:cacheprovider -W error \
  --timeout 600 -q -rA "$here" "$@"
