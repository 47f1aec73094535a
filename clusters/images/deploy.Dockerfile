# Building and running engines on the target GPU: TensorRT for RTX (NVIDIA's own licence), ONNX Runtime, no CUDA torch.
#   docker build -f clusters/images/deploy.Dockerfile -t REGISTRY/radioplat-deploy:0.1.0 .
#   docker run --gpus all -v $PWD/results:/shared REGISTRY/radioplat-deploy:0.1.0 \
#       radioplat gen_trt_engine -e /shared/spec.yaml
# Pin it: --build-arg BASE=python:3.12.12-slim-bookworm@sha256:... (docs/how_to/clusters.md)
ARG BASE=python:3.12.12-slim-bookworm
FROM $BASE

RUN useradd --uid 1000 --create-home --shell /bin/bash radioplat \
    && mkdir -p /app /shared && chown radioplat:radioplat /app /shared
WORKDIR /app

COPY pyproject.toml setup.py constraints.txt README.md LICENSE NOTICE ./
COPY radioplat ./radioplat
COPY jobs ./jobs
COPY specs ./specs
COPY tune_spaces ./tune_spaces
COPY clusters ./clusters
# torch from its CPU index, alone, as in cpu.Dockerfile: it reads checkpoints, the engine computes.
RUN pip install --no-cache-dir --no-deps --index-url https://download.pytorch.org/whl/cpu -c constraints.txt \
        torch torchvision \
    && pip install --no-cache-dir -c constraints.txt setuptools \
    && pip install --no-cache-dir --no-build-isolation -c constraints.txt ".[engine]"

ENV PYTHONUNBUFFERED=1
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000:1000
CMD ["radioplat", "--help"]
