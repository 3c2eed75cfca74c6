# Source this file. `apt SUITE TOOL ARGS…` runs apt-get or apt-cache on one Debian suite of the system's mirror. Package lists
# are kept under $work, so the system's package sources do not change. Needs no root.

die() { echo "lab: $*" >&2; exit 1; }

mirror() { # SUITE
    local found
    found=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -m1 -E '/debian/?$' || true)
    [ -n "$found" ] || die "no Debian mirror among the system's package sources"
    case $1 in *-security) found=${found%/}; found=${found%/debian}/debian-security ;; esac
    echo "$found"
}

apt() { # SUITE (apt-get|apt-cache) ARGS…
    local suite=$1 tool=$2 at=$work/apt/$1
    shift 2
    mkdir -p "$at/lists/partial" "$at/cache/archives/partial"
    local with=(-q -o "Dir::Etc::sourcelist=$at/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$at/lists" -o "Dir::Cache=$at/cache" -o Acquire::Check-Valid-Until=false
        -o "APT::Sandbox::User=$(id -un)" -o Debug::NoLocking=1)
    if [ ! -e "$at/sources.list" ]; then
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(mirror "$suite") $suite main" >"$at/sources.list"
        apt-get "${with[@]}" update >"$at/log" 2>&1 || die "cannot read $suite: $(grep -m1 '^[EW]:' "$at/log")"
    fi
    "$tool" "${with[@]}" "$@"
}
