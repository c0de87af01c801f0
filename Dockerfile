# One file for every image of the product: targets `operator`, `gateway` and `engine`.
#
#   docker build --target operator -t structuredllm/operator .
#   docker build --target engine --build-arg ENGINE_BASE=docker.io/vllm/vllm-openai:v0.32.0 -t structuredllm/engine .
#
# The bases are arguments so that `python -m tools.images` can build the very same targets where no registry of
# images is reachable. Bases are kept by tag: their digests were not known where this file was written; pin
# them (`name:tag@sha256:...`) in a release build.
#
# Behind a private CA mount the host's /etc/ssl/certs over the build's and pass PIP_CERT, SSL_CERT_FILE and
# UV_SYSTEM_CERTS as build arguments; UV_CACHE_DIR may name a mounted cache of the host. They are declared in
# build stages only (in each: not every builder hands them on), so nothing of them is in an image.
ARG PYTHON_IMAGE=docker.io/library/python:3.12-slim-bookworm
ARG ENGINE_BASE=docker.io/vllm/vllm-openai:v0.32.0

# ---- uv: the only build tool; it never reaches a runtime stage ------------------------------------------
FROM ${PYTHON_IMAGE} AS uv
ARG UV_VERSION=0.13.9
ARG PIP_CERT
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir "uv==${UV_VERSION}"

# ---- builder: the workspace's metadata and lock, without sources, so that dependency layers last --------
FROM uv AS builder
ENV UV_LINK_MODE=copy \
    UV_COMPILE_BYTECODE=1 \
    UV_PYTHON_DOWNLOADS=never \
    UV_PROJECT_ENVIRONMENT=/opt/structuredllm
WORKDIR /src
COPY pyproject.toml uv.lock ./
COPY operator/pyproject.toml operator/README.md operator/
COPY gateway/pyproject.toml gateway/README.md gateway/
COPY probe/pyproject.toml probe/README.md probe/
COPY engine-patches/pyproject.toml engine-patches/README.md engine-patches/

FROM builder AS operator-build
ARG SSL_CERT_FILE
ARG UV_SYSTEM_CERTS
ARG UV_CACHE_DIR=/root/.cache/uv
RUN --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv sync --frozen --no-dev --package structuredllm-operator --no-install-workspace
COPY probe/src probe/src
COPY operator/src operator/src
RUN --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv sync --frozen --no-dev --package structuredllm-operator --no-editable

FROM builder AS gateway-build
ARG SSL_CERT_FILE
ARG UV_SYSTEM_CERTS
ARG UV_CACHE_DIR=/root/.cache/uv
RUN --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv sync --frozen --no-dev --package structuredllm-gateway --no-install-workspace
COPY probe/src probe/src
COPY gateway/src gateway/src
RUN --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv sync --frozen --no-dev --package structuredllm-gateway --no-editable

FROM builder AS engine-patches-build
ARG SSL_CERT_FILE
ARG UV_SYSTEM_CERTS
ARG UV_CACHE_DIR=/root/.cache/uv
COPY engine-patches/src engine-patches/src
RUN --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv build --package structuredllm-engine-patches --wheel --out-dir /wheels

# ---- runtime: Python, one environment, a user that is not root; no uv, no sources -----------------------
# The bytecode is compiled above because the root file system is read-only in the chart's pods.
FROM ${PYTHON_IMAGE} AS runtime
ENV PATH=/opt/structuredllm/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp
WORKDIR /
USER 65532:65532

FROM runtime AS operator
COPY --from=operator-build /opt/structuredllm /opt/structuredllm
ENTRYPOINT ["structuredllm-operator"]

FROM runtime AS gateway
COPY --from=gateway-build /opt/structuredllm /opt/structuredllm
ENTRYPOINT ["structuredllm-gateway"]

# ---- engine: a vLLM image plus our wheel, and no other change -------------------------------------------
# The wheel is pure Python without scripts, so installing it is unpacking it: that needs neither pip nor uv in the
# base, and cannot touch vLLM's dependencies (prometheus-client is in every vLLM image). The wheel comes by COPY,
# because a bind mount from a stage that the cache answered is empty in older buildah releases.
# The check stops the build when the base has no vLLM or the plugin cannot be loaded; it does not import vLLM,
# which would need a device.
FROM ${ENGINE_BASE} AS engine
ARG ENGINE_PYTHON=python3
COPY --from=engine-patches-build /wheels /tmp/wheels
RUN "${ENGINE_PYTHON}" -m zipfile -e /tmp/wheels/*.whl \
        "$("${ENGINE_PYTHON}" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
    && rm -rf /tmp/wheels \
    && "${ENGINE_PYTHON}" -c "import importlib.metadata as m, prometheus_client; \
(entry,) = m.entry_points(group='vllm.general_plugins', name='structuredllm'); entry.load(); \
print('vllm', m.version('vllm'), '+ structuredllm-engine-patches', m.version('structuredllm-engine-patches'))"
