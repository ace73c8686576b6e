#!/bin/bash
cd /work/w-prose1
clang-format-14 -i --style="{BasedOnStyle: InheritParentConfig, ColumnLimit: 120}" "$@"
awk 'length($0)>120 {print FILENAME":"FNR": "length($0)}' "$@"
