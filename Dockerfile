# The GPU environment, from requirements/gpu.txt. At the top of the checkout, for it copies from all of it:
#   docker build --tag rlhf:0.1 .
# CUDA comes with the pinned wheels, and the driver with the host's container runtime: no image of NVIDIA's is needed.
FROM python:3.11-slim-bookworm

# bubblewrap: the sandbox. gcc, g++: kernels that Triton and vLLM compile where they run. ibverbs, rdmacm: NCCL over
# InfiniBand. wget: KubeRay asks by it whether a pod lives.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        bubblewrap g++ gcc git ibverbs-providers libibverbs1 libnuma1 librdmacm1 wget \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/rlhf
# The pins first: they change seldom, and are gigabytes.
COPY requirements/gpu.txt requirements/
RUN pip install --no-cache-dir --no-deps -r requirements/gpu.txt
COPY pyproject.toml README.md ./
COPY rlhf rlhf
COPY recipes recipes
COPY scripts scripts
RUN pip install --no-cache-dir --no-deps --no-build-isolation -e .

# `TOKENIZERS` is taken for a secret.
# hadolint ignore=DL3064
ENV RAY_USAGE_STATS_ENABLED=0 TOKENIZERS_PARALLELISM=false
RUN useradd --create-home --uid 1000 rlhf && install -d -o rlhf /workspace
USER 1000
WORKDIR /workspace
CMD ["rlhf", "doctor"]
