"""Unpacks a container image from its archive, as `podman save --format oci-archive` and `docker save` write it.

    python3 oci.py ARCHIVE ROOT

Prints the image's working directory and the words of its entry point, one a line. Files keep their owners if root unpacks them.
"""

import hashlib
import io
import json
import shutil
import sys
import tarfile
from pathlib import Path

# Marks of a layer: `.wh.NAME` hides NAME of the layers below, and the second everything in its directory.
WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"


class ImageError(Exception):
    """An archive is not one of an image, or is damaged."""


def blob(archive, descriptor):
    """The content of a part, which must have the digest that names it."""
    algorithm, digest = descriptor["digest"].split(":")
    content = archive.extractfile(f"blobs/{algorithm}/{digest}").read()
    if hashlib.new(algorithm, content).hexdigest() != digest:
        raise ImageError(f"blobs/{algorithm}/{digest} has another digest")
    return content


def parts(archive):
    """The image's configuration, and the archives of its layers from the lowest to the highest."""
    if "index.json" in archive.getnames():
        found = json.load(archive.extractfile("index.json"))
        while "manifests" in found:
            # BuildKit puts attestations beside the image, for an unknown platform.
            images = [each for each in found["manifests"] if each.get("platform", {}).get("architecture") != "unknown"]
            found = json.loads(blob(archive, images[0]))
        return json.loads(blob(archive, found["config"])), [blob(archive, layer) for layer in found["layers"]]
    # docker before version 25.
    found = json.load(archive.extractfile("manifest.json"))[0]
    layers = [archive.extractfile(name).read() for name in found["Layers"]]
    return json.load(archive.extractfile(found["Config"])), layers


def remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def place(member, root):
    """Where a file of a layer belongs."""
    path = root / member.name
    # A link of the image may lead elsewhere on this machine.
    if path != root and not path.parent.resolve().is_relative_to(root):
        raise ImageError(f"a layer has a file outside of the image: {member.name}")
    return path


def unpack_layer(content, root):
    with tarfile.open(fileobj=io.BytesIO(content)) as layer:
        # New versions of Python otherwise refuse what an image may contain, such as links to absolute paths.
        layer.extraction_filter = lambda member, _path: member
        marks, files = [], []
        for member in layer.getmembers():
            (marks if Path(member.name).name.startswith(WHITEOUT) else files).append(member)
        # Before all files: marks are about the layers below.
        for path in (place(member, root) for member in marks):
            hidden = path.parent.glob("*") if path.name == OPAQUE else [path.with_name(path.name.removeprefix(WHITEOUT))]
            for each in hidden:
                remove(each)
        for member in files:
            path = place(member, root)
            if not (member.isdir() and path.is_dir()):
                # Otherwise the content would be written through a link of a layer below.
                remove(path)
            layer.extract(member, root, numeric_owner=True)


def unpack(file, root):
    """Unpacks an image into a directory, and returns the part of its configuration that says how to run it."""
    root = Path(root).resolve()
    try:
        with tarfile.open(file) as archive:
            config, layers = parts(archive)
        for layer in layers:
            unpack_layer(layer, root)
    except (KeyError, IndexError, ValueError, tarfile.TarError) as error:
        raise ImageError(f"it is no archive of an image: {error!r}") from error
    return config.get("config", {})


if __name__ == "__main__":
    try:
        run = unpack(sys.argv[1], sys.argv[2])
    except (ImageError, OSError) as error:
        sys.exit(f"oci: {sys.argv[1]}: {error}")
    print(run.get("WorkingDir") or "/", *run.get("Entrypoint") or [], sep="\n")
