# The Spark program of compose.yaml: Java 17 in addition.
FROM python:3.11-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --wheel-dir /wheels '.[spark]'

FROM python:3.11-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links=/wheels 'p2pmsg[spark]' \
    && useradd --system --uid 10001 --create-home p2pmsg
COPY examples/deploy/count_trades.py /app/count_trades.py
USER p2pmsg
ENTRYPOINT ["python", "/app/count_trades.py"]
