#!/bin/sh
# The suite on this machine's GPUs. Without one it says so and fails: nothing was tested.
#   tests/foreign/gpu/run.sh PYTHON [PYTEST_ARGUMENTS…]
set -eu
python=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
cd "$root"
"$python" -c 'import torch
if not torch.cuda.is_available():
    raise SystemExit(f"torch {torch.__version__} sees no GPU here: install a build of torch with CUDA")
print(f"torch {torch.__version__}, {torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}")'
OMP_NUM_THREADS=1 PYTHONPATH="$root:$root/proto${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m pytest \
  -c /dev/null --rootdir "$root" --confcutdir "$here" --import-mode=importlib -p no:cacheprovider \
  --timeout 600 -q -rA "$here" "$@"
