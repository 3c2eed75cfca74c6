"""Runs the code of a notebook with a recording stub of fablib (with the signatures of fablib 2.0.9), and compares the slice that it
makes with what the plan needs.

    python fabric.py NOTEBOOK EXPECTED.json          in an empty directory

EXPECTED.json: {"nodes": {NAME: [ADDRESS...]}, "links": [[ADDRESS, ADDRESS]...], "controller": NAME, "routes": {NAME: {SUBNET: GATEWAY}},
"files": [NAME...]}
"""

import json
import os
import re
import subprocess
import sys
import types
from ipaddress import IPv4Address, IPv4Network

FABNET = IPv4Network("10.128.0.0/10")


class Interface:
    def __init__(self, name, node, network=None):
        self.name, self.node, self.network = name, node, network
        self.up, self.addresses = False, []

    def ip_link_up(self):
        assert self.node.slice.submitted
        self.up = True

    def ip_addr_add(self, addr, subnet):
        assert self.up and type(addr) is IPv4Address and type(subnet) is IPv4Network and addr in subnet, (addr, subnet)
        self.addresses.append(addr)

    def get_ip_addr(self):
        return self.addresses[0]


class Component:
    def __init__(self, interface):
        self.interface = interface

    def get_interfaces(self, include_subs=True, refresh=False, output="list"):
        return [self.interface]


class Node:
    def __init__(self, slice, name, site):
        self.slice, self.name, self.site = slice, name, site
        self.interfaces, self.files, self.commands, self.routes = {}, [], [], {}

    def get_name(self):
        return self.name

    def get_site(self):
        return self.site

    def add_component(self, model=None, name=None, user_data={}):
        assert model == "NIC_Basic" and not self.slice.submitted
        interface = Interface(f"{self.name}-{name}-p1", self)
        assert self.interfaces.setdefault(interface.name, interface) is interface, name
        return Component(interface)

    def add_fabnet(self, name="FABNET", net_type="IPv4", nic_type="NIC_Basic", routes=None, subnet=None):
        network = f"{name}_{net_type}_{self.site}"
        interface = self.add_component(model=nic_type, name=f"{network}_nic").get_interfaces()[0]
        interface.network = network
        interface.addresses.append(FABNET[0x20100 + len(self.slice.nodes)])

    def get_interface(self, name=None, network_name=None, refresh=False, raise_exception=None):
        [found] = [i for i in self.interfaces.values() if network_name in (i.network, getattr(i.network, "name", None))]
        return found

    def ip_route_add(self, subnet, gateway, interface=None, persistent=None):
        assert type(subnet) is IPv4Network and type(gateway) is IPv4Address
        near = [addr for i in self.interfaces.values() for addr in i.addresses if IPv4Network((addr, 24), strict=False).overlaps(IPv4Network((gateway, 32)))]
        assert near, f"{self.name} does not reach {gateway}"
        self.routes[str(subnet)] = str(gateway)

    def upload_file(self, local_file_path, remote_file_path=".", retry=3, retry_interval=10):
        assert os.path.exists(local_file_path), local_file_path
        self.files.append(remote_file_path)

    def download_file(self, local_file_path, remote_file_path, retry=3, retry_interval=10):
        self.files.append(f"fetched {remote_file_path}")

    def execute(self, command, retry=3, retry_interval=10, username=None, private_key_file=None, private_key_passphrase=None,
                quiet=False, read_timeout=10, timeout=None, output_file=None, display=True):
        assert self.slice.submitted
        subprocess.run(["bash", "-n"], input=command, text=True, check=True)
        self.slice.log.append((self.name, command))
        self.commands.append(command)
        if FAIL and FAIL in command:
            return command.rsplit(" ", 1)[1] + "\n", "no such file"
        if "pki token" in command:
            return f"ccbj1.{command.split()[5]}.secret\n", "start `ccbench pki serve`"
        return "", ""


