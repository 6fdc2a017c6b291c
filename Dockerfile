# Rushlight in a container: no compiler, no root, kernels compiled at build time.
#
#   docker build -t rushlight .
#   docker run -p 8080:8080 -v "$PWD/models:/models:ro" rushlight serve /models/file.gguf
#
# Every setting of config.toml has an environment variable: RUSHLIGHT_SECTION__KEY.

FROM python:3.11-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/rushlight
ENV PATH=/opt/rushlight/bin:$PATH
WORKDIR /src

# The dependencies first: this layer is rebuilt only when they change.
COPY pyproject.toml constraints.txt ./
RUN python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' > requirements.txt \
 && pip install -q -c constraints.txt setuptools -r requirements.txt

COPY README.md LICENSE ./
COPY engine engine
COPY server server
COPY clients clients
RUN pip install -q --no-build-isolation --no-deps . && pip uninstall -q -y setuptools

# Every kernel for every CPU profile of this machine's architecture: starts do not compile. Not from
# /src, whose own engine/ would be found first: Numba keeps a kernel under its source's path.
ENV RUSHLIGHT_CACHE_DIR=/opt/rushlight/cache
RUN cd / && python -m engine.warm --profiles all


FROM python:3.11-slim
RUN useradd --uid 10001 --home-dir /opt/rushlight --shell /usr/sbin/nologin rushlight \
 && install -d -o rushlight -g rushlight /models
COPY --from=build --chown=rushlight:rushlight /opt/rushlight /opt/rushlight
ENV PATH=/opt/rushlight/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    RUSHLIGHT_CACHE_DIR=/opt/rushlight/cache \
    RUSHLIGHT_SERVER__HOST=0.0.0.0
USER rushlight
WORKDIR /
# /models is for a volume, given at run time. A VOLUME line would add nothing but an empty anonymous
# volume to each run without one, which some tools (buildah) lay over a bind mount.
EXPOSE 8080

# No proxy stands before loopback. 503 while loading counts as starting; the long start period is for large files on slow disks.
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s CMD ["python", "-c", \
    "import os, urllib.request as r; r.build_opener(r.ProxyHandler({})).open('http://127.0.0.1:' + os.environ.get('RUSHLIGHT_SERVER__PORT', '8080') + '/health', timeout=4)"]

# Exec form: the server is process 1 and gets SIGTERM itself.
STOPSIGNAL SIGTERM
ENTRYPOINT ["rushlight"]
CMD ["serve"]
