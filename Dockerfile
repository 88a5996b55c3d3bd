# The images of gpu-handoff: in each its programs, the libraries that these load, and nothing else, not even a shell.
#
#   docker build --target plugin  --tag gpu-handoff-plugin  .
#   docker build --target sidecar --tag gpu-handoff-sidecar .
#
# Argument BUILDER: where the programs are built. Anything with this version of Rust, gcc, bash and a glibc will do; the images get
# that glibc.
# With programs that are built already nothing is pulled: `images/rootfs.sh FOLDER` lays them out, and with
# `--build-context build=FOLDER` (of BuildKit, and of buildah) that folder takes the place of the first stage.

ARG BUILDER=docker.io/library/rust:1.95.0-slim-bookworm

FROM ${BUILDER} AS build
WORKDIR /src
COPY . .
# Into the root, because a build context that takes this stage's place has them there.
RUN images/rootfs.sh /

# In each member pod. It passes the restricted pod security standard: any user may run it, also with a root that is only read.
FROM scratch AS sidecar
COPY --from=build /sidecar/ /
ENV PATH=/bin
# Not the user of the plugin's broker, which no pod may run as.
USER 65532:65532
ENTRYPOINT ["/bin/gpu-handoff-sidecar"]
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="gpu-handoff-sidecar" \
    org.opencontainers.image.description="The per-pod agent of gpu-handoff: the pod's door to the node daemon." \
    org.opencontainers.image.source="https://github.com/gpu-handoff/gpu-handoff" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}"

# Once on each node. Its first process is root's and reads no application's bytes; what does is started as --broker-user.
FROM scratch AS plugin
COPY --from=build /plugin/ /
ENV PATH=/bin
USER 0:0
ENTRYPOINT ["/bin/gpu-handoff-plugin"]
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="gpu-handoff-plugin" \
    org.opencontainers.image.description="The node daemon of gpu-handoff." \
    org.opencontainers.image.source="https://github.com/gpu-handoff/gpu-handoff" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}"
