#!/usr/bin/env python3
"""Writes an OCI image layout of one layer as a tar file, without a registry or a builder; the same input gives the same bytes.

image.py OUT.tar NAME:TAG [--program SRC:DEST] [--file SRC:DEST] [--link TARGET:PATH] [--folder PATH:MODE] [--env K=V] [--entrypoint WORD]

A program brings the shared libraries that `ldd` finds for it here, at the paths where its loader looks for them.
"""

import argparse
import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
from pathlib import Path

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
PLATFORM = {"architecture": "amd64", "os": "linux"}


def libraries(program):
    """The paths of the shared libraries that a program needs, as its loader asks for them."""
    told = subprocess.run(["ldd", program], capture_output=True, text=True)
    if told.returncode != 0 or "statically linked" in told.stdout:
        return []
    if missing := re.findall(r"(\S+) => not found", told.stdout):
        raise SystemExit(f"image.py: {program} needs {', '.join(missing)}, which this machine does not have")
    return sorted(set(re.findall(r"(/\S+) \(0x", told.stdout)))


class Layer:
    """A tar archive in which nothing depends on when, where or by whom it is made."""

    def __init__(self):
        self.entries = {}

    def add(self, path, kind, mode, content=b"", link=""):
        path = path.strip("/")
        parent = os.path.dirname(path)
        if parent and parent not in self.entries:
            self.add(parent, tarfile.DIRTYPE, 0o755)
        self.entries[path] = (kind, mode, content, link)

    def copy(self, source, path):
        mode = 0o755 if os.access(source, os.X_OK) else 0o644
        self.add(path, tarfile.REGTYPE, mode, Path(source).read_bytes())

    def program(self, source, path):
        self.copy(source, path)
        for library in libraries(source):
            self.add(library, tarfile.REGTYPE, 0o755, Path(library).read_bytes())

    def archive(self):
        return archive((path, *entry) for path, entry in sorted(self.entries.items()))


def archive(entries):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, kind, mode, content, link in entries:
            info = tarfile.TarInfo(path)
            info.type, info.mode, info.size, info.linkname = kind, mode, len(content), link
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def described(kind, content, **more):
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    return {"mediaType": kind, "digest": digest, "size": len(content), **more}


def layout(name, layer, entrypoint, environment):
    """The files of an image layout, whose index names the image as containerd wants it."""
    config = {"Entrypoint": entrypoint, "Env": environment}
    layer_facts = described(LAYER, layer)
    rootfs = {"type": "layers", "diff_ids": [layer_facts["digest"]]}
    config = json.dumps({**PLATFORM, "config": config, "rootfs": rootfs}).encode()
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described(CONFIG, config), "layers": [layer_facts]}
    manifest = json.dumps(manifest).encode()
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rsplit(":", 1)[1]}
    index = {"schemaVersion": 2, "manifests": [described(MANIFEST, manifest, platform=PLATFORM, annotations=names)]}
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(index).encode()}
    for blob in (layer, config, manifest):
        files["blobs/sha256/" + hashlib.sha256(blob).hexdigest()] = blob
    return archive((path, tarfile.REGTYPE, 0o644, content, "") for path, content in sorted(files.items()))


def pair(text):
    left, colon, right = text.partition(":")
    if not colon or not left or not right:
        raise argparse.ArgumentTypeError(f"two parts with a colon between them, not {text}")
    return left, right


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("name")
    for option in ("program", "file", "link", "folder"):
        parser.add_argument("--" + option, type=pair, action="append", default=[])
    parser.add_argument("--env", action="append", default=["PATH=/bin"])
    parser.add_argument("--entrypoint", action="append", default=[])
    asked = parser.parse_args()
    if ":" not in asked.name:
        parser.error(f"{asked.name} has no tag")
    layer = Layer()
    for path, mode in asked.folder:
        layer.add(path, tarfile.DIRTYPE, int(mode, 8))
    for source, path in asked.file:
        layer.copy(source, path)
    for source, path in asked.program:
        layer.program(source, path)
    for target, path in asked.link:
        layer.add(path, tarfile.SYMTYPE, 0o777, link=target)
    image = layout(asked.name, layer.archive(), asked.entrypoint, asked.env)
    partial = Path(asked.out + ".partial")
    partial.write_bytes(image)
    partial.rename(asked.out)


if __name__ == "__main__":
    main()
