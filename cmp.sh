#!/bin/bash
# cmp.sh files.. : code without comments the same as main:FILE (renames via /tmp/p1/ren.sed on the old)
cd /work/w-prose1
B=$(git merge-base main HEAD)
touch /tmp/p1/ren.sed
for f in "$@"; do
 case $f in *.c|*.h) ;; *) continue;; esac
 git show $B:$f | gcc -fpreprocessed -dD -E -P -w -x c - 2>/dev/null | sed -E -f /tmp/p1/ren.sed | tr -d ' \t\n\\' > /tmp/p1/a.$$
 gcc -fpreprocessed -dD -E -P -w -x c $f | tr -d ' \t\n\\' > /tmp/p1/b.$$
 if ! cmp -s /tmp/p1/a.$$ /tmp/p1/b.$$; then echo "DIFF $f"; 
  diff <(sed 's/[;{}]/&\n/g' /tmp/p1/a.$$) <(sed 's/[;{}]/&\n/g' /tmp/p1/b.$$) | head -${N:-12}; fi
done
