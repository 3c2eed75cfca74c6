# %% [markdown]
# # @TITLE@
#
# Written by `ccbench testbed fabric`. Nodes, networks, addresses and routes are those of the plan; its rates, delays and queues are
# not here, because ccbench sets them on the nodes for each trial. Agents are reached by a network of their own (FABNetv4), and the
# controller is a node of the slice.
#
# Beside this notebook: the plan, the files that it names, `install-agent.sh`, and `ccbench.tar.gz`, the tarball of `make dist`.

# %%
import json
import os
from ipaddress import IPv4Address, IPv4Network
from shlex import quote

from fabrictestbed_extensions.fablib.fablib import FablibManager

fablib = FablibManager()
slice_name = @SLICE@
site_name = os.environ.get("FABRIC_SITE") or fablib.get_random_site()
package = "ccbench.tar.gz"
files = @FILES@

# %%
# Nodes, networks and routes of the plan.
node_conf = @NODE_CONF@
net_conf = @NET_CONF@
route_conf = @ROUTE_CONF@
controller_conf = @CONTROLLER_CONF@
# The options of `install-agent.sh network` for each node.
network_options = @NETWORK_OPTIONS@

# %%
# Reserve the slice.
slice = fablib.new_slice(name=slice_name)
for conf in [*node_conf, controller_conf]:
    node = slice.add_node(
        name=conf["name"], site=site_name, cores=conf["cores"], ram=conf["ram"], disk=conf["disk"], image=conf["image"]
    )
    # The control network.
    node.add_fabnet()
for net in net_conf:
    ends = [slice.get_node(end["name"]).add_component(model="NIC_Basic", name=net["name"]) for end in net["nodes"]]
    slice.add_l2network(name=net["name"], type="L2Bridge", interfaces=[end.get_interfaces()[0] for end in ends])
slice.submit()

# %%
# Addresses and routes of the experiment's networks.
for net in net_conf:
    for end in net["nodes"]:
        interface = slice.get_interface(f"{end['name']}-{net['name']}-p1")
        interface.ip_link_up()
        interface.ip_addr_add(addr=IPv4Address(end["addr"]), subnet=IPv4Network(net["subnet"]))
for route in route_conf:
    for name in route["nodes"]:
        slice.get_node(name).ip_route_add(subnet=IPv4Network(route["addr"]), gateway=IPv4Address(route["gw"]))

# %%
# Install ccbench on every node.
FAILED = "ccbench-command-failed"


def run(node, command):
    """Runs a command on a node; what it prints, or an exception with it."""
    stdout, stderr = node.execute(f"{{ {command}\n}} || echo {FAILED}", quiet=True)
    if FAILED in stdout:
        raise RuntimeError(f"{node.get_name()}: {command.split()[0]} failed: {stdout}{stderr}")
    return stdout


controller = slice.get_node(controller_conf["name"])
nodes = {conf["name"]: slice.get_node(conf["name"]) for conf in node_conf}
for node in [*nodes.values(), controller]:
    for file in ["install-agent.sh", package]:
        node.upload_file(file, file)
    run(node, f"chmod +x install-agent.sh && sudo ./install-agent.sh install {package}")
for conf in node_conf:
    if conf["packages"]:
        run(nodes[conf["name"]], "sudo apt-get install -y " + " ".join(map(quote, conf["packages"])))
for name, node in nodes.items():
    addresses = [end["addr"] for net in net_conf for end in net["nodes"] if end["name"] == name]
    run(node, " ".join(["sudo ./install-agent.sh network", *network_options[name], *addresses]))

# %%
# Give each node a certificate for its address in the control network, and start its agent.


def control_address(node):
    return str(node.get_interface(network_name=f"FABNET_IPv4_{node.get_site()}").get_ip_addr())


manifest = [{"name": name, "control_address": control_address(node)} for name, node in nodes.items()]
with open("manifest.json", "w") as file:
    json.dump(manifest, file, indent=2)
run(controller, "ccbench pki init pki")
tokens = {}
for entry in manifest:
    token = run(controller, f"ccbench pki token pki {entry['control_address']}").split()
    tokens[entry["name"]] = token[0]
service = f"{control_address(controller)}:7701"
# It ends when every token is used.
run(controller, f"nohup ccbench pki serve pki --listen {service} >serve.log 2>&1 </dev/null &")
run(controller, "timeout 20 sh -c 'until grep -q ^listening serve.log; do sleep 0.2; done'")
for entry in manifest:
    agent = f"{entry['control_address']}:7700"
    run(nodes[entry["name"]], f"echo {tokens[entry['name']]} | sudo ./install-agent.sh join {service} {agent}")

# %%
# Run the plan. It continues without this notebook; run.log has its progress.
for file in [*files, "manifest.json"]:
    directory = os.path.dirname(file)
    if directory:
        run(controller, f"mkdir -p {quote(directory)}")
    controller.upload_file(file, file)
plan = files[0]
adapted = plan.removesuffix(".toml") + ".testbed.toml"
run(controller, f"ccbench testbed fabric {quote(plan)} --manifest manifest.json")
run(controller, f"ccbench describe {quote(adapted)} --pki pki")
run(controller, f"nohup ccbench run {quote(adapted)} --pki pki >run.log 2>&1 </dev/null &")

# %%
print(run(controller, "tail -n 20 run.log"))

# %%
# Fetch the results, then give the slice back: slice.delete()
run(controller, "tar -czf results.tar.gz results")
controller.download_file("results.tar.gz", "results.tar.gz")
