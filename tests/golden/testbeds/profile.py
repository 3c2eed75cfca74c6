"""quickstart: 4 nodes, 3 wires. BBR joins CUBIC at a 100 Mbit/s bottleneck and leaves again

Written by `ccbench testbed cloudlab`. Nodes, links and addresses are those of the plan; its rates, delays and queues are not
here, because ccbench sets them on the nodes for each trial.

Instructions:
When the experiment is ready, save its manifest (the tab "Manifest") as manifest.xml. Then `ccbench testbed cloudlab PLAN --manifest
manifest.xml` writes the plan with the addresses of the agents, and join.sh, which gives each node a certificate and starts its agent.
"""

from shlex import quote

import geni.portal as portal
import geni.rspec.igext  # request.XenVM
import geni.rspec.pg as pg

# Each node: its name, its name as a host, the arguments of `install-agent.sh network`, and its interfaces as (link, address).
NODES = [
    {"host": "dst", "interfaces": [["link3", "10.77.3.2"]], "network": "10.77.3.2 10.77.1.0/24=10.77.3.1 10.77.2.0/24=10.77.3.1"},
    {"host": "emulator", "interfaces": [["link2", "10.77.2.2"], ["link3", "10.77.3.1"]], "network": "10.77.2.2 10.77.3.1 10.77.1.0/24=10.77.2.1"},
    {"host": "router", "interfaces": [["link1", "10.77.1.2"], ["link2", "10.77.2.1"]], "network": "10.77.1.2 10.77.2.1 10.77.3.0/24=10.77.2.2"},
    {"host": "src", "interfaces": [["link1", "10.77.1.1"]], "network": "10.77.1.1 10.77.2.0/24=10.77.1.2 10.77.3.0/24=10.77.1.2"},
]
CONTROLLER = "controller"
NETMASK = "255.255.255.0"
SCRIPT = "/local/repository/install-agent.sh"
LOG = "/var/log/ccbench-install.log"

portal_context = portal.Context()
portal_context.defineParameter(
    "package",
    "ccbench for the nodes",
    portal.ParameterType.STRING,
    "/local/repository/ccbench.tar.gz",
    longDescription="A URL, or a file of the profile's repository: the tarball of `make dist`, or the .deb.",
)
portal_context.defineParameter("type", "Hardware type", portal.ParameterType.NODETYPE, "")
portal_context.defineParameter(
    "image",
    "Disk image",
    portal.ParameterType.IMAGE,
    "urn:publicid:IDN+emulab.net+image+emulab-ops//UBUNTU24-64-STD",
)
portal_context.defineParameter(
    "link_speed",
    "Speed of the links",
    portal.ParameterType.INTEGER,
    0,
    [(0, "any"), (1000000, "1 Gb/s"), (10000000, "10 Gb/s"), (25000000, "25 Gb/s"), (100000000, "100 Gb/s")],
    longDescription="The default is not below the plan's rates; a lower one would be a second bottleneck.",
)
portal_context.defineParameter(
    "multiplex",
    "Several links on one port",
    portal.ParameterType.BOOLEAN,
    False,
    longDescription="For nodes with fewer ports than links. Links then share a port, which changes what is measured.",
)
portal_context.defineParameter(
    "controller",
    "A node for the controller",
    portal.ParameterType.BOOLEAN,
    True,
    longDescription="A virtual machine with ccbench, which the nodes reach. Without it the controller runs on a machine of yours.",
)
params = portal_context.bindParameters()
request = portal_context.makeRequestRSpec()


def execute(node, steps):
    """Runs install-agent.sh with each of these arguments, at every boot."""
    commands = " && ".join("{} {}".format(SCRIPT, step) for step in steps)
    command = "sudo sh -c {}".format(quote("({}) >>{} 2>&1".format(commands, LOG)))
    node.addService(pg.Execute(shell="sh", command=command))


links = {}
for description in NODES:
    node = request.RawPC(description["host"])
    if params.type:
        node.hardware_type = params.type
    node.disk_image = params.image
    for number, (name, address) in enumerate(description["interfaces"], 1):
        interface = node.addInterface("if{}".format(number))
        interface.addAddress(pg.IPv4Address(address, NETMASK))
        if name not in links:
            links[name] = request.Link(name)
        links[name].addInterface(interface)
    execute(node, ["install " + quote(params.package), "network " + description["network"]])

for link in links.values():
    # The plan's links limit rates, not those of CloudLab.
    link.best_effort = True
    if params.link_speed:
        link.bandwidth = params.link_speed
    if params.multiplex:
        link.link_multiplexing = True
        link.vlan_tagging = True

if params.controller:
    node = request.XenVM(CONTROLLER)
    node.exclusive = False
    node.routable_control_ip = True
    node.disk_image = params.image
    execute(node, ["install " + quote(params.package)])

portal_context.printRequestRSpec(request)
