"""The bill of materials of the programs, in SPDX 2.3: every crate that is built into them.

    cargo metadata --locked --format-version 1 --filter-platform TARGET | python3 sbom.py Cargo.lock VERSION TARGET > FILE

Runs `cargo tree` in the current directory. Crates that only tests use are left out. The document depends on these inputs and
SOURCE_DATE_EPOCH alone.
"""

import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib

PROGRAMS = ("ccbench", "ccbench-agent")


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


def spdx_id(package):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", f"{package['name']}-{package['version']}")


def described(package, checksums):
    checksum = checksums.get((package["name"], package["version"]))
    source = package["source"] or ""
    entry = {
        "SPDXID": spdx_id(package),
        "name": package["name"],
        "versionInfo": package["version"],
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        # Old crates separate alternatives by a slash.
        "licenseDeclared": (package["license"] or "NOASSERTION").replace("/", " OR "),
        "copyrightText": "NOASSERTION",
    }
    if source.startswith("registry+"):
        locator = f"pkg:cargo/{package['name']}@{package['version']}"
        entry["externalRefs"] = [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator}
        ]
    if checksum:
        entry["checksums"] = [{"algorithm": "SHA256", "checksumValue": checksum}]
    return entry


def document(metadata, lock, version, target):
    checksums = {(p["name"], p["version"]): p.get("checksum") for p in lock["package"]}
    packages = {package["id"]: package for package in metadata["packages"]}
    found = reachable(metadata, built(target))
    ordered = sorted(found, key=lambda id: (packages[id]["name"], packages[id]["version"]))
    programs = [id for id in ordered if packages[id]["name"] in PROGRAMS]
    relationships = [("SPDXRef-DOCUMENT", "DESCRIBES", spdx_id(packages[id])) for id in programs]
    for id in ordered:
        relationships += [(spdx_id(packages[id]), "DEPENDS_ON", spdx_id(packages[dep])) for dep in found[id]]
    name = f"ccbench-{version}-{target}"
    entries = [described(packages[id], checksums) for id in ordered]
    digest = hashlib.sha256(json.dumps([entries, relationships]).encode()).hexdigest()
    created = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.timezone.utc)
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{digest[:32]}",
        "creationInfo": {"created": created.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: ccbench scripts/sbom.py"]},
        "packages": entries,
        "relationships": [
            {"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b} for a, kind, b in relationships
        ],
    }


if __name__ == "__main__":
    lock_file, version, target = sys.argv[1:]
    with open(lock_file, "rb") as file:
        lock = tomllib.load(file)
    json.dump(document(json.load(sys.stdin), lock, version, target), sys.stdout, indent=1)
    print()
