#!/bin/sh
# invite.sh SILO: writes one invite for one silo, once, to where only that silo reads it.
set -eu
if [ ! -e /exchange/invite ]; then
  chorale invite oncology "$1" --ttl 24h >/exchange/invite.new
  mv /exchange/invite.new /exchange/invite
fi
