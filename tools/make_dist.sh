#!/usr/bin/env bash
# make dist: the source tarball of the commit that is checked out, FOLDER/quern-VERSION.tar.gz, with its SHA-256. It holds every file of
# the commit. A commit gives the same bytes on every machine: times are the commit's, owners are root, the order is git's, and modes do
# not depend on the umask. make_dist.sh FOLDER
#
# gzip, because the output of its level 9 has been the same for decades; that of xz differs between versions. Two thirds of the bytes are
# models, which neither compresses: xz saves 4% and takes nine times as long.
set -euo pipefail
cd "$(dirname "$0")/.."
die() {
    echo "make dist: $*" >&2
    exit 1
}
[ $# -eq 1 ] || die "expected a folder"
[ -e .git ] || die "this folder is not a git clone, so there is no commit to pack"
changed=$(git status --porcelain --untracked-files=no)
[ -z "$changed" ] || die "changes are not committed:"$'\n'"$changed"
untracked=$(git ls-files --others --exclude-standard)
[ -z "$untracked" ] || printf 'make dist: git does not track these files, they are left out:\n%s\n' "$untracked" >&2

version=$(sed -n 's/^project(quern VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
[ -n "$version" ] || die "CMakeLists.txt has no line 'project(quern VERSION ...'"
mkdir -p "$1"
tarball=$1/quern-$version.tar.gz
trap 'rm -f "$tarball.new"' EXIT
unset GZIP
git -c tar.umask=0022 -c core.autocrlf=false -c core.attributesFile=/dev/null archive --format=tar --prefix="quern-$version/" HEAD |
    gzip -n -9 >"$tarball.new"
mv "$tarball.new" "$tarball"
sha256sum "$tarball"
