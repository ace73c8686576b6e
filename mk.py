#!/usr/bin/env python3
# mk.py NAME files... : snapshot with global numbering; .c files condensed
import sys,re
name,files=sys.argv[1],sys.argv[2:]
root='/work/w-prose1/'
full=[];show=[]
n=0
idx=[]
for f in files:
    lines=open(root+f).read().split('\n')
    if lines and lines[-1]=='': lines.pop()
    idx.append((n+1,len(lines),f))
    keep=[False]*len(lines)
    if f.endswith('.c'):
        inc=False
        for i,l in enumerate(lines):
            c=False
            if inc:
                c=True
                if '*/' in l: inc=False
            elif '/*' in l and not re.search(r'"[^"]*/\*[^"]*"',l):
                c=True
                if '*/' not in l[l.index('/*'):]: inc=True
            elif f.endswith('.js'): pass
            if c:
                if '----' in l: keep[i]=True; continue
                for k in range(i-1,i+7):
                    if 0<=k<len(lines): keep[k]=True
            if re.search(r'"[^"]* [^"]* [^"]*"',l): 
                keep[i]=True
            if len(l)>120: keep[i]=True
            if l.startswith('#include'): keep[i]=False
    else: keep=[True]*len(lines)
    show.append('==== '+f)
    gap=False
    for i,l in enumerate(lines):
        n+=1
        if keep[i]:
            show.append(f'{n}\t{l}'); gap=False
        elif not gap:
            if l.strip(): show.append('..'); gap=True
import json
json.dump(idx,open(f'/tmp/p1/{name}.idx','w'))
import os
open(f'/tmp/p1/{name}.txt','w').write('\n'.join(show)+'\n')
snap={f:open(root+f).read() for _,_,f in idx}
json.dump(snap,open(f'/tmp/p1/{name}.snap','w'))
print(name,len('\n'.join(show)),n)
