"""A grammar of the chat templates that quern supports, from which compare_templates.py draws templates.

A nonterminal `$name` has alternatives, one a line. Below a depth of bodies or of expressions it is expanded by its short alternatives,
`name0`, where they exist. An alternative that begins with `@loop`, `@macro` is drawn only in a loop, after a macro. Left out: integers above 64
bits, recursive loops, what prints an address, and `wordwrap`, `urlize` and their like, which no chat template uses.
"""
import random
import re

MAX_DEPTH = {"body": 3, "expression": 2}
LEVELS = {"body": "body", "loop_body": "body", "macro_body": "body",
          **{name: "expression" for name in ("any", "string", "int", "number", "list", "dict", "bool")}}

GRAMMAR = {
    "template": "{% set ns = namespace(x=1, y='q') %}$body$ws\n$macros{% set ns = namespace(x=1) %}$body$eof\n$body$eof",
    "macros": "$macro\n$macro$macro",
    "eof": "\n\\n\n\\n\\n\n\\r\\n\n ",
    "body": "$ws$statement$ws\n$ws$statement$ws$statement$ws\n$ws$print$ws$statement$ws$statement$ws",
    "body0": "$ws$print$ws\nx\n",
    "ws": "\n\n\n \n\\n\n\\n  \n  \\n\\t\n\\r\\n\nx \ntext\\n\n<|im_start|>\n\\n\\n \n\u00a0\\n\n{ } %",
    "a": "\n\n\n-\n-\n+",
    "z": "\n\n\n-\n-\n+",
    "p": "\n\n-",
    "print": "{{$p $any $p}}\n{{$p $string $p}}\n{{$p $any }}\n{{+ $string }}",
    "statement": "$print\n$print\n$print\n$if\n$if\n$for\n$for\n$set\n$set\n$other",
    "statement0": "$print",
    "if": "{%$a if $bool $z%}$body{%$a endif $z%}\n{%$a if $bool $z%}$body{%$a else $z%}$body{%$a endif $z%}\n"
          "{%$a if $bool $z%}$body{%$a elif $bool $z%}$body{%$a else $z%}$body{%$a endif $z%}\n"
          "{%$a if $any $z%}$body{%$a elif $any $z%}$body{%$a endif $z%}",
    "for": "{%$a for $item in $list $z%}$loop_body{%$a endfor $z%}\n{%$a for $item in $any $z%}$loop_body{%$a endfor $z%}\n"
           "{%$a for $item in $list if $bool $z%}$loop_body{%$a endfor $z%}\n"
           "{%$a for m in messages if m.role == 'user' $z%}{{ m.content }}$loop_body{%$a endfor $z%}\n"
           "{%$a for k, v in $pairs $z%}{{ k }}={{ v }}$loop_body{%$a endfor $z%}\n"
           "{%$a for $item in $list $z%}$loop_body{%$a else $z%}$body{%$a endfor $z%}\n"
           "{%$a for $item in $list $z%}{% if $bool %}{% break %}{% endif %}$loop_body{%$a else $z%}none{%$a endfor $z%}",
    "item": "x\nm\na",
    "pairs": "($dict).items()\n$dict|items\n$dict|dictsort\n[(1, 2), ('a', $any)]\nd.items()",
    "loop_body": "$body\n$body$loop_part\n$loop_part\n$body{%$a if $bool $z%}{% break %}{%$a endif $z%}x\n"
                 "{%$a if $bool $z%}{% continue %}{%$a endif $z%}$body",
    "loop_part": "{{ loop.index }}{{ x }}\n{{ loop.index0 }}/{{ loop.length }}\n{% if loop.first %}F{% endif %}\n"
                 "{% if not loop.last %}, {% endif %}\n{{ loop.previtem }}\n{{ loop.nextitem is defined }}\n"
                 "{% if loop.previtem is defined and loop.previtem == x %}={% endif %}\n{{ loop.nextitem if not loop.last }}\n"
                 "{{ loop.revindex }}{{ loop.depth }}\n{{ loop.cycle('a', $any) }}\n{{ loop.changed($any) }}\n"
                 "{{ loop.changed(x) }}{{ x }}\n{% set ns.x = ns.x ~ loop.index %}\n{% set a = x %}{{ a }}\n{{ loop }}",
    "set": "{%$a set $name = $any $z%}\n{%$a set $name = $string $z%}\n{%$a set $name = $list $z%}\n"
           "{%$a set ns.x = $any $z%}{{ ns.x }}\n{%$a set ns.y = ns.y ~ $string $z%}\n"
           "{%$a set $name $z%}$body{%$a endset $z%}{{ $name }}\n{%$a set $name | $block_filter $z%}$body{%$a endset $z%}\n"
           "{%$a set y, z = $any, $any $z%}{{ y }}{{ z }}\n{%$a set y, z = $list $z%}",
    "name": "a\ns\ny\nz\nn\nx",
    "block_filter": "upper\ntrim\nindent(2)\nreplace('a', 'b')\nlower | trim\ntojson\nlength\ne",
    "other": "$macro\n@macro {%$a call $call $z%}$body{%$a endcall $z%}\n@macro {%$a call(u) $call $z%}{{ u }}{%$a endcall $z%}\n"
             "{%$a filter $block_filter $z%}$body{%$a endfilter $z%}\n{%$a generation $z%}$body{%$a endgeneration $z%}\n"
             "{%$a raw $z%}{{ x }} {% y$ws{%$a endraw $z%}\n{# c #}\n$ws{#- c\\n-#}$ws\n{#+ c +#}\n"
             "{%$a with w = $any $z%}$body{{ w }}{%$a endwith $z%}\n{%$a with s = $string, x = s $z%}{{ s }}{{ x }}$body{%$a endwith $z%}\n"
             "{{ raise_exception($string) if $bool }}\n{%$a if $bool $z%}{{ raise_exception('no ' ~ $any) }}{%$a endif $z%}\n"
             "{{ d.pop($string) if false }}\n{{ xs.append($any) if $bool }}\n{%$a if $bool $z%}{{ s|nope }}{%$a endif $z%}\n{%$a if $bool $z%}{{ d|items.x }}{%$a endif $z%}\n"
             "{{ xs.pop() if false else 'kept' }}\n{% if d.update is defined %}u{% endif %}\n@macro {{ $call }}\n"
             "{{ 'x' if false else s }}{% if false %}{{ xs.append(1) }}{{ d.pop('k') }}{% endif %}",
    "macro": "{%$a macro $macro_name() $z%}$macro_body{%$a endmacro $z%}\n"
             "{%$a macro $macro_name(p) $z%}$macro_body{{ p }}{%$a endmacro $z%}\n"
             "{%$a macro $macro_name(p, q=$any) $z%}{{ p }}$macro_body{{ q }}{%$a endmacro $z%}\n"
             "{%$a macro $macro_name(p=$string, q=p) $z%}{{ q }}{%$a endmacro $z%}\n"
             "{%$a macro $macro_name(p) $z%}{{ caller() if caller else p }}{%$a endmacro $z%}\n"
             "{%$a macro $macro_name(p) $z%}{{ varargs }}{{ kwargs }}{{ caller(p) }}{%$a endmacro $z%}\n"
             "{%$a macro $macro_name() $z%}{{ varargs|length }}{{ kwargs.z }}{%$a endmacro $z%}",
    "macro_name": "m0\nm1\nm2",
    "call": "$macro_name()\n$macro_name($any)\n$macro_name($string, $any)\n$macro_name(q=$any)\n$macro_name($string, q=$any)\n"
            "$macro_name($any, $any, z=$any)\n$macro_name(*$list)\n$macro_name(**{'q': $any})",
    "any": "$string\n$string\n$int\n$number\n$list\n$dict\n$bool\n$any0\n@macro $call\n$list|first\n$list|last\n$list|min\n$list|max\n"
           "$any if $bool\n$any if $bool else $any\n$any or $any\n$any and $any\n($list)[$int]\n($dict)[$string]\n$any|default($any)\n"
           "$any|default($any, true)\n$number|round\n($number|abs ** $int0)\n[$int, $number]|sum\n$string|from_json\n$list|attr('k')",
    "any0": "none\nundef\nd.nope\nd\na\nb\nxs\nmessages\ns\nd['k']\nxs[0]\nxs[-1]\nxs[99]\nns.x\nx\nm\nTrue\nNone\nundef.x\nf\n"
            "@loop loop.index\nd.n.z\nmessages[0]",
    "text": "''\n'a'\n'Hello World'\n\"it's\"\n'a,b,,c'\n'  pad '\n'x\\\\ny\\\\r\\\\n'\n'\u00e4\u00df\U0001f389'\n'<|im_start|>'\n'1'\n"
            "'2.5'\n'a\\\\\\\\b'\n'\\\\u00e9\\\\t'\n'&<>'\n'ABC def'\n'a-b (c) [d'\n'\u01c6 \u0130\u03a3'\n'\\\\x00\\\\x7f'\n' 12 '\n'[1, {\"a\": null}]'\n'e'",
    "string0": "$text\n$text\ns\nmessages[0].content\nmessages[0]['role']\nd.k\nt",
    "string": "$string0\n$string0\n($string + $string)\n($string ~ $any)\n$any ~ $any ~ $any\n$string|upper\n$string|lower\n$string|trim\n"
              "$any|string\n$string|title\n$string|capitalize\n$string|reverse\n$any|trim\n$string|safe\n$string|safe ~ $string\n"
              "$string|e\n$string|replace($text, $any)\n$string|replace($text, $text, 1)\n$string|indent\n$string|indent($int0)\n"
              "$string|indent(2, first=true)\n$string|indent(4, true, true)\n$string|indent(width='> ', blank=true)\n$string|center(9)\n"
              "$any|tojson\n$any|tojson(indent=$indent)\n$any|tojson(ensure_ascii=true)\n$any|tojson(separators=(',', ':'))\n"
              "$dict|tojson(sort_keys=true)\n$any|tojson|safe\n$list|join\n$list|join($text)\n$list|join(', ')\n"
              "messages|join('|', attribute='role')\n$string * $int0\n$string|default('q')\n$string if $bool else $string\n"
              "($string).strip()\n($string).strip($text)\n($string).lstrip()\n($string).lstrip(' H')\n($string).rstrip('\\\\n')\n"
              "($string).rstrip('dl')\n($string).upper()\n($string).lower()\n($string).title()\n($string).capitalize()\n"
              "($string).replace($text, $text)\n($string).replace('', $text, 2)\n($string).replace($string, $string)\n"
              "($string)[$slice]\n($string)[$int]\n($string)[::-1]\n($string)[:-1]\n($string).split($separator)[0]\n"
              "($string).split($text)[-1]\n($string).rsplit(',', 1)[-1]\n($string).split(',', 1)|last\n($string).partition('l')[0]\n"
              "($string).splitlines()|join('/')\n($string).removeprefix('a')\n($string).removesuffix($text)\n"
              "($string).ljust(8, '.')\n($string).rjust(6)\n($string).center(7, '*')\n', '.join($list|map('string')|list)\n"
              "$text.join($list|map('string'))\n$string|safe|replace($text, $text)\n($string|safe).replace($text, $text)\n$list|join($text|safe)\n"
              "($string|safe)[$slice]\n($string|safe).strip()\n$percent\n$percent\n$braces\n$braces\n$text|format($any, $any)\n"
              "strftime_now('%Y-%m-%d %B')\nstrftime_now('%d %b %Y%Z%f')\n$string|truncate(7)\n$string|truncate($int0, true, $text, 0)\n"
              "$any|urlencode\n$dict|urlencode\n($string).rpartition($text)|join('/')\n($string).zfill($int0)\n($string).swapcase()",
    "indent": "none\n2\n4\n0\n1",
    "separator": "\n','\n' '\nnone\n'l'",
    "percent": "'%s|%5s|%-4s|' % ($string, $any, $any)\n'%d %05.1f %x' % ($int, $number, $int)\n'%r %a' % ($any, $string)\n"
               "'%(k)s' % d\n'%s' % $string\n'%.3s|%c|%%' % ($string, $int0)\n'%+d % d %#x %#o' % ($int, $int, $int, $int)\n"
               "'%e %G %.3g' % ($number, $number, $number)\n'%-8.2f|%08d' % ($number, $int)\n'%i %s' % ($any, $any)\n"
               "$text % $any\n('%s' % $string)|safe\n('<%s>'|safe) % $string\n'%*d' % (5, $int)\n'%.*f' % (2, $number)",
    "braces": "'{}-{a}'.format($any, a=$any)\n'{0} {1!r}'.format($string, $any)\n'{:>8}|{:<5}|{:^7}'.format($string, $string, $string)\n"
              "'{:05d} {:x} {:,} {:b}'.format($int, $int, $int, $int)\n'{:.2f} {:e} {:g}'.format($number, $number, $number)\n"
              "'{{}} {}'.format($any)\n'{:*^9}'.format($any)\n'{0[0]} {a.k}'.format($list, a=d)\n"
              "'{:+} {: }'.format($number, $int)\n'{:%}'.format($number)\n'{!s:.2}'.format($any)\n"
              "$text.format($any)\n('<{}>'|safe).format($string)\n'{:010.3f}'.format($number)",
    "slice": "$index:$index\n$index:$index:$step\n::-1\n$index:\n:$index\n:\n-2:\n1:-1",
    "index": "\n1\n-1\n2\n-2\n0\nnone\n$int0\n3\nn",
    "step": "\n1\n-1\n2\n-2\n-3",
    "int0": "0\n1\n2\n-1\n7\n10\nn\n1_000\n0x1f\n0b101\n-3\ntrue",
    "int": "$int0\n$int0\n$int0\n($int + $int)\n($int - $int)\n($int0 * $int0)\n($int // $divisor)\n($int % $divisor)\n"
           "$list|length\n$string|length\n$list|count\n$any|length\n$string|int\n$number|int\n'x'|int($int0)\n'0x1f'|int(0, 16)\n"
           "'1_0'|int\n$int|abs\n(2 ** $exponent)\n($string).find($text)\n($string).rfind($text)\n($string).count('a')\n"
           "[3, 1, 2]|min\n[3, 1, 2]|max\n[3, 1, 2]|sum\nmessages|length\n($list).index($any)\n($list).count($any)\n$string|wordcount\n+$int\n-$int",
    "divisor": "2\n3\n-3\n7\n$int0",
    "exponent": "0\n3\n5\n-1",
    "number": "$int\n$float\n$float\n($int / $divisor)\n($float + $int)\n($float * $float)\n($float - $float)\n($float // $divisor)\n"
              "($float % $divisor)\n$float|round(1)\n$float|round(2, 'floor')\n$float|round(0, 'ceil')\n$float|round(-1)\n$string|float\n"
              "-$number\n$float|abs\n'1e3'|float\n($float|abs ** 2)",
    "number0": "$float\n$int0",
    "float": "1.5\n0.1\n1e3\n2.50\n1e-7\n123456789.125\nf\n1e16\n1e22\n2.567\n-1.5\n2.5\n0.125\n3.0\n0.30000000000000004\n1e15\n"
             "123456789012345680.0\n5e-5\n0.0001\n-0.0\n1_0.5",
    "list0": "xs\nmessages\n[1, 2, 3]\n['b', 'A', 'c', 'a']\n[]\n[3, 1, 2]\n(1, 'a')\n['a', none, 1.0]\nrange(4)\n"
             "[{'k': 2, 'v': 'x'}, {'k': 1, 'v': 'Y'}]\n[true, 1, 1.0, 'x']\n(1,)\n('B', 'b', 'a')\n[[2], [1, 5]]",
    "list": "$list0\n$list0\n$list0\n[$any]\n[$any, $any]\n[$string, $string, $string]\n($any, $any)\n($list + $list)\n($list)[$slice]\n"
            "($list)[::-1]\n($string).split($separator)\n$list|list\n$list|sort\n$list|sort(reverse=true)\n$list|sort(case_sensitive=true)\n"
            "[$string, $string, $string]|sort\n$list|unique|list\n$list|unique(true)|list\n[$string, $string, $string]|unique|list\n"
            "$list|map('upper')|list\n$list|map('string')|list\n$list|map('length')|list\n$list|map('tojson')|list\n"
            "$list|map('default', 'q')|list\n$list|map('int')|list\nmessages|map(attribute='role')|list\n"
            "messages|map(attribute='nope', default='q')|list\nmessages|map(attribute='content')|list\n"
            "$dicts|selectattr('k')|list\n$dicts|selectattr('k', 'defined')|list\n$dicts|selectattr('k', 'equalto', 2)|list\n"
            "messages|selectattr('role', 'equalto', 'user')|list\n$dicts|rejectattr('v', 'string')|list\n$dicts|rejectattr('k')|list\n"
            "$dicts|rejectattr('k', 'eq', $any)|list\n$dicts|sort(attribute='k')\n$dicts|sort(attribute='v')\n"
            "$dicts|sort(attribute='k,v')\n$dicts|unique(attribute='v')|list\n$list|select|list\n$list|select('string')|list\n"
            "$list|select('odd')|list\n$list|select('in', $list)|list\n$list|reject|list\n$list|reject('none')|list\n"
            "$list|reject('string')|list\n$list|reject('equalto', $any)|list\n$dict|dictsort\n$dict|dictsort(by='value')\n"
            "$dict|dictsort(true, reverse=true)\n$dict|items|list\n($dict).items()|list\n($dict).keys()|list\n($dict).values()|list\n"
            "$list|reverse|list\n$string|list\n$dict|list\nrange($int0)|list\nrange(1, 4)|list\nrange(5, $int0, -2)|list\n"
            "$list|slice(2)|list\n$list|slice(3, '-')|list\n$dicts|groupby('k')\n$dicts|groupby('v', default=$any)|map(attribute='list')|list\n"
            "$dicts|groupby('v', case_sensitive=true)|map(attribute='grouper')|list\n$list|batch(2)|list\n$list|batch(3, '-')|list\n'[1, {\"a\": null}, 2.50, \"\\\\u00e9\"]'|from_json\n$list * 2\n"
            "($string).splitlines()\n$list|map('trim')|list\n[$number, $number, $int]|sort\n[$list, $list]|sort",
    "dicts": "[{'k': 2, 'v': 'x'}, {'k': 1, 'v': 'Y'}, {'v': 0}]\nmessages\n[{'k': 'B', 'v': 'x'}, {'k': 'a', 'v': 'X'}]\n"
             "[{'k': $any, 'v': $string}, {'k': $any, 'v': $string}]",
    "dict0": "d\nmessages[0]\n{}\n{'b': 1, 'a': [2]}\n{'k': 'v', 'n': none, 't': true}\ndict(x=1, y='z')\n{'B': 1, 'a': 2, 'c': 0}",
    "dict": "$dict0\n$dict0\n{$string: $any}\n{$text: $any, $text: $any}\n{1: $any, true: $any, none: $any}\n{'a': $dict, 'l': $list}\n"
            "dict(d, z=$any)\n'{\"b\": 1e2, \"a\": [true, -0.0]}'|from_json\nnamespace(k=$any)",
    "bool0": "true\nfalse\nb\nnot b\nnone\nundef is defined\nx is defined\ns is string\nn is number\nxs",
    "bool": "$bool0\n$int < $number\n$int <= $number\n$int > $number\n$int >= $number\n$int == $number\n$string == $string\n"
            "$string != $string\n$string < $string\n$any == $any\n$any != $any\n$list < $list\n1 < $int < 5\n$string in $string\n"
            "$string not in $string\n$any in $list\n$any not in $list\n$string in $dict\n$text in d\n$bool and $bool\n$bool or $bool\n"
            "not $bool\nnot ($any)\n$any is defined\n$any is not defined\n$any is undefined\n$any is none\n$any is not none\n"
            "$any is string\n$any is not string\n$any is mapping\n$any is iterable\n$any is sequence\n$any is true\n$any is false\n"
            "$any is boolean\n$any is number\n$any is integer\n$any is float\n$any is callable\n$int is odd\n$int is even\n"
            "$int is divisibleby 3\n$int is divisibleby($int0)\n$any is equalto $any0\n$any is eq(1)\n$any is ne('a')\n$any is sameas none\n"
            "$string is in $list\n$any is in($list)\n$string is lower\n$string is upper\n$any is escaped\n($string).startswith($text)\n"
            "($string).endswith($text)\n($string).startswith(('a', 'H'))\n($string).isdigit()\n($string).isdecimal()\n($dict).keys() == ($dict).keys()\n($dict).items() == d.items()\n($string).isalpha()\n($string).isspace()\n"
            "($string).isupper()\n($string).islower()\n($string).isalnum()\nd.get($text, $any)\n($dict).get('k')\n$int is gt($int)\n"
            "$any is lt 2\n'upper' is filter\n'nope' is test\n$list|length > 1\nmessages[-1].role == 'user'\nmessages[0].role == 'system'",
}

