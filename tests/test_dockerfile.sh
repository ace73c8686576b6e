#!/usr/bin/env bash
# Steps of the Dockerfile of a release, without docker: its RUN and COPY in a folder of Debian 12 that debootstrap makes, then its entry point as
# its user, and its health check. Needs root.
#   test_dockerfile.sh FOLDER_WITH_DOCKERFILE_AND_ARCHIVE
set -eu
files=$(realpath "$1")
[ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null || { echo "skipped: no root or no debootstrap"; exit 77; }
work=$(mktemp -d)
root=$work/root server=
cleanup() {
    if [ -n "$server" ]; then # what it has open keeps the folders mounted
        kill -KILL "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    umount "$root/proc" "$root/dev" 2>/dev/null || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
die() {
    tail -n 20 "$work/log" >&2 || true
    echo "test_dockerfile: $*" >&2
    exit 1
}
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1)
[ -n "$mirror" ] || { echo "skipped: apt has no archive of Debian 12 to take it from"; exit 77; }
debootstrap --variant=minbase bookworm "$root" "$mirror" >"$work/log" 2>&1 || { echo "skipped: debootstrap failed"; exit 77; }
cp /etc/resolv.conf "$root/etc/" 2>/dev/null || true
cp -R /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
mount --bind /dev "$root/dev" && mount -t proc proc "$root/proc" || { echo "skipped: no mounts here"; exit 77; }

# Instructions, one a line: continued lines joined, comments left out.
sed -e '/^#/d' -e ':a' -e '/\\$/{N;s/\\\n//;ba}' "$files/docker/Dockerfile" >"$work/steps"
user=root directory=/ entry= command= check=
while read -r instruction arguments; do
    case $instruction in
    FROM) [ "$arguments" = debian:12-slim ] || die "FROM $arguments: this test makes Debian 12" ;;
    RUN) chroot "$root" /bin/sh -c "$arguments" >"$work/log" 2>&1 </dev/null || die "RUN $arguments" ;;
    COPY) read -r from to <<<"$arguments" && cp "$files/$from" "$root$to" ;;
    ENV) export "${arguments?}" ;;
    USER) user=$arguments ;;
    WORKDIR) directory=$arguments ;;
    HEALTHCHECK) check=${arguments#*CMD } ;;
    ENTRYPOINT) entry=$arguments ;;
    CMD) command=$arguments ;;
    EXPOSE | "") ;;
    *) die "unknown instruction $instruction" ;;
    esac
done <"$work/steps"
[ "$user" != root ] || die "the server would run as root"
mapfile -t words < <(python3 -c 'import json, sys; print("\n".join(json.loads(sys.argv[1]) + json.loads(sys.argv[2])))' "$entry" "$command")
chroot --userspec="$user" "$root" /bin/sh -c "cd '$directory' && exec \"\$@\"" sh "${words[@]}" >"$work/log" 2>&1 &
server=$!
for _ in $(seq 60); do
    ! chroot "$root" /bin/sh -c "$check" >/dev/null 2>&1 || { healthy=yes && break; }
    sleep 1
done
[ "${healthy:-}" = yes ] || die "the health check fails: $check"
owner=$(stat -c %u "/proc/$server") || die "the server has ended"
[ "$owner" != 0 ] || die "the server runs as root"
echo "the server of the Dockerfile is healthy"
