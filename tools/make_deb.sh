#!/usr/bin/env bash
# make deb: Debian packages in FOLDER, built in FOLDER/deb and checked by lintian, whose errors are failures. In a git clone they are
# built from the tarball of make dist; in an unpacked tarball, from a copy of its files. make_deb.sh FOLDER
#
# JOBS is the number of compilers at a time. DEB_BUILD_OPTIONS=nocheck leaves the tests out.
set -euo pipefail
cd "$(dirname "$0")/.."
source=$PWD
mkdir -p "$1"
folder=$(cd "$1" && pwd)
work=$folder/deb
version=$(sed -n 's/^project(quern VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
rm -rf "$work"
mkdir -p "$work/quern-$version"
if [ -e .git ]; then
    tools/make_dist.sh "$folder"
    cp "$folder/quern-$version.tar.gz" "$work/quern_$version.orig.tar.gz"
    tar -C "$work" -xzf "$work/quern_$version.orig.tar.gz"
    build=full
else
    tar --no-wildcards --anchored --exclude="./${folder#"$source/"}" -c . | tar -C "$work/quern-$version" -x
    build=binary
fi
cd "$work/quern-$version"
echo "Building the packages takes minutes; the log is $work/build.log"
export DEB_BUILD_OPTIONS="parallel=${JOBS:-$(nproc)} ${DEB_BUILD_OPTIONS:-}"
if ! dpkg-buildpackage --build=$build --no-sign >"$work/build.log" 2>&1; then
    tail -n 60 "$work/build.log" >&2
    exit 1
fi
# Tags that say nothing here: these packages are not uploaded to Debian, so no bug asks for them; the tarball has debian/ in it; and the
# lintian of Debian 12 does not have the field Static-Built-Using, which its dpkg has.
lintian --fail-on error --suppress-tags initial-upload-closes-no-bugs,no-debian-changes,unknown-field "$work"/quern_*.changes
for package in "$work"/*.deb; do
    case $package in
    *-dbgsym_*) ;; # symbols for debuggers stay in FOLDER/deb
    *) cp "$package" "$folder" && ls -sh "$folder/${package##*/}" ;;
    esac
done