ALTERNATIVES = {name: [line.replace("\\r", "\r").replace("\\n", "\n").replace("\\t", "\t").replace("\0", "\\")
                       for line in text.replace("\\\\", "\0").split("\n")] for name, text in GRAMMAR.items()}
for alias in ("macro_body",):
    ALTERNATIVES[alias] = ALTERNATIVES["body"]
IN_LOOP = {"loop_body": True, "macro": False}  # whether `loop` and `break` are available in them


class Generator:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.in_loop = self.has_macros = False
        self.depth = {"body": 0, "expression": 0}

    def choose(self, name):
        level = "expression" if LEVELS.get(name) == "expression" else "body"
        short = name + "0"
        choices = ALTERNATIVES[short if self.depth[level] >= MAX_DEPTH[level] and short in ALTERNATIVES else name]
        while True:
            text = self.random.choice(choices)
            if not text.startswith("@"):
                return text
            need, text = text.split(" ", 1)
            if self.in_loop if need == "@loop" else self.has_macros:
                return text

    def expand(self, name):
        """A text of the nonterminal."""
        parts = re.split(r"\$([a-z_]+0?)", self.choose(name))
        outside, level = self.in_loop, LEVELS.get(name)
        self.in_loop = IN_LOOP.get(name, outside)
        if level:
            self.depth[level] += 1
        for i in range(1, len(parts), 2):
            parts[i] = self.expand(parts[i])
        if level:
            self.depth[level] -= 1
        self.in_loop = outside
        self.has_macros |= name == "macro"
        return "".join(parts)

    def template(self):
        return self.expand("template")


