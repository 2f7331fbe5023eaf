#!/bin/sh
# Joins with the silo's invite, once, and allows the one plan that this federation is started with.
set -eu
if [ ! -d "$CHORALE_SILO_DATA/identity" ]; then
  chorale-silo join - --base-model /opt/chorale/share/base-model </exchange/invite
fi
if ! chorale-silo policy init --plan /etc/chorale/plan.toml 2>/dev/null; then
  echo "policy.toml was written before: it stays as it is" >&2
fi
