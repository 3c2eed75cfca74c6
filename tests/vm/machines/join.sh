# Runs in each machine at its first boot.
set -eu
. /run/machine/machine
sh /run/machine/install-agent.sh join "$CONTROLLER" "$CONTROL:7700" </run/machine/token
sync
echo "@@ $NAME has joined"
