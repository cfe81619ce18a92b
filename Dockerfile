# One image for two uses: the search page, and workers of a bench.
#
#   docker build --tag nearfield .
#   docker run --rm -p 8000:8000 -v "$PWD/shop.index:/data/shop.index:ro" -e NEARFIELD_TOKEN=... nearfield \
#       serve /data/shop.index --host 0.0.0.0 --port 8000
#   docker run --rm --entrypoint dask nearfield worker tcp://scheduler:8786 --nthreads 1 --nworkers 4
#
# PyTorch's default package brings CUDA, several gigabytes. Its index of packages for processors makes a small image:
#   docker build --build-arg PIP_EXTRA_INDEX_URL=... --tag nearfield .
FROM python:3.11-slim AS build
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY src src
RUN python -m venv /venv \
    && /venv/bin/pip install --no-cache-dir --constraint constraints.txt ".[serve,pretrained]"

FROM python:3.11-slim
# Threads that spin while they wait slow each other down on few cores; large arrays should not go back to the system.
ENV PATH=/venv/bin:$PATH NEARFIELD_CACHE=/cache \
    OMP_NUM_THREADS=1 GOMP_SPINCOUNT=0 MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=2147483648
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home nearfield && install -d -o nearfield /cache
COPY --from=build /venv /venv
USER nearfield
WORKDIR /home/nearfield
EXPOSE 8000
ENTRYPOINT ["nearfield"]
CMD ["--help"]
