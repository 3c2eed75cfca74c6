#!/usr/bin/env bash
# Copies the documents, and the files that they link to, into a package: documents.sh DOC [PLANS]
#   DOC    share/doc/ccbench of the package
#   PLANS  directory for the plans, to which DOC/plans is then a symbolic link. The default is DOC/plans, because wheels have no
#          symbolic links
set -euo pipefail
umask 022
doc=$(realpath -m "${1:?usage: documents.sh DOC [PLANS]}")
plans=$(realpath -m "${2:-$doc/plans}")
cd "$(dirname "$(realpath "$0")")/.."

put() { # TO: installs the files that standard input names
    while read -r file; do install -D -m 644 "$file" "$1/$file"; done
}
{
    echo docs/SUMMARY.md
    # The pages of the book; paths in its summary are relative to docs.
    sed -n 's|.*](\(.*\))$|docs/\1|p' docs/SUMMARY.md | sed 's|^docs/\.\./||'
    find docs/images -type f
    find notebooks -name '*.py'
} | put "$doc"
# Users build objects of congestion controls there (.gitignore); they are not part of the package.
find plans -type f ! -name '*.o' | put "${plans%/plans}"
[ "$plans" = "$doc/plans" ] || ln -sfnr "$plans" "$doc/plans"
