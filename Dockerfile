# The daemon in a container. See the README for what to mount. Hosts with `local: true` cannot be served from here.
FROM python:3.12-slim AS build
WORKDIR /src
COPY requirements.txt pyproject.toml README.md ./
COPY daemon daemon
COPY api api
# The locked versions of what Stoker itself needs; the tools of its tests stay out.
RUN sed -nE 's/^([a-z0-9][^ ]*==[^\\]*).*/\1/p' requirements.txt > /tmp/constraints.txt \
 && python3 -m venv /opt/stoker \
 && /opt/stoker/bin/pip install --no-cache-dir --constraint /tmp/constraints.txt .

FROM python:3.12-slim
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/stoker-server --shell /usr/sbin/nologin stoker
COPY --from=build /opt/stoker /opt/stoker
ENV PATH=/opt/stoker/bin:$PATH \
    STOKER_DATA=/var/lib/stoker-server \
    STOKER_LISTEN_HOST=0.0.0.0 \
    STOKER_LOG_FORMAT=json
USER stoker
VOLUME /var/lib/stoker-server
EXPOSE 8460
HEALTHCHECK --interval=15s --timeout=5s --start-period=10s \
  CMD ["python3", "-c", "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ.get(\"STOKER_PORT\", 8460)}/livez', timeout=4)"]
CMD ["stoker", "serve"]
