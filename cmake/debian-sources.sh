# shellcheck shell=bash
# Functions of the scripts that build libraries from Debian's source packages.

# fetch_sources FOLDER PACKAGE... - unpacks source packages below the folder, those that are not there yet, with Debian's patches. apt checks
# their signatures and hashes. Neither root nor a deb-src line is needed: they are where the system's own packages come from. Ends with
# status 3 if they cannot be had.
fetch_sources() {
    local sources=$1 apt=$1/apt package missing=()
    shift
    for package in "$@"; do
        compgen -G "$sources/$package-[0-9]*/" >/dev/null || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    {
        apt-get indextargets --format 'deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' | sort -u |
            grep -v -- '-security ' >"$apt/list" # mirrors may lack its sources
        printf '%s\n' "Dir::Etc::SourceList \"$apt/list\";" 'Dir::Etc::SourceParts "-";' "Dir::State::Lists \"$apt/lists\";" \
            "Dir::Cache \"$apt/cache\";" 'APT::Sandbox::User "";' >"$apt/conf"
        APT_CONFIG=$apt/conf apt-get update -qq && (cd "$sources" && APT_CONFIG=$apt/conf apt-get source -qq "${missing[@]}")
    } >"$sources/fetch.log" 2>&1 || { tail -n 20 "$sources/fetch.log" >&2; exit 3; }
}
