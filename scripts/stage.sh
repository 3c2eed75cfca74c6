#!/usr/bin/env bash
# Copies all installed files into a tree: stage.sh PROGRAMS ROOT PREFIX
#   PROGRAMS  directory of the two programs, which must run here
#   ROOT      root of the tree; empty: this system's
#   PREFIX    /usr/local, /usr; empty: for an archive to unpack in /usr/local
set -euo pipefail
# All users must be able to read the installed files.
umask 022
source=$(dirname "$(realpath "$0")")/..
programs=$1 prefix=${3%/}
to=${2%/}$prefix

for name in ccbench ccbench-agent; do install -D -m 755 "$programs/$name" "$to/bin/$name"; done
install -d "$to/lib/systemd/system" "$to/share/man/man1"
for unit in "$source"/systemd/ccbench-agent*.{service,socket,timer}; do
    sed "s|/usr/local/|${prefix:-/usr/local}/|" "$unit" >"$to/lib/systemd/system/${unit##*/}"
done
install -D -m 644 "$source/systemd/ccbench.sysusers" "$to/lib/sysusers.d/ccbench.conf"
install -D -m 644 "$source/systemd/agent.conf.example" "$to/share/ccbench/agent.conf.example"
install -D -m 755 "$source/scripts/install-agent.sh" "$to/share/ccbench/install-agent.sh"
for name in ccbench ccbench-agent; do "$programs/$name" man "$to/share/man/man1"; done
completions() { # SHELL FILE
    install -d "$(dirname "$to/share/$2")"
    "$programs/ccbench" completions "$1" >"$to/share/$2"
}
completions bash bash-completion/completions/ccbench
completions fish fish/vendor_completions.d/ccbench.fish
# Debian's zsh reads another directory than the others.
case $prefix in
/usr) completions zsh zsh/vendor-completions/_ccbench ;;
*) completions zsh zsh/site-functions/_ccbench ;;
esac
to=$(realpath "$to")
cd "$source"
for file in LICENSE LICENSES/*; do install -D -m 644 "$file" "$to/share/doc/ccbench/$file"; done
# Errors refer to sections of the documents.
scripts/documents.sh "$to/share/doc/ccbench" "$to/share/ccbench/plans"
