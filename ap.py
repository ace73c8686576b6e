#!/usr/bin/env python3
# ap.py NAME: apply /tmp/p1/NAME.ed.  Blocks: "@A" or "@A-B" then text lines until next "@" directive => replace lines (empty: delete)
# "~L|old|new" substitution on line L.  "+L" insert text after line L.
import sys,json,re
name=sys.argv[1]; edf=sys.argv[2] if len(sys.argv)>2 else f'/tmp/p1/{name}.ed'
root='/work/w-prose1/'
idx=json.load(open(f'/tmp/p1/{name}.idx')); snap=json.load(open(f'/tmp/p1/{name}.snap'))
files={f:snap[f].split('\n') for _,_,f in idx}
def where(g):
    for s,c,f in idx:
        if s<=g<s+c: return f,g-s
    raise SystemExit(f'no line {g}')
ops={}
cur=None;bad=False
for raw in open(edf).read().split('\n'):
    m=re.match(r'^@(\d+)(?:-(\d+))?$',raw)
    p=re.match(r'^\+(\d+)$',raw)
    if m:
        a=int(m[1]);b=int(m[2] or m[1]); f,i=where(a);f2,j=where(b)
        if f!=f2: print('cross file',raw);bad=True
        cur=['r',i,j,[]];ops.setdefault(f,[]).append(cur)
    elif p:
        f,i=where(int(p[1]));cur=['i',i+1,i,[]];ops.setdefault(f,[]).append(cur)
    elif raw.startswith('~'):
        q=raw[1:].split('|') if raw[-1]!='¦' else None
        L,old,new=int(q[0]),q[1],q[2] if len(q)>2 else ''
        f,i=where(L)
        if old not in files[f][i]: print('not found',raw,'::',files[f][i]);bad=True
        ops.setdefault(f,[]).append(['s',i,i,(old,new)]);cur=None
    elif cur is not None: cur[3].append(raw)
    elif raw.strip(): print('stray',raw);bad=True
if bad: raise SystemExit(1)
for f,l in ops.items():
    now=open(root+f).read()
    if now!=snap[f]: print('changed since snapshot',f);raise SystemExit(1)
    L=files[f]
    # substitutions first on original lines
    used=set()
    for o in l:
        if o[0]=='s': L[o[1]]=L[o[1]].replace(o[3][0],o[3][1],1)
        elif o[0]=='r':
            for k in range(o[1],o[2]+1):
                if k in used: print('overlap',f,k);raise SystemExit(1)
                used.add(k)
    for o in sorted([o for o in l if o[0]!='s'],key=lambda o:(-o[1],o[0])):
        t=o[3]
        while t and t[-1]=='': t.pop()
        t=['' if x=='.' else x for x in t]
        if o[0]=='r': L[o[1]:o[2]+1]=t
        else: L[o[1]:o[1]]=t
    open(root+f,'w').write('\n'.join(L))
    for k,x in enumerate(L):
        if len(x)>120: print(f'{f}:{k+1} {len(x)}')
print('ok',len(ops),'files')
