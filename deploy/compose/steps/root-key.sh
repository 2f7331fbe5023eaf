#!/bin/sh
# Makes the consortium's root key, once. Of it only the public half leaves this volume.
set -eu
root=/var/lib/chorale/root
if [ ! -e "$root/root.pub" ]; then
  chorale root init --dir "$root"
fi
cp "$root/root.pub" /exchange/root.pub
