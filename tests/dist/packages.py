"""Writes a wheel and archives of container images with a few small files: python3 packages.py DIRECTORY"""

import gzip
import hashlib
import io
import json
import sys
import tarfile
import zipfile
from pathlib import Path

out = Path(sys.argv[1])
version = "1.2.3"

ELF = "Files: *\nLicense: LGPL-3+ or GPL-2+\n text\n\nFiles: tests/*\nLicense: GPL-3+\n"
WHEEL = {
    "lib/ccbench/libelf.so.1": "ELF",
    "lib/ccbench/libz.so.1": "ELF",
    "share/doc/ccbench/libelf.so.1.copyright": ELF,
    "share/doc/ccbench/libz.so.1.copyright": "",
    # The second is from a machine without dpkg.
    "share/doc/ccbench/libraries.tsv": "libelf.so.1\tdebian\tlibelf1\t0.188-2.1\tamd64\nlibz.so.1\t\t\t\t\n",
}
with zipfile.ZipFile(out / f"ccbench-{version}-py3-none-manylinux_2_36_x86_64.whl", "w") as wheel:
    for name, text in WHEEL.items():
        wheel.writestr(f"ccbench-{version}.data/data/{name}", text)


def status(*packages):
    """Debian's list of packages: name, version, state."""
    stanza = "Package: {}\nStatus: {}\nVersion: {}\nArchitecture: amd64\nDescription: one\n Status: of no package"
    return "\n\n".join(stanza.format(name, state, number) for name, number, state in packages) + "\n\n"


def layer(files):
    """A tar archive; text is a file, a tuple the target of a symbolic link, None a directory."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.mode = 0o755 if content is None else 0o644
            if content is None:
                member.type = tarfile.DIRTYPE
            elif isinstance(content, tuple):
                member.type, member.linkname = tarfile.SYMTYPE, content[0]
            else:
                member.size = len(content.encode())
            archive.addfile(member, io.BytesIO(content.encode()) if isinstance(content, str) else None)
    return written.getvalue()


INSTALLED = "install ok installed"
LOWER = layer(
    {
        "./": None,
        "bin": ("usr/bin",),
        "usr/bin": None,
        "usr/bin/tool": "the tool of the lower layer",
        "usr/lib/os-release": 'PRETTY_NAME="Debian"\nID=debian\n',
        "var/lib/dpkg/status": status(("libelf1", "1", INSTALLED)),
        "usr/share/doc/libelf1/copyright": ELF,
        "usr/share/doc/gcc-14-base/copyright": "free text",
        "usr/share/doc/libgcc-s1": ("gcc-14-base",),
        "tmp/ccbench.deb": "deb",
        "opt/one/.hidden": "hidden by the upper layer",
        # Out of the directory into which the image is unpacked.
        "etc/link": ("../../outside",),
    }
)
UPPER = layer(
    {
        "opt/one/two": "two",
        "opt/one/.wh..wh..opq": "",
        "tmp/.wh.ccbench.deb": "",
        "bin/tool": "the tool of the upper layer",
        "etc/link": "a file",
        "var/lib/dpkg/status": status(
            ("libelf1", "0.188-2.1", INSTALLED),
            ("libgcc-s1", "14.2.0-19", INSTALLED),
            ("libstdc++6", "1:14.2+b1", INSTALLED),
            ("ccbench", version, INSTALLED),
            ("removed", "1", "deinstall ok config-files"),
        ),
        "usr/share/ccbench/lab/kernel-own-uml-0123456789ab/version": "linux-source-7.3 7.3.4-1\n",
    }
)



def add(name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def blob(content):
    digest = hashlib.sha256(content).hexdigest()
    add(f"blobs/sha256/{digest}", content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


with tarfile.open(out / f"ccbench-{version}-x86_64.oci.tar", "w") as archive:
    config = blob(json.dumps({"config": {"Entrypoint": ["ccbench", "-v"], "WorkingDir": "/srv"}}).encode())
    layers = [blob(LOWER), blob(gzip.compress(UPPER, mtime=0))]
    manifest = blob(json.dumps({"config": config, "layers": layers}).encode())
    attestation = {**blob(b"{}"), "platform": {"architecture": "unknown", "os": "unknown"}}
    both = blob(json.dumps({"manifests": [attestation, manifest]}).encode())
    add("index.json", json.dumps({"manifests": [both]}).encode())

ESCAPING = layer({"up": ("..",), "up/outside": "text"})

for file, layers in {"docker.tar": [LOWER, UPPER], "escaping.tar": [ESCAPING]}.items():
    # The format of docker before version 25.
    with tarfile.open(out / file, "w") as archive:
        add("config.json", json.dumps({"config": {"Entrypoint": ["ccbench"]}}).encode())
        names = [f"{number}/layer.tar" for number in range(len(layers))]
        for name, content in zip(names, layers):
            add(name, content)
        add("manifest.json", json.dumps([{"Config": "config.json", "Layers": names}]).encode())
