# Heads, CPU workers, submitters: radioplat without CUDA.
#   docker build -f clusters/images/cpu.Dockerfile -t REGISTRY/radioplat-cpu:0.1.0 .
# Pin it: --build-arg BASE=python:3.12.12-slim-bookworm@sha256:... (docs/how_to/clusters.md)
ARG BASE=python:3.12.12-slim-bookworm
FROM $BASE

# Not root; 1000 is also the user of the clouds' images, whose files Ray's launcher mounts.
RUN useradd --uid 1000 --create-home --shell /bin/bash radioplat \
    && mkdir -p /app /shared && chown radioplat:radioplat /app /shared
WORKDIR /app

COPY pyproject.toml setup.py constraints.txt README.md LICENSE NOTICE ./
COPY clusters/images/head.txt ./
COPY radioplat ./radioplat
COPY jobs ./jobs
COPY specs ./specs
COPY tune_spaces ./tune_spaces
COPY clusters ./clusters
# torch from its CPU index, alone: the registry's wheel brings 3 GB of CUDA. Everything else from the registry.
RUN pip install --no-cache-dir --no-deps --index-url https://download.pytorch.org/whl/cpu -c constraints.txt \
        torch torchvision \
    && pip install --no-cache-dir -c constraints.txt setuptools \
    && pip install --no-cache-dir --no-build-isolation -c constraints.txt ".[onnx,tune,wandb]" \
    && pip install --no-cache-dir -c constraints.txt -r head.txt

ENV PYTHONUNBUFFERED=1 RAY_USAGE_STATS_ENABLED=0
USER 1000:1000
CMD ["radioplat", "--help"]
