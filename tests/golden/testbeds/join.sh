#!/bin/sh
# Written by `ccbench testbed`: gives each node a certificate and starts its agent.
#
#   sh join.sh PKI ADDRESS:PORT
#
# PKI is the directory of the certificate authority, which is created if need be. ADDRESS is this machine's in the control network:
# the nodes connect to it for their certificates.
set -eu
[ $# -eq 2 ] || { sed -n 's/^#   //p' "$0" >&2; exit 2; }
pki=$1 service=$2
[ -e "$pki/ca.pem" ] || ccbench pki init "$pki" >/dev/null

# A node that has a certificate keeps it and needs no token, so the script may be repeated.
token() {
    [ -e "$pki/$1.pem" ] || ccbench pki token "$pki" "$1"
}
token_1=$(token 127.0.77.4)
token_2=$(token 127.0.77.3)
token_3=$(token 127.0.77.2)
token_4=$(token 127.0.77.1)

if [ -n "$token_1$token_2$token_3$token_4" ]; then
    log=$(mktemp)
    ccbench pki serve "$pki" --listen "$service" >"$log" &
    authority=$!
    trap 'kill "$authority" 2>/dev/null || :; rm -f "$log"' EXIT
    until grep -q '^listening' "$log"; do
        kill -0 "$authority"
        sleep 0.1
    done
fi

echo dst
printf '%s\n' "$token_1" | docker exec -i clab-quickstart-dst install-agent.sh join "$service" '127.0.77.4:7700'
echo emulator
printf '%s\n' "$token_2" | docker exec -i clab-quickstart-emulator install-agent.sh join "$service" '127.0.77.3:7700'
echo router
printf '%s\n' "$token_3" | docker exec -i clab-quickstart-router install-agent.sh join "$service" '127.0.77.2:7700'
echo src
printf '%s\n' "$token_4" | docker exec -i clab-quickstart-src install-agent.sh join "$service" '127.0.77.1:7700'

# No token of this script is unused; the service, which would also wait for others, is not needed any more.
echo "every agent is started; run the plan with --pki $pki"
