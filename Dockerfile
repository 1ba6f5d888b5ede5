# smoothtune with its command line. The CPU build of PyTorch, unless asked for another:
#
#   docker build -t smoothtune .
#   docker build -t smoothtune --build-arg TORCH_BACKEND=cu130 .
#   docker run --rm -v "$PWD:/data" smoothtune train run.yaml
FROM python:3.11-slim

ARG TORCH_BACKEND=cpu
RUN pip install --no-cache-dir uv
WORKDIR /opt/smoothtune
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY recipes recipes
RUN uv pip install --system --no-cache --torch-backend "$TORCH_BACKEND" \
    --constraint constraints.txt '.[minilm,report,tune,lora]'

RUN useradd --create-home user && mkdir /data && chown user /data
USER user
WORKDIR /data
ENTRYPOINT ["smoothtune"]
CMD ["--help"]
