# mmlape with all that it needs. On a CPU:
#   docker build -t mmlape . && docker run --rm -v "$PWD:/work" mmlape predict nuclei images
# With CUDA operators, for the architectures of your GPUs (and `docker run --gpus all --shm-size 8g`):
#   docker build -t mmlape:cuda --build-arg BASE=nvidia/cuda:13.0.2-devel-ubuntu24.04 \
#     --build-arg TORCH_CUDA_ARCH_LIST="8.0;9.0" .
ARG BASE=ubuntu:24.04
FROM ${BASE}
ARG TORCH_CUDA_ARCH_LIST=""

# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        build-essential ca-certificates python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

COPY . /opt/mmlape
RUN TORCH_CUDA_ARCH_LIST="${TORCH_CUDA_ARCH_LIST}" make -C /opt/mmlape env \
    && rm -rf "${HOME}/.cache/uv" "${HOME}/.cache/pip" "${HOME}/.cache/mmlape/wheels"
ENV PATH=/opt/mmlape/.venv/bin:${PATH}

WORKDIR /work
ENTRYPOINT ["mmlape"]
CMD ["--help"]
