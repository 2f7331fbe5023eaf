#!/bin/sh
# A release: wheel and source archive, a bill of materials for each kind of installation, digests.
#   deploy/release.sh OUT_DIRECTORY [PROFILE…]        profiles: coordinator silo (default: both)
# Builds what is committed, in environments of its own under OUT_DIRECTORY/.work (kept between runs
# and safe to delete). Files carry the time of the commit, so building twice gives equal bytes.
set -eu
out=$1
shift
profiles=${*:-coordinator silo}
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
cd "$root"
if [ -n "$(git status --porcelain)" ]; then
  echo "release: the working tree has changes: commit them first, a release is a commit" >&2
  exit 1
fi
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$out/.work
rm -rf "$work/source"
# By their endings: a data directory may lie beside them, under a name like theirs.
rm -f "$out"/chorale-*.whl "$out"/chorale-*.tar.gz "$out"/chorale-*.cdx.json "$out/SHA256SUMS"
mkdir -p "$work/source"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
git archive HEAD | tar -x -C "$work/source"

if [ ! -e "$work/tools/.installed" ]; then
  "$python" -m venv "$work/tools"
  "$work/tools/bin/pip" install --quiet --disable-pip-version-check build==1.6.1 cyclonedx-bom==7.5.0
  touch "$work/tools/.installed"
fi
"$work/tools/bin/python" -m build --outdir "$out" "$work/source" >"$work/build.log" 2>&1 || {
  tail -n 20 "$work/build.log" >&2
  exit 1
}
wheel=$(ls "$out"/chorale-*.whl)
version=$(basename "$wheel" | cut -d- -f2)

for profile in $profiles; do
  echo "release: installing the $profile into an empty environment" >&2
  venv=$work/$profile
  rm -rf "$venv"
  "$python" -m venv "$venv"
  pip="$venv/bin/pip install --quiet --disable-pip-version-check -c $root/constraints.txt"
  case $profile in
    coordinator) $pip "$wheel" ;;
    # torch first and alone: it is the build without CUDA where pip is told of one.
    silo) $pip torch && $pip "$wheel[silo]" ;;
    *) echo "release: there is no profile $profile" >&2; exit 1 ;;
  esac
  # Where the wheel lay is nobody's business, and would make the bill differ from build to build.
  rm -f "$venv"/lib/python*/site-packages/chorale-*.dist-info/direct_url.json
  for command in chorale chorale-coordinator chorale-silo; do
    "$venv/bin/$command" --help >/dev/null
  done
  if [ "$profile" = coordinator ] && "$venv/bin/python" -c 'import torch' 2>/dev/null; then
    echo "release: the coordinator's installation has torch" >&2
    exit 1
  fi
  "$work/tools/bin/cyclonedx-py" environment --output-reproducible --of JSON \
    -o "$out/chorale-$version-$profile.cdx.json" "$venv/bin/python"
done
(cd "$out" && sha256sum chorale-*.whl chorale-*.tar.gz chorale-*.cdx.json >SHA256SUMS && cat SHA256SUMS)
