# The daemon in a container: `docker build -t stoker .`. It needs mounted
#   /var/lib/stoker-server   the store and the token: a volume, or a folder that uid 10001 may write; a local disk, never NFS
#   /ssh (or elsewhere)      read-only: the key (STOKER_SSH_IDENTITY) and the known hosts (STOKER_SSH_KNOWN_HOSTS), both
#                            readable by uid 10001; the key without a passphrase, mode 0400 or 0600
# and nothing else: the root may be read-only, all capabilities dropped. One container at a time works on a volume; a second
# one ends with a line that says so. Hosts with `local: true` cannot be served from here: `local` would be the container.
# Publish the port on loopback only: whoever holds the token is root on the hosts, and the API speaks clear text.
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
RUN groupadd --system --gid 10001 stoker \
 && useradd --system --uid 10001 --gid 10001 --create-home --home-dir /var/lib/stoker-server --shell /usr/sbin/nologin stoker
COPY --from=build /opt/stoker /opt/stoker
ENV PATH=/opt/stoker/bin:$PATH \
    STOKER_DATA=/var/lib/stoker-server \
    STOKER_LISTEN_HOST=0.0.0.0 \
    STOKER_LOG_FORMAT=json
# By number, so that an orchestrator can see that it is not root.
USER 10001
VOLUME /var/lib/stoker-server
EXPOSE 8460
HEALTHCHECK --interval=15s --timeout=5s --start-period=10s \
  CMD ["python3", "-c", "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ.get(\"STOKER_PORT\", 8460)}/livez', timeout=4)"]
CMD ["stoker", "serve"]