class Slice:
    def __init__(self, name):
        self.name, self.nodes, self.networks, self.submitted, self.log = name, {}, {}, False, []

    def add_node(self, name, site=None, cores=2, ram=8, disk=10, image=None, instance_type=None, host=None, user_data={}, avoid=[],
                 validate=False, raise_exception=False, storage=False, storage_cluster=None):
        assert re.fullmatch("[A-Za-z0-9][A-Za-z0-9-]*", name) and name not in self.nodes, name
        assert cores >= 1 and ram >= 2 and disk >= 10 and image.startswith("default_"), (name, image)
        self.nodes[name] = Node(self, name, site)
        return self.nodes[name]

    def add_l2network(self, name=None, interfaces=[], type=None, subnet=None, gateway=None, user_data={}):
        assert name not in self.networks and type == "L2Bridge"
        self.networks[name] = interfaces
        for interface in interfaces:
            interface.network = name

    def submit(self, wait=True, progress=True, post_boot_config=True, wait_ssh=True):
        self.submitted = True

    def get_node(self, name):
        return self.nodes[name]

    def get_interface(self, name=None, refresh=False):
        [found] = [node.interfaces[name] for node in self.nodes.values() if name in node.interfaces]
        return found


class FablibManager:
    def get_random_site(self, avoid=None, filter_function=None, update=True):
        return "TACC"

    def new_slice(self, name, storage=False, storage_cluster=None):
        global made
        made = Slice(name)
        return made


def run(notebook):
    """Runs all cells in an environment with the files beside the notebook."""
    stub = types.ModuleType("fabrictestbed_extensions.fablib.fablib")
    stub.FablibManager = FablibManager
    for name in ["fabrictestbed_extensions", "fabrictestbed_extensions.fablib"]:
        sys.modules[name] = types.ModuleType(name)
    sys.modules[stub.__name__] = stub
    names = {}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    return names


FAIL = None
notebook, expected = (json.load(open(name, encoding="utf-8")) for name in sys.argv[1:3])
assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
assert notebook["cells"][0]["cell_type"] == "markdown"
for name in ["ccbench.tar.gz", "install-agent.sh", *expected["files"]]:
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    open(name, "w").close()
names = run(notebook)
assert {"node_conf", "net_conf", "route_conf"} <= names.keys()
controller = made.nodes.pop(expected["controller"])
assert made.nodes.keys() == expected["nodes"].keys(), made.nodes.keys()
manifest = {entry["name"]: entry["control_address"] for entry in json.load(open("manifest.json", encoding="utf-8"))}
for name, addresses in expected["nodes"].items():
    node = made.nodes[name]
    control = manifest[name]
    own = [str(a) for i in node.interfaces.values() for a in i.addresses if a not in FABNET]
    assert own == addresses and IPv4Address(control) in FABNET, (name, own)
    assert node.routes == expected["routes"].get(name, {}), (name, node.routes)
    install, network, join = node.commands
    assert "install-agent.sh install ccbench.tar.gz" in install and node.files == ["install-agent.sh", "ccbench.tar.gz"]
    assert network.split("network ")[1].split()[: len(addresses)] == addresses, network
    assert re.search(rf"echo ccbj1.{control}.secret \| sudo ./install-agent.sh join \S+:7701 {control}:7700\n", join), join
ends = {name: sorted(str(i.addresses[0]) for i in net) for name, net in made.networks.items()}
assert sorted(ends.values()) == sorted(map(sorted, expected["links"])), ends
assert not controller.routes and len(controller.interfaces) == 1
assert controller.files[2:] == [*expected["files"], "manifest.json", "fetched results.tar.gz"], controller.files
order = [next(i for i, (_, c) in enumerate(made.log) if part in c) for part in
         ["pki init", "pki token", "pki serve", "grep -q ^listening", "agent.sh join", "ccbench testbed fabric", "ccbench run"]]
assert order == sorted(order), order
assert f"ccbench run {expected['files'][0].removesuffix('.toml')}.testbed.toml --pki pki" in made.log[order[-1]][1]

# A command that fails ends the notebook with its output.
FAIL = "install-agent.sh network"
try:
    run(notebook)
    raise SystemExit("the notebook did not report the failure")
except RuntimeError as error:
    assert "no such file" in str(error), error
print(f"{len(expected['nodes'])} nodes, {len(ends)} networks")
