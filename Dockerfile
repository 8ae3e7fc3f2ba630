# seqloom with pictures, on a CPU: docker build -t seqloom . && docker run --rm -v "$PWD:/work" seqloom demo
# A server: docker run --rm -p 8000:8000 -e SEQLOOM_KEY -v "$PWD:/work:ro" seqloom serve runs/tales --host 0.0.0.0
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN python -m venv /opt/seqloom \
 && /opt/seqloom/bin/pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu ".[demo,hub,onnx,serve,images]"

FROM python:3.12-slim
COPY --from=build /opt/seqloom /opt/seqloom
ENV PATH=/opt/seqloom/bin:$PATH
RUN useradd --create-home seqloom
USER seqloom
WORKDIR /work
ENTRYPOINT ["seqloom"]
CMD ["--help"]
