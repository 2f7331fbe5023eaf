#!/bin/sh
# The suite against the real openenv, reasoning-gym, textworld, trl and pydantic-ai packages, in a
# virtual environment of its own.
#   tests/foreign/environments/run.sh VENV_DIRECTORY [--model] [PYTEST_ARGUMENTS…]
# --model installs torch, trl and pydantic-ai as well: the small base model plays too, TRL's trainer
# takes the classes that the adapter plays, and an agent of pydantic-ai plays through the gateway.
# Needs `make` (TextWorld builds its interpreter) and a C compiler.
set -eu
venv=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
packages="openenv==0.10.0 reasoning-gym==0.1.25 textworld==1.7.0 gymnasium==1.4.0 websockets==17.4 httpx2==2.16.2
  numpy==2.4.6 pydantic==2.14.3 structlog==26.1.0 cryptography==50.0.2
  safetensors==0.8.0 huggingface_hub==2.4.0 prometheus_client==0.26.0 protobuf==5.29.6
  grpcio==1.85.1 pytest==9.2.0 pytest-timeout==2.4.0"
if [ "${1:-}" = --model ]; then
  shift
  old_trl=$venv/trl-0.11.4
  packages="$packages torch==2.13.0 transformers==5.23.0 peft==0.21.2 trl==1.16.0
    openai==3.54.0 pydantic-ai-slim[openai]==2.68.0"
fi
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
# shellcheck disable=SC2086 # a list
"$venv/bin/pip" install --quiet $packages
if [ -n "${old_trl:-}" ]; then
  # Read and not imported (test_trl_ppo.py): its PPO has formulas that can be called.
  "$venv/bin/pip" install --quiet --no-deps --upgrade --target "$old_trl" trl==0.11.4
  CHORALE_TRL_PPO=$(cd "$old_trl" && pwd)
  export CHORALE_TRL_PPO
fi
cd "$root"
# The packages warn about things of their own, so warnings are no errors here; the conftest of the
# other tests needs packages that are not in this environment.
PYTHONPATH="$root:$root/proto" exec "$venv/bin/python" -m pytest -c /dev/null --rootdir "$root" \
  --confcutdir "$here" --import-mode=importlib -p no:cacheprovider --timeout 600 -q -rA "$here" "$@"
