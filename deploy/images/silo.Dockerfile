# A silo's daemon and its operator's commands. From the root of the source tree:
#
#   docker build --file deploy/images/silo.Dockerfile --tag chorale-silo:0.2.0 .
#
# torch comes from the index that TORCH_INDEX_URL names; the default is the build for processors.
# For NVIDIA GPUs name the index of your CUDA version, and run it with --gpus all:
#
#   --build-arg TORCH_INDEX_URL=https://download.pytorch.org/whl/cu130
#
# The base is pinned by its full version. A digest pins it for good: look it up where you pull from
# (docker buildx imagetools inspect) and give it along:
#
#   --build-arg PYTHON_IMAGE=docker.io/library/python:3.11.14-slim-bookworm@sha256:…
#
# Runs as 10001:10001 with a read-only root; it writes /var/lib/chorale and /tmp.

ARG PYTHON_IMAGE=docker.io/library/python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /source
COPY constraints.txt ./
RUN python3 -m venv /tools \
 && /tools/bin/pip install --no-cache-dir --constraint constraints.txt pip==25.2 hatchling==1.27.0
COPY . .
RUN /tools/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist .

FROM ${PYTHON_IMAGE} AS installation
ARG TORCH_VERSION=2.13.0
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
COPY --from=wheel /tools /tools
# Alone, and before what changes more often; what it asks for comes with the rest.
RUN python3 -m venv --without-pip /opt/chorale \
 && /tools/bin/pip --python /opt/chorale/bin/python install --no-cache-dir --no-deps \
      --index-url "${TORCH_INDEX_URL}" "torch==${TORCH_VERSION}"
ARG CHORALE_VERSION=0.2.0
# silo, or silo,vllm for rollouts by vLLM in the same process.
ARG CHORALE_EXTRAS=silo
COPY --from=wheel /source/constraints.txt /source/constraints.txt
COPY --from=wheel /dist /dist
RUN /tools/bin/pip --python /opt/chorale/bin/python install --no-cache-dir \
      --constraint /source/constraints.txt \
      "/dist/chorale-${CHORALE_VERSION}-py3-none-any.whl[${CHORALE_EXTRAS}]"

FROM ${PYTHON_IMAGE} AS silo
ARG CHORALE_VERSION=0.2.0
LABEL org.opencontainers.image.title="Chorale silo" \
      org.opencontainers.image.description="Evolves an agent at one site, and lets only masked sums out" \
      org.opencontainers.image.version="${CHORALE_VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# /exchange is a second place to write, for what one container hands to another.
RUN groupadd --gid 10001 chorale \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/chorale \
      --shell /usr/sbin/nologin chorale \
 && install --directory --mode 0700 --owner 10001 --group 10001 /var/lib/chorale /exchange
COPY --from=installation /opt/chorale /opt/chorale
# The small base model of the demonstrations, two megabytes.
COPY lab/base_model /opt/chorale/share/base-model
COPY deploy/images/health.py /opt/chorale/share/health.py
# Models come from a directory or a cache that was filled before; nothing is fetched. What libraries
# compile or look up is kept in /tmp.
ENV PATH=/opt/chorale/bin:$PATH \
    HOME=/var/lib/chorale \
    XDG_CACHE_HOME=/tmp/cache \
    TORCHINDUCTOR_CACHE_DIR=/tmp/inductor \
    TRITON_CACHE_DIR=/tmp/triton \
    HF_HUB_OFFLINE=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    CHORALE_SILO_DATA=/var/lib/chorale/data \
    CHORALE_SILO_PROBES_LISTEN=127.0.0.1:7446
WORKDIR /var/lib/chorale
USER 10001:10001
# Probes and metrics, on the container's own loopback. To listen for others set PROBES_LISTEN; then
# /metrics needs a certificate and a token. Everything else goes outwards.
EXPOSE 7446
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python", "-IS", "/opt/chorale/share/health.py", "http://127.0.0.1:7446/livez"]
CMD ["chorale-silo", "run"]
