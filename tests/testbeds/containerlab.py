"""Reads a containerlab topology and checks it against the keys of containerlab's manual and what the plan needs.

    python containerlab.py TOPOLOGY EXPECTED.json

EXPECTED.json: {"nodes": {NAME: [ADDRESS...]}, "links": [[ADDRESS, ADDRESS]...], "routes": {NAME: {SUBNET: GATEWAY}}}
"""

import json
import re
import shlex
import sys

import yaml

# https://containerlab.dev/manual/topo-def-file/ and https://containerlab.dev/manual/nodes/
TOP = {"name", "prefix", "mgmt", "topology", "settings", "debug"}
TOPOLOGY = {"defaults", "kinds", "groups", "nodes", "links"}
NODE = {"kind", "type", "image", "image-pull-policy", "group", "exec", "binds", "ports", "env", "env-files", "user", "entrypoint", "cmd",
        "labels", "mgmt-ipv4", "mgmt-ipv6", "network-mode", "cpu", "memory", "cpu-set", "sysctls", "stages", "dns", "healthcheck",
        "restart-policy", "cap-add", "shm-size", "devices", "startup-delay", "auto-remove"}
LINK = {"endpoints", "mtu", "vars", "labels"}

with open(sys.argv[1], encoding="utf-8") as file:
    document = yaml.safe_load(file)
with open(sys.argv[2], encoding="utf-8") as file:
    expected = json.load(file)
assert document.keys() <= TOP and isinstance(document["name"], str), document.keys()
topology = document["topology"]
assert topology.keys() <= TOPOLOGY, topology.keys()
defaults = topology["defaults"]
assert defaults.keys() <= NODE and defaults["kind"] == "linux" and defaults["image"], defaults
assert shlex.split(defaults["cmd"])[:2] == ["install-agent.sh", "serve"], defaults
assert topology["nodes"].keys() == expected["nodes"].keys()
devices = {}
for name, node in topology["nodes"].items():
    assert node.keys() <= NODE, node.keys()
    *adds, network = map(shlex.split, node["exec"])
    own = []
    for words in adds:
        assert words[:3] == ["ip", "address", "replace"] and words[4] == "dev", words
        own.append(words[3].removesuffix("/24"))
        devices[f"{name}:{words[5]}"] = own[-1]
    assert own == expected["nodes"][name], (name, own)
    assert network[:2] == ["install-agent.sh", "network"] and network[2 : 2 + len(own)] == own, network
    routes = dict(word.split("=") for word in network[2 + len(own) :])
    assert routes == expected["routes"].get(name, {}), (name, routes)
links = []
for link in topology["links"]:
    assert link.keys() <= LINK and link["mtu"] == 1500, link
    for end in link["endpoints"]:
        assert re.fullmatch(r"\S+:\S{1,15}", end), end
    links.append(sorted(devices.pop(end) for end in link["endpoints"]))
assert not devices, f"no link has {devices}"
assert sorted(links) == sorted(map(sorted, expected["links"])), links
print(f"{len(topology['nodes'])} nodes, {len(links)} links")
