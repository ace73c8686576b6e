#!/usr/bin/env bash
# The source tarball: make dist in two clones, with other paths, times, time zones, umasks and settings of git, gives the same bytes;
# names, owners, modes and times are as stated in tools/make_dist.sh; what is not committed is refused or left out. The places that state
# the version agree. Nothing is compiled.
set -eu
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
die() {
    echo "test_dist: $*"
    exit 1
}
quiet() { "$@" >"$top/log" 2>&1 || { cat "$top/log"; die "$1 failed"; }; }
command -v git >/dev/null || { echo "test_dist: skipped: no git"; exit 77; }
# make is called as a user calls it, not as a part of the make or git that runs this test.
export -n MAKEFLAGS MAKELEVEL BUILD
unset "${!GIT_@}"
export GIT_CONFIG_GLOBAL="$top/gitconfig" GIT_AUTHOR_DATE='2026-02-03 04:05:06 +0000' GIT_COMMITTER_DATE='2026-02-03 04:05:06 +0000'
printf '[user]\nname = test\nemail = test@localhost\n[init]\ndefaultBranch = main\n[safe]\ndirectory = *\n' >"$GIT_CONFIG_GLOBAL"

# A repository of one commit, with the files that git would take here; in an unpacked tarball, with all but what was built.
mkdir "$top/origin"
if [ -e "$QN_SOURCE_DIR/.git" ]; then
    git -C "$QN_SOURCE_DIR" ls-files -z --cached --others --exclude-standard |
        tar -C "$QN_SOURCE_DIR" --ignore-failed-read --null -T - -c | tar -C "$top/origin" -x
else
    tar -C "$QN_SOURCE_DIR" --exclude='./build*' --exclude=__pycache__ -c . | tar -C "$top/origin" -x
fi
git -C "$top/origin" init -q
quiet git -C "$top/origin" add --all --force
quiet git -C "$top/origin" commit -m test

one="$top/a clone" two="$top/other/place/two"
(umask 022 && quiet git clone -q "$top/origin" "$one")
(umask 077 && quiet git clone -q "$top/origin" "$two")
git -C "$two" config tar.umask user
git -C "$two" config core.autocrlf input
find "$two" -path "$two/.git" -prune -o -type f -exec touch -d '2001-02-03 04:05:06' {} +
(umask 022 && TZ=UTC quiet make -C "$one" dist && cp "$top/log" "$top/said")
# A file that git does not track is left out, with a note.
echo >"$two/forgotten.c"
(umask 077 && TZ=Asia/Tokyo LC_ALL=C GZIP=-1 quiet make -C "$two" dist BUILD=out)
grep -qx forgotten.c "$top/log" || die "no note about a file that git does not track: $(cat "$top/log")"
version=$(sed -n 's/^project(quern VERSION \([0-9.]*\).*/\1/p' "$QN_SOURCE_DIR/CMakeLists.txt")
tarball=$one/build/quern-$version.tar.gz
cmp "$tarball" "$two/out/quern-$version.tar.gz" || die "two clones of one commit give different tarballs"
grep -q "^$(sha256sum <"$tarball" | cut -d ' ' -f 1) " "$top/said" || die "make dist did not print the SHA-256 of the tarball: $(cat "$top/said")"

git -C "$one" ls-tree -r --name-only HEAD | sed "s|^|quern-$version/|" >"$top/names"
tar -tzf "$tarball" >"$top/entries"
grep -v '/$' "$top/entries" >"$top/packed"
diff "$top/names" "$top/packed" || die "files of the commit (<) and of the tarball (>) differ"
[ -z "$(grep -v "^quern-$version/" "$top/entries")" ] || die "names outside quern-$version/"
TZ=UTC tar -tvzf "$tarball" --numeric-owner --full-time |
    awk '$1 !~ /^(-rw-r--r--|-rwxr-xr-x|drwxr-xr-x|lrwxrwxrwx)$/ || $2 != "0/0" || $4 " " $5 != "2026-02-03 04:05:06"' >"$top/odd"
[ ! -s "$top/odd" ] || die "a mode, owner or time: $(head -n 3 "$top/odd")"

# A change that is not committed is refused, and so is a folder without a commit.
echo >>"$one/README.md"
refused() {
    ! "$@" >"$top/log" 2>&1 || die "make dist was to fail"
    grep -q "$expected" "$top/log" || die "expected '$expected': $(cat "$top/log")"
}
expected='M README.md' refused make -C "$one" dist
mkdir "$top/plain"
tar -C "$top/plain" -xzf "$tarball"
expected='not a git clone' refused make -C "$top/plain/quern-$version" dist

# The version stands in CMakeLists.txt. Texts that state the newest release: the changelogs, and the soname in names of packages.
agrees() { [ "$2" = "$3" ] || die "$1 has '$2', expected '$3' from CMakeLists.txt"; }
case $version in
0.*) soname=${version%.*} ;;
*) soname=${version%%.*} ;;
esac
cd "$QN_SOURCE_DIR"
agrees "the newest release of CHANGELOG.md" "$(sed -n 's/^## \[\([0-9.]*\)\] - [0-9]*-[0-9]*-[0-9]*$/\1/p' CHANGELOG.md | head -n 1)" "$version"
agrees "the tarball of docs/install.md" "$(grep -o 'quern-[0-9.]*[0-9]\.tar\.gz' docs/install.md | sort -u)" "quern-$version.tar.gz"
agrees "the soname of docs/library.md" "$(grep -o 'libquern\.so\.[0-9.]*[0-9]' docs/library.md | sort -u)" "libquern.so.$soname"
agrees "debian/changelog" "$(sed -n '1s/^quern (\([0-9.]*\)-[0-9]*) .*/\1/p' debian/changelog)" "$version"
agrees "debian/control" "$(sed -n 's/^Package: libquern\([0-9.]*\)$/\1/p' debian/control)" "$soname"
agrees "the names of the symbols files" "$(cd debian && echo libquern*.symbols)" "libquern-kernels$soname.symbols libquern$soname.symbols"
agrees "the kernels' package of debian/control" "$(sed -n 's/^Package: libquern-kernels\([0-9.]*\)$/\1/p' debian/control)" "$soname"
agrees "the first line of debian/libquern-kernels$soname.symbols" "$(head -n 1 "debian/libquern-kernels$soname.symbols")" \
    "libquern-kernels.so.$soname libquern-kernels$soname #MINVER#"
agrees "the first line of debian/libquern$soname.symbols" "$(head -n 1 "debian/libquern$soname.symbols")" "libquern.so.$soname libquern$soname #MINVER#"
agrees "quern --version" "$("$QN_BIN/quern" --version | head -n 1)" "quern $version"
