# shellcheck shell=bash
# Functions of the scripts that build libraries from Debian's source packages.

# fetch_sources FOLDER PACKAGE... - unpacks source packages below the folder, those that are not there yet, with Debian's patches. apt checks
# their signatures and hashes. Neither root nor a deb-src line is needed: they are where the system's own packages come from. Mirrors may
# lack the sources of security updates: then those before them are taken, and a line says so. Status 3 if there are none. A process waits
# for others that fetch into the same folder.
fetch_sources() {
    mkdir -p "$1"
    (
        flock 9
        fetch_missing "$@"
    ) 9>"$1/lock"
}

# fetch_missing FOLDER PACKAGE... - the same without the lock.
fetch_missing() {
    local sources=$1 apt=$1/apt package missing=() archives
    shift
    for package in "$@"; do
        compgen -G "$sources/$package-[0-9]*/" >/dev/null || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    printf '%s\n' "Dir::Etc::SourceList \"$apt/list\";" 'Dir::Etc::SourceParts "-";' "Dir::State::Lists \"$apt/lists\";" \
        "Dir::Cache \"$apt/cache\";" 'APT::Sandbox::User "";' >"$apt/conf"
    archives=$(apt-get indextargets --format 'deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' | sort -u) || true
    echo "$archives" >"$apt/list"
    ! fetch_listed "$sources" "${missing[@]}" || return 0
    echo "debian-sources: the archives that have security updates gave no sources; versions without them are taken" >&2
    { grep -v -- '-security ' <<<"$archives" || true; } >"$apt/list"
    fetch_listed "$sources" "${missing[@]}" || { tail -n 20 "$sources/fetch.log" >&2; exit 3; }
}

# fetch_listed FOLDER PACKAGE... - the same from the archives in FOLDER/apt/list.
fetch_listed() {
    local sources=$1
    shift
    (export APT_CONFIG=$sources/apt/conf && apt-get update -qq && cd "$sources" && apt-get source -qq "$@") >"$sources/fetch.log" 2>&1
}

# source_versions FOLDER PACKAGE... - a line for each: what a library that is built has to be built anew for.
source_versions() {
    local sources=$1 package
    shift
    for package in "$@"; do
        head -n 1 "$sources/$package"-[0-9]*/debian/changelog
    done
}
