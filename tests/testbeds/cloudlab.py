"""Runs a profile with geni-lib and compares the request that it prints with what the plan needs.

    python cloudlab.py PROFILE EXPECTED.json

EXPECTED.json: {"nodes": {NAME: [ADDRESS...]}, "links": [[ADDRESS, ADDRESS]...], "controller": NAME,
"link_speed_kbps": NUMBER}
"""

import contextlib
import importlib.util
import io
import json
import re
import runpy
import sys
import types

from lxml import etree

RSPEC = "{http://www.geni.net/resources/rspec/3}"
EMULAB = "{http://www.protogeni.net/resources/rspec/ext/emulab/1}"


def load_portal():
    """Loads geni.portal. Unlike CloudLab's copy, geni-lib on PyPI needs Python 2 in two places: geni.portal has print statements, and a request is
    written as bytes."""
    import geni
    import geni.rspec.pg

    geni.rspec.pg.Request.writeXML = lambda self, path: sys.stdout.write(self.toXMLString(True, ucode=True))

    spec = importlib.util.find_spec("geni.portal")
    with open(spec.origin, encoding="utf-8") as file:
        source = re.sub(r"^(\s*)print ([^(].*)$", r"\1print(\2)", file.read(), flags=re.M)
    module = types.ModuleType("geni.portal")
    module.__file__, module.__package__, module.__spec__ = spec.origin, "geni", spec
    sys.modules["geni.portal"] = geni.portal = module
    exec(compile(source, spec.origin, "exec"), module.__dict__)


def request(profile, *arguments):
    """Returns the request of a profile with these parameters."""
    for name in [name for name in sys.modules if name.split(".")[0] == "geni"]:
        del sys.modules[name]
    load_portal()
    sys.argv = [profile, *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(profile, run_name="__main__")
    root = etree.fromstring(printed.getvalue().encode())
    assert root.tag == f"{RSPEC}rspec" and root.get("type") == "request", root.attrib
    return root


def by_name(root):
    return {node.get("client_id"): node for node in root.findall(f"{RSPEC}node")}


def commands(node):
    return [execute.get("command") for execute in node.iter(f"{RSPEC}execute")]


profile, expected = sys.argv[1], json.load(open(sys.argv[2], encoding="utf-8"))
root = request(profile)
nodes = by_name(root)
assert nodes.keys() == {*expected["nodes"], expected["controller"]}, nodes.keys()
owners = {}
for name, addresses in expected["nodes"].items():
    node = nodes[name]
    assert node.get("exclusive") == "true", name
    assert node.find(f"{RSPEC}sliver_type").get("name") == "raw", name
    found = []
    for interface in node.findall(f"{RSPEC}interface"):
        ip = interface.find(f"{RSPEC}ip")
        assert ip.get("netmask") == "255.255.255.0" and ip.get("type") == "ipv4", ip.attrib
        found.append(ip.get("address"))
        owners[interface.get("client_id")] = ip.get("address")
    assert found == addresses, (name, found)
    [command] = commands(node)
    script = "/local/repository/install-agent.sh"
    assert command.startswith(f"sudo sh -c '({script} install /local/repository/ccbench.tar.gz && {script} network "), command
    assert all(address in command.split() for address in addresses), command
links = []
for link in root.findall(f"{RSPEC}link"):
    links.append(sorted(owners[end.get("client_id")] for end in link.findall(f"{RSPEC}interface_ref")))
    assert link.find(f"{EMULAB}best_effort") is not None
    assert link.find(f"{EMULAB}vlan_tagging") is None
    speeds = {prop.get("capacity") for prop in link.findall(f"{RSPEC}property")}
    # 0: any speed.
    assert speeds == ({str(expected["link_speed_kbps"])} if expected["link_speed_kbps"] else set()), speeds
assert sorted(links) == sorted(map(sorted, expected["links"])), links
controller = nodes[expected["controller"]]
assert controller.find(f"{EMULAB}routable_control_ip") is not None and controller.find(f"{RSPEC}interface") is None
assert "network" not in commands(controller)[0]

# The parameters.
url = "https://example.org/a b.tar.gz"
root = request(profile, "--package", url, "--type", "c6525-25g", "--multiplex", "True", "--link_speed", "25000000")
for name in expected["nodes"]:
    node = by_name(root)[name]
    assert node.find(f"{RSPEC}hardware_type").get("name") == "c6525-25g"
    assert "a b.tar.gz" in commands(node)[0]
for link in root.findall(f"{RSPEC}link"):
    assert link.find(f"{EMULAB}link_multiplexing") is not None
    assert {prop.get("capacity") for prop in link.findall(f"{RSPEC}property")} == {"25000000"}
print(f"{len(expected['nodes'])} nodes, {len(links)} links")
