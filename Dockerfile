# zerobench on CPUs, with the emulated GPU inside: plan, emulate and tune for GPUs that are not there.
#   docker build -t zerobench . && docker run --rm --shm-size=2g -v "$PWD:/data" zerobench emulate --gpus 8 --gpu h100 -- python train.py
FROM python:3.12-slim-bookworm
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends g++ libaio-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/zerobench
COPY . .
# An index of torch's CPU builds saves several GB: --build-arg TORCH_INDEX=ADDRESS. The emulated GPU has the files of the CUDA
# build that it needs, about 700 MB, in its own folder.
ARG TORCH_INDEX
RUN pip install --no-cache-dir --constraint constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} '.[run,report,trainer]'
ENV ZEROBENCH_ENVIRONMENTS=/opt/environments
RUN zerobench setup emulator && chmod -R a+rX /opt/environments
WORKDIR /data
ENTRYPOINT ["zerobench"]
