# Students and teachers on NVIDIA GPUs. The wheels carry CUDA 13; the driver comes from the host, by NVIDIA's container
# toolkit or GPU operator.
#   docker build -f clusters/images/cuda.Dockerfile -t REGISTRY/radioplat-cuda:0.1.0 .
# Pin it: --build-arg BASE=python:3.12.12-slim-bookworm@sha256:... (docs/how_to/clusters.md)
ARG BASE=python:3.12.12-slim-bookworm
FROM $BASE

# A C compiler for Triton (torch.compile); libibverbs so that NCCL finds InfiniBand and EFA where the host has them.
# The versions of Debian 12, which change with a security fix alone: then apt names the new one.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        gcc=4:12.2.0-3 g++=4:12.2.0-3 libibverbs1=44.0-2 librdmacm1=44.0-2 \
    && rm -rf /var/lib/apt/lists/*
# Not root; 1000 is also the user of the clouds' images, whose files Ray's launcher mounts.
RUN useradd --uid 1000 --create-home --shell /bin/bash radioplat \
    && mkdir -p /app /shared && chown radioplat:radioplat /app /shared
WORKDIR /app

COPY pyproject.toml setup.py constraints.txt README.md LICENSE NOTICE ./
COPY radioplat ./radioplat
COPY jobs ./jobs
COPY specs ./specs
COPY tune_spaces ./tune_spaces
COPY clusters ./clusters
RUN pip install --no-cache-dir -c constraints.txt setuptools \
    && pip install --no-cache-dir --no-build-isolation -c constraints.txt ".[hf,nixl,onnx,tune,wandb]"

ENV PYTHONUNBUFFERED=1 RAY_USAGE_STATS_ENABLED=0
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000:1000
CMD ["radioplat", "--help"]
