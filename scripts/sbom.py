"""The bill of materials of a release, in SPDX 2.3: every crate that is built into the programs, what reports and figures contain besides
code, and what packages contain besides the programs.

    cargo metadata --locked --format-version 1 --filter-platform TARGET | python3 sbom.py Cargo.lock VERSION TARGET [PACKAGE…] > FILE

A PACKAGE is the wheel (its libraries) or the archive of the container image (Debian's packages, the lab's kernels); other packages have
only the programs. Runs `cargo tree` in the current directory. Crates that only tests use are left out. The document depends on these
inputs and SOURCE_DATE_EPOCH alone.
"""

import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path, PurePath
from urllib.parse import quote

import oci

PROGRAMS = ("ccbench", "ccbench-agent")
ASSETS = Path(__file__).resolve().parents[1] / "crates/results/assets"


def built(target):
    """Names and versions of the packages that are built. `cargo metadata` also lists optional dependencies that a feature names, but
    does not enable (`polars-stream?/timezones`)."""
    tree = ["cargo", "tree", "--locked", "--target", target, "-e", "normal,build", "--prefix", "none", "-f", "{p}"]
    tree += [argument for program in PROGRAMS for argument in ("-p", program)]
    lines = subprocess.run(tree, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return {(name, version.removeprefix("v")) for name, version, *_ in (line.split(" ") for line in lines if line)}


def reachable(metadata, built):
    """Ids of the programs' packages, and of all they depend on except in tests, with the ids that each depends on."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    names = {package["id"]: package["name"] for package in metadata["packages"]}
    used = {package["id"] for package in metadata["packages"] if (package["name"], package["version"]) in built}
    members = set(metadata["workspace_members"])
    todo = sorted(id for id in members if names[id] in PROGRAMS)
    if len(todo) != len(PROGRAMS):
        sys.exit(f"sbom: the workspace has not the packages {', '.join(PROGRAMS)}")
    found = {}
    while todo:
        id = todo.pop()
        if id in found:
            continue
        kinds = {dep["pkg"]: {kind["kind"] for kind in dep["dep_kinds"]} for dep in nodes[id]["deps"]}
        found[id] = sorted(dep for dep, kinds in kinds.items() if kinds != {"dev"} and dep in used)
        todo.extend(found[id])
    return found


def spdx_id(*words):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", "-".join(words))


def entry(id, name, version, licence, purl=None, sha256=None):
    """A package of the document."""
    found = {
        "SPDXID": id,
        "name": name,
        "versionInfo": version or "NOASSERTION",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
    }
    if purl:
        reference = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}
        found["externalRefs"] = [reference]
    if sha256:
        found["checksums"] = [{"algorithm": "SHA256", "checksumValue": sha256}]
    return found


def sha256_of(file):
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def crate_id(package):
    return spdx_id(package["name"], package["version"])


def crate(package, checksums):
    is_published = (package["source"] or "").startswith("registry+")
    return entry(
        crate_id(package),
        package["name"],
        package["version"],
        # Old crates separate alternatives by a slash.
        (package["license"] or "NOASSERTION").replace("/", " OR "),
        f"pkg:cargo/{package['name']}@{package['version']}" if is_published else None,
        checksums.get((package["name"], package["version"])),
    )


def asset(name, file, licence, version_in, pattern, purl):
    """A file in ASSETS that others made. A text beside it has its version."""
    found = re.search(pattern, (ASSETS / version_in).read_text(encoding="utf-8"))
    if not found:
        sys.exit(f"sbom: {ASSETS / version_in} has no version of {name}; correct the pattern in sbom.py")
    version = found[1]
    return entry(spdx_id(name, version), name, version, licence, f"{purl}@{version}", sha256_of(ASSETS / file))


def assets():
    """What the crate ccbench-results contains besides code: the library of the reports' charts, and the font of figures."""
    script = "uplot/uPlot.iife.min.js"
    return [
        asset("uPlot", script, "MIT", script, r"uPlot \(v([\d.]+)\)", "pkg:npm/uplot"),
        asset(
            "Arimo",
            "fonts/Arimo-Regular.ttf",
            "OFL-1.1",
            "fonts/README.md",
            r"from version ([\d.]+) ",
            "pkg:generic/arimo",
        ),
    ]


class Debian:
    """Packages of Debian and distributions that are made from it. Their licences are the texts of their copyright files, because the names
    in these are not SPDX's."""

    def __init__(self):
        self.licences = {}
        # Names of packages without a copyright file.
        self.unknown = set()

    def package(self, distribution, name, version, architecture, copyright):
        purl = f"pkg:deb/{distribution}/{quote(name, safe='')}@{quote(version, safe='')}?arch={architecture}"
        id = spdx_id("deb", name, version, architecture)
        return entry(id, name, version, self.licence(name, copyright), purl)

    def licence(self, name, copyright):
        if not copyright.strip():
            self.unknown.add(name)
            return "NOASSERTION"
        digest = hashlib.sha256(copyright.encode()).hexdigest()
        id = spdx_id(name, digest[:12]).replace("SPDXRef-", "LicenseRef-", 1)
        names = dict.fromkeys(re.findall(r"^License:[ \t]*(\S.*)$", copyright, re.MULTILINE))
        self.licences[id] = {
            "licenseId": id,
            "name": f"the copyright file of {name}",
            "extractedText": copyright,
            "comment": f"Licences in it: {'; '.join(names)}" if names else "It names no licence in Debian's format.",
        }
        return id


def wheel(file, debian):
    """The libraries in a wheel. Its libraries.tsv has the packages that they are from."""
    with zipfile.ZipFile(file) as archive:
        listed = [name for name in archive.namelist() if name.endswith("/share/doc/ccbench/libraries.tsv")]
        if not listed:
            sys.exit(f"sbom: {file} has no libraries.tsv; build the package wheel again")
        packages = []
        data = listed[0].removesuffix("share/doc/ccbench/libraries.tsv")
        names = [name for name in archive.namelist() if not name.endswith("/")]
        present = {name for name in names if name.startswith(f"{data}lib/ccbench/")}
        for line in archive.read(listed[0]).decode().splitlines():
            library, distribution, name, version, architecture = line.split("\t")
            path = f"{data}lib/ccbench/{library}"
            if path not in present:
                sys.exit(f"sbom: {file} has no {path}, which its libraries.tsv lists; build the package wheel again")
            present.remove(path)
            copyright = archive.read(f"{data}share/doc/ccbench/{library}.copyright").decode()
            if name:
                packages.append(debian.package(distribution, name, version, architecture, copyright))
            else:
                # The build machine had no dpkg.
                packages.append(entry(spdx_id("library", library), library, None, debian.licence(library, copyright)))
        if present:
            sys.exit(f"sbom: libraries.tsv of {file} lacks {', '.join(sorted(present))}; build the package wheel again")
    return packages


def inside(root, path):
    """The text of a file of an image, or nothing if the image has none. Links do not lead out of it."""
    found = (root / path).resolve()
    return found.read_text(errors="replace") if found.is_relative_to(root) and found.is_file() else ""


def image(file, debian):
    """Debian's packages in a container image, and the lab's kernels."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        try:
            oci.unpack(file, root)
        except oci.ImageError as error:
            sys.exit(f"sbom: {file}: {error}")
        distribution = re.search(r"^ID=\"?([a-z]+)", inside(root, "usr/lib/os-release"), re.MULTILINE)
        packages = []
        for stanza in inside(root, "var/lib/dpkg/status").split("\n\n"):
            fields = dict(re.findall(r"^([A-Z][A-Za-z-]*): (.*)$", stanza, re.MULTILINE))
            # The package of the programs is described by their crates.
            if fields.get("Status") == "install ok installed" and fields["Package"] not in PROGRAMS:
                name = fields["Package"]
                copyright = inside(root, f"usr/share/doc/{name}/copyright")
                where = distribution[1] if distribution else "debian"
                packages.append(debian.package(where, name, fields["Version"], fields["Architecture"], copyright))
        if not packages:
            sys.exit(f"sbom: {file} has no list of Debian's packages")
        for version in sorted(root.glob("usr/share/ccbench/lab/kernel-*/version")):
            source, number = version.read_text().split()
            purl = f"pkg:deb/debian/{source}@{quote(number, safe='')}?arch=source"
            packages.append(entry(spdx_id("lab", version.parent.name), source, number, "GPL-2.0-only", purl))
    return packages


def document(metadata, lock, version, target, files):
    checksums = {(p["name"], p["version"]): p.get("checksum") for p in lock["package"]}
    packages = {package["id"]: package for package in metadata["packages"]}
    found = reachable(metadata, built(target))
    ordered = sorted(found, key=lambda id: (packages[id]["name"], packages[id]["version"]))
    programs = [crate_id(packages[id]) for id in ordered if packages[id]["name"] in PROGRAMS]
    entries = {crate_id(packages[id]): crate(packages[id], checksums) for id in ordered}
    relationships = [("SPDXRef-DOCUMENT", "DESCRIBES", program) for program in programs]
    for id in ordered:
        relationships += [(crate_id(packages[id]), "DEPENDS_ON", crate_id(packages[dep])) for dep in found[id]]

    def contains(id, parts):
        for part in parts:
            # The wheel and the image may have the same package.
            entries.setdefault(part["SPDXID"], part)
            relationships.append((id, "CONTAINS", part["SPDXID"]))

    contains(next(crate_id(packages[id]) for id in ordered if packages[id]["name"] == "ccbench-results"), assets())
    debian = Debian()
    for file in files:
        name = PurePath(file).name
        parts = wheel if name.endswith(".whl") else image if name.endswith(".oci.tar") else None
        if not parts:
            sys.exit(f"sbom: {file} is neither a wheel (.whl) nor the archive of an image (.oci.tar)")
        # It has parts with many licences.
        whole = entry(spdx_id("package", name), name, version, "NOASSERTION", sha256=sha256_of(file))
        entries[whole["SPDXID"]] = whole
        relationships.append(("SPDXRef-DOCUMENT", "DESCRIBES", whole["SPDXID"]))
        relationships += [(whole["SPDXID"], "CONTAINS", program) for program in programs]
        contains(whole["SPDXID"], parts(file, debian))
    if debian.unknown:
        print(f"sbom: packages without a copyright file: {', '.join(sorted(debian.unknown))}", file=sys.stderr)
    licences = [debian.licences[id] for id in sorted(debian.licences)]
    name = f"ccbench-{version}-{target}"
    digest = hashlib.sha256(json.dumps([list(entries.values()), relationships, licences]).encode()).hexdigest()
    created = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.timezone.utc)
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{digest[:32]}",
        "creationInfo": {"created": created.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: ccbench scripts/sbom.py"]},
        "packages": list(entries.values()),
        "hasExtractedLicensingInfos": licences,
        "relationships": [
            {"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b} for a, kind, b in relationships
        ],
    }


if __name__ == "__main__":
    lock_file, version, target, *files = sys.argv[1:]
    with open(lock_file, "rb") as file:
        lock = tomllib.load(file)
    json.dump(document(json.load(sys.stdin), lock, version, target, files), sys.stdout, indent=1)
    print()