# Each feature and how a use of it looks in a template.
FEATURES = {
    "if": r"\{%[-+]? if ", "elif": r"\{%[-+]? elif ", "else": r"\{%[-+]? else ", "for": r"\{%[-+]? for ", "for with if": r"for \w+ in [^%]* if ",
    "for with names": r"for \w, \w in ", "for-else": r"%\}none\{%", "set": r"set \w+ =", "set block": r"set \w [-+]?%\}", "set of a namespace": r"set ns\.",
    "macro": r"\{%[-+]? macro ", "macro defaults": r"macro \w+\([^)]*=", "break": r"\{% break", "continue": r"\{% continue", "filter block": r"\{%[-+]? filter ",
    "generation": r"\{%[-+]? generation ", "inline if": r"\{\{[^}]* if ", "slice": r"\[[^],']*:", "slice reversed": r"\[::-1\]", "negative index": r"\[-\d\]",
    "~": r" ~ ", "in": r" in \w", "not in": r" not in ", "list": r"[\s(]\[", "dict": r"\{'", "tuple": r"\(1, 'a'\)|\(1,\)",
    "raw": r" raw ", "comment": r"\{#", "call": r"\{%[-+]? call", "with": r"\{%[-+]? with", "strip before": r"\{%-", "strip after": r"-%\}",
    "keep before": r"\{%\+", "keep after": r"\+%\}", "varargs": r"varargs", "kwargs": r"kwargs", "caller": r"caller\(",
    **{f"loop.{name}": rf"loop\.{name}\b" for name in "first last index index0 previtem nextitem cycle changed length".split()},
    **{f"filter {name}": rf"\|\s?{name}\b" for name in
       "tojson length trim string items default join list safe selectattr rejectattr map reject upper lower from_json dictsort min "
       "indent unique replace sort int max select float round abs e title capitalize first last reverse sum batch format".split()},
    **{f"test {name}": rf"is (not )?{name}\b|'{name}'" for name in
       "defined undefined none string mapping iterable sequence true false boolean equalto".split()},
    **{f"function {name}": rf"\b{name}\(" for name in "namespace raise_exception strftime_now range".split()},
    **{f"method {name}": rf"\.{name}\(" for name in
       "split strip lstrip rstrip startswith endswith replace items get pop append format join keys upper".split()},
    "%": r"' % ", "tojson(indent)": r"tojson\(indent=",
}
FEATURE_PATTERNS = {name: re.compile(pattern) for name, pattern in FEATURES.items()}
