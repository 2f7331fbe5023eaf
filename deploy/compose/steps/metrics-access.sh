#!/bin/sh
# Makes the silos' certificate and token for metrics, once: with both Prometheus reads them, and
# nobody else in the network does. Real silos have their own, each with its own Prometheus.
set -eu
if [ ! -e /exchange/token ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 \
    -subj /CN=silos -addext "subjectAltName=DNS:silo-a,DNS:silo-b,DNS:silo-c,DNS:silo-d" \
    -keyout /exchange/probes.key -out /exchange/probes.pem
  openssl rand -hex 32 >/exchange/token.new
  # Prometheus has another user; nothing but it and the silos mounts this volume.
  chmod 755 /exchange
  chmod 644 /exchange/probes.pem /exchange/token.new
  mv /exchange/token.new /exchange/token
fi
