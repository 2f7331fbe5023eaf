# The coordinator, and the admin's commands. From the root of the source tree:
#
#   docker build --file deploy/images/coordinator.Dockerfile --tag chorale-coordinator:0.2.0 .
#
# The base is pinned by its full version. A digest pins it for good: look it up where you pull from
# (docker buildx imagetools inspect) and give it along:
#
#   --build-arg PYTHON_IMAGE=docker.io/library/python:3.11.14-slim-bookworm@sha256:…
#
# Runs as 10001:10001 with a read-only root; it writes /var/lib/chorale and /tmp. There is no torch
# in it, and the build fails if there were.

ARG PYTHON_IMAGE=docker.io/library/python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /source
COPY constraints.txt ./
RUN python3 -m venv /tools \
 && /tools/bin/pip install --no-cache-dir --constraint constraints.txt pip==25.2 hatchling==1.27.0
COPY . .
RUN /tools/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist .

FROM ${PYTHON_IMAGE} AS installation
ARG CHORALE_VERSION=0.2.0
# Databases and object storage; postgres,s3,otel for traces as well.
ARG CHORALE_EXTRAS=postgres,s3
COPY --from=wheel /tools /tools
COPY --from=wheel /source/constraints.txt /source/constraints.txt
COPY --from=wheel /dist /dist
# Without pip of its own: nothing is installed into it later.
RUN python3 -m venv --without-pip /opt/chorale \
 && /tools/bin/pip --python /opt/chorale/bin/python install --no-cache-dir \
      --constraint /source/constraints.txt \
      "/dist/chorale-${CHORALE_VERSION}-py3-none-any.whl[${CHORALE_EXTRAS}]"
RUN ["/opt/chorale/bin/python", "-c", "import importlib.util as u, sys; sys.exit(any(map(u.find_spec, ('torch', 'transformers', 'vllm'))))"]

FROM ${PYTHON_IMAGE} AS coordinator
ARG CHORALE_VERSION=0.2.0
LABEL org.opencontainers.image.title="Chorale coordinator" \
      org.opencontainers.image.description="Relays a federation's messages, learns one sum, publishes the next adapter" \
      org.opencontainers.image.version="${CHORALE_VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# /exchange is a second place to write, for what one container hands to another.
RUN groupadd --gid 10001 chorale \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/chorale \
      --shell /usr/sbin/nologin chorale \
 && install --directory --mode 0700 --owner 10001 --group 10001 /var/lib/chorale /exchange
COPY --from=installation /opt/chorale /opt/chorale
# The shape of the small base model, from which a run's first adapter follows.
COPY lab/base_model/config.json /opt/chorale/share/base-model/config.json
COPY deploy/images/health.py /opt/chorale/share/health.py
ENV PATH=/opt/chorale/bin:$PATH \
    HOME=/var/lib/chorale \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    CHORALE_DATA=/var/lib/chorale/data \
    CHORALE_COORDINATOR_PROBES_LISTEN=0.0.0.0:7445
WORKDIR /var/lib/chorale
USER 10001:10001
# Mutual TLS for silos and admins, TLS for joining, plain HTTP for probes and metrics.
EXPOSE 7443 7444 7445
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
  CMD ["python", "-IS", "/opt/chorale/share/health.py", "http://127.0.0.1:7445/livez"]
CMD ["chorale-coordinator", "serve"]
