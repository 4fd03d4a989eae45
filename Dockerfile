# docker build --build-arg ACCELERATOR=cuda13 -t jaxsens .
# docker run --rm --read-only --tmpfs /tmp --gpus all --user "$(id -u):$(id -g)" -v "$PWD:/data" \
#     jaxsens sweep /opt/configs/quickstart.toml --out results/quickstart --compilation-cache compiled
#
# ACCELERATOR is one of cpu, cuda12, cuda13, tpu; docs/cluster.md has the lines for each. The image takes 1.3 GB for cpu, measured
# by tests/test_packaging.py; with the wheels that jax adds, 6.5 GB for cuda12, 5.4 GB for cuda13 and 2.0 GB for tpu.

FROM python:3.12-slim AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY jaxsens ./jaxsens
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim AS environment
ARG ACCELERATOR=cpu
RUN python -m venv /opt/jaxsens
COPY --from=wheel /wheels /wheels
RUN case "$ACCELERATOR" in \
        cpu) extra="service" ;; \
        cuda12|cuda13|tpu) extra="service,$ACCELERATOR" ;; \
        *) echo "ACCELERATOR=$ACCELERATOR: must be cpu, cuda12, cuda13 or tpu" >&2; exit 2 ;; \
    esac; \
    wheel=$(ls /wheels/jaxsens-*.whl) && /opt/jaxsens/bin/pip install --no-cache-dir "$wheel[$extra]"

FROM python:3.12-slim AS runtime
RUN useradd --uid 1000 --create-home jaxsens && install --directory --owner=jaxsens /data
COPY --from=environment /opt/jaxsens /opt/jaxsens
COPY configs /opt/configs
# MPLCONFIGDIR: matplotlib wants a writable folder, whatever user the container runs as.
ENV PATH=/opt/jaxsens/bin:$PATH PYTHONUNBUFFERED=1 MPLCONFIGDIR=/tmp/matplotlib
# By number, so that Kubernetes can see that it is not root.
USER 1000
WORKDIR /data
ENTRYPOINT ["jaxsens"]
CMD ["--help"]
