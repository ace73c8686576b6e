/* Hostile templates: what can be done to a long text, a list or a dict, over and over, ends at the limit of steps
 * within a time that grows with that limit alone. With QN_SOAK the limit is the default one, and each time is
 * printed. */
#include "helper_assert.h"
#include "helper_sanitizers.h"
#include "helper_time.h"

#include "jinja/jinja.h"

/* s, t, w: long texts of letters, of a long match's beginnings, and of white space; u beyond ASCII; n digits; l a list
 * of texts, m of numbers, d a dict, f a float of many digits. x differs in each iteration of the loop. */
#define BEFORE                                                                                                         \
    "{% set s = 'a' * 1000000 %}{% set t = 'a' * 500000 ~ 'b' %}{% set w = ' ' * 1000000 %}{% set u = '\u00e4' * "     \
    "500000 %}"                                                                                                        \
    "{% set n = '1' * 1000000 %}{% set l = ['ab', 'c'] * 10000 %}{% set m = [0.1] * 10000 %}{% set f = 0.1 + 0.2 %}"   \
    "{% set d = dict(range(10000, 30000)|map('string')|batch(2)|list) %}{% set k = 'c' * 300 ~ 'd' ~ 'c' * 300 %}"     \
    "{% set c = 'c' * 1000000 %}{% set p = ('c' * 100 ~ 'd') * 10000 %}{% set q = '<' * 300000 %}"

static const char *const expressions[] = {
    /* What a review found: single ones that took minutes. */
    "s.rfind(t)",
    "s.rindex('a' * 999999 ~ 'b')",
    "(s ~ s).strip('b' * 2000000 ~ 'a')",
    "u.strip('b' * 100000 ~ '\u00e4')",
    "c.rsplit(k)",
    "p.rfind(k)",
    "p.find(k)",
    "k in p",
    "p.count(k)",
    "p.replace(k, '')",
    "p.split(k)",
    "p.partition(k)",
    "p.find('c' * 8 ~ 'd' ~ 'c' * 7)",
    "c.find('c' * 7 ~ 'd' ~ 'c' * 8)",
    "c.rfind('c' * 7 ~ 'd' ~ 'c' * 8)",
    "c.find('d' ~ 'c' * 15)",
    "c.count('cc')",
    "c.count('')",
    "c.replace('ccc', 'dd')",
    "c.find('c' * 128 ~ 'd' ~ 'c' * 127)",
    /* Methods of strings. */
    "s.split()",
    "s.split('b')",
    "s.split('a')",
    "s.split('b', 1)",
    "s.rsplit()",
    "s.rsplit('b')",
    "s.rsplit('b', 1)",
    "w.split()",
    "w.rsplit()",
    "s.splitlines()",
    "('a\\n' * 300000).splitlines()",
    "s.partition('b')",
    "s.rpartition('b')",
    "w.strip()",
    "w.lstrip()",
    "w.rstrip()",
    "s.strip('a')",
    "u.strip('\u00e4')",
    "s.removeprefix(s ~ '')",
    "s.removesuffix(s ~ '')",
    "s.startswith(s ~ '')",
    "s.endswith(s ~ '')",
    "s.startswith('a', 500000)",
    "s.startswith((s ~ '', s ~ ''))",
    "s.replace('b', '')",
    "s.replace('a', 'b')",
    "s.replace('', 'b')",
    "s.upper()",
    "s.lower()",
    "u.upper()",
    "s.title()",
    "s.capitalize()",
    "s.swapcase()",
    "s.casefold()",
    "('\u03a3' * 500000).lower()",
    "s.find('b')",
    "s.find('a', 999999)",
    "s.rfind('b')",
    "s.index('a', -1)",
    "u.find('\u00e4', 499999)",
    "s.count('a')",
    "s.join(l)",
    "''.join(l)",
    "s.format(1)",
    "('{}' * 100000).format(*l)",
    "'{}'.format(s)",
    "'{:.1}'.format(s)",
    "'{0[a]}'.format(d)",
    "('{x}' * 10000).format(**{'x': s})",
    "s.ljust(100000)",
    "'a'.rjust(100000)",
    "'a'.center(100000)",
    "'1'.zfill(100000)",
    "s.isdigit()",
    "n.isdigit()",
    "n.isdecimal()",
    "n.isnumeric()",
    "s.isalpha()",
    "u.isalpha()",
    "s.isalnum()",
    "w.isspace()",
    "s.isupper()",
    "s.islower()",
    "u.islower()",
    /* Operators, items, slices. */
    "s in s",
    "'b' in s",
    "s == s ~ ''",
    "s < s ~ ''",
    "s ~ s",
    "s + s",
    "'a' * 1000000",
    "'ab' * 1000000",
    "[1] * 100000",
    "s[999999]",
    "s[-1]",
    "u[250000]",
    "s[1:]",
    "s[::-1]",
    "u[:-1]",
    "l[1:]",
    "l[::-1]",
    "l + l",
    "'x' in l",
    "0.5 in m",
    "d[s]",
    "d.a",
    "d.get(s)",
    "{s: 1}",
    "'%s' % s",
    "'%.1s' % s",
    "'%r' % s",
    "'%a' % u",
    "s % ()",
    "'%10000d' % 1",
    "'%.100f' % 1e308",
    "'%.100e' % 5e-324",
    "'%(a)s' % {'a': s}",
    "f ~ ''",
    "5e-324 ~ ''",
    "[f] ~ ''",
    "[f]|tojson",
    "m ~ ''",
    "l ~ ''",
    "d ~ ''",
    /* Filters. */
    "s|string",
    "s|upper",
    "s|lower",
    "s|capitalize",
    "s|title",
    "('a ' * 300000)|title",
    "w|trim",
    "s|trim('a')",
    "s|replace('b', '')",
    "s|indent",
    "('a\\n' * 300000)|indent(100, true)",
    "s|escape",
    "q|escape",
    "q|forceescape",
    "s|safe ~ q",
    "s|center(100000)",
    "s|format",
    "'%s'|format(s)",
    "s|wordcount",
    "u|wordcount",
    "s|tojson",
    "('\\x01' * 300000)|tojson",
    "l|tojson(indent=100)",
    "l|tojson(separators=(s, s))",
    "d|tojson(sort_keys=true)",
    "('[' ~ '1,' * 300000 ~ '1]')|from_json",
    "n|int",
    "w|int",
    "('1' * 120)|int",
    "n|float",
    "w|float",
    "('1' * 390)|float",
    "'1e-320'|float",
    "f|round(17)",
    "1e22|round(17)",
    "s|length",
    "u|length",
    "s|first",
    "s|last",
    "l|first",
    "l|list",
    "s|list",
    "l|reverse|list",
    "s|reverse",
    "l|join",
    "l|join(s)",
    "l|join(attribute='a.b')",
    "d|items|list",
    "l|map('upper')|list",
    "l|map(attribute='x')|list",
    "l|map(attribute='x.x.x.x.x.x.x.x', default='a')|list",
    "l|select|list",
    "l|reject('in', 'abc')|list",
    "l|selectattr('x')|list",
    "l|sort",
    "m|sort",
    "d|dictsort",
    "l|min",
    "m|max",
    "m|sum",
    "l|unique|list",
    "l|batch(3)|list",
    "l|slice(3)|list",
    "l|groupby('x')",
    "l|groupby(attribute=0)",
    "d|attr('a')",
    "s|truncate(10)",
    "w|truncate(900000)",
    "s|truncate(900000)",
    "s|urlencode",
    "u|urlencode",
    "d|urlencode",
    "s|striptags",
    "q|striptags",
    "('<b>' * 200000)|striptags",
    "('<!--' * 200000)|striptags",
    "s|wordwrap(79)",
    "('a ' * 300000)|wordwrap(10)",
    "('a-' * 300000)|wordwrap(10)",
    "w|wordwrap(79)",
    "s|default(1)",
    /* Tests, functions, methods of others. */
    "s is lower",
    "s is upper",
    "u is lower",
    "s is eq(s ~ '')",
    "s is sameas(s ~ '')",
    "'b' is in(s)",
    "s is filter",
    "s is test",
    "s is string",
    "range(100000)|list",
    "dict(d)",
    "dict(**d)",
    "namespace(**d)",
    "d.copy()",
    "d.items()|list",
    "d.keys() == d.keys()",
    "l.index('x')",
    "l.count('x')",
    "strftime_now('%A' * 100)",
    "loop.changed(s, i)",
    "loop.cycle(*l)",
    "cycler(*l).next()",
    /* Long texts that are made in the loop differ from those that are known. */
    "(s ~ i)|lower",
    "(s ~ i).isalpha()",
    "(s ~ i).split('b')",
    "(s ~ i)|length",
    "(w ~ i)|trim",
};

/* Whether it ends with an error or a text does not matter. */
static double time_of(const char *source, uint64_t steps)
{
    const qn_jinja_limits limits = { .steps = steps };
    qn_jinja_output output = { 0 };
    qn_jinja *jinja;
    const double begin = cpu_seconds();
    const qn_status status = qn_jinja_compile(source, strlen(source), &jinja);
    if (status == QN_OK)
        (void)qn_jinja_render(jinja, NULL, 0, 0, &limits, &output);
    qn_jinja_output_free(&output);
    qn_jinja_free(jinja);
    return cpu_seconds() - begin;
}

static double most_of(uint64_t steps)
{
    const double standard_steps = 20e6, most = 4, start = 0.3; /* start: of what is done before the limit is reached */
    return ((double)steps / standard_steps * most + start) * (QN_TEST_SANITIZED ? 10 : 1);
}

static int n_slow;

static void check(const char *source, const char *name, uint64_t steps)
{
    label("%s", name);
    const double spent = time_of(source, steps);
    if (steps == 0)
        printf("%7.3f s  %s\n", spent, name);
    if (spent > most_of(steps ? steps : 20000000)) {
        print_error("%s: %.2f s of processor time\n", name, spent);
        n_slow++;
    }
}

TEST(test_expressions)
{
    enum { FEW = 500000 };
    const uint64_t steps = getenv("QN_SOAK") ? 0 : FEW;
    qn_jinja *jinja;
    qn_jinja_output output;
    assert_ok(qn_jinja_compile(BEFORE, sizeof BEFORE - 1, &jinja));
    assert_ok(qn_jinja_render(jinja, NULL, 0, 0, NULL, &output));
    qn_jinja_output_free(&output);
    qn_jinja_free(jinja);
    for (size_t i = 0; i < COUNT(expressions); i++) {
        char source[2000];
        snprintf(source, sizeof source,
                 "%s{%% for i in range(3000) %%}{%% for j in range(100) %%}{%% if %s %%}{%% endif %%}{%% endfor %%}{%% "
                 "endfor %%}",
                 BEFORE, expressions[i]);
        check(source, expressions[i], steps);
    }
    assert_int_equal(n_slow, 0);
}

/* Statements: names through many scopes, calls with many arguments, what is printed. */
TEST(test_statements)
{
    enum { FEW = 500000, NESTED = 140 };
    static const char *const sources[] = {
        "{% macro m(a, b, c) %}{{ a }}{% endmacro %}{% for i in range(90000) %}{{ m(1, 2, c=3) }}{% endfor %}",
        ("{% macro m() %}{{ kwargs|length }}{% endmacro %}{% set d = namespace(d={}) %}{% for i in range(3000) %}"
         "{% set d.d = dict(d.d, **{'k' ~ i: i}) %}{% endfor %}{% for i in range(90000) %}{{ m(**d.d) }}{% endfor %}"),
        "{% set d = dict(range(3000)|map('string')|map('center', 1000)|map('batch', 1, 'x')|map('list')) %}{{ m(**d) "
        "}}",
        "{% for i in range(90000) %}{% for j in range(90000) %}{{ 0.1 + 0.2 }}{% endfor %}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(90000) %}{% set x %}{{ s }}{% endset %}{% endfor %}",
        "{% for i in range(90000) %}{% for j in range(90000) %}{{ loop.depth0 }}{% endfor %}{% endfor %}",
        "{% for i in range(90000) %}{% for j in range(90000) %}{{ range }}{% endfor %}{% endfor %}",
        "{% for i in range(90000) %}{% for j in range(90000) if j is odd %}{{ j|d }}{% endfor %}{% endfor %}",
        "{% for i in range(90000) %}{% for j in range(90000) %}{% if 1|attr('x') %}{% endif %}{% endfor %}{% endfor %}",
    };
    char source[20000], *at = source;
    const uint64_t steps = getenv("QN_SOAK") ? 0 : FEW;
    for (size_t i = 0; i < COUNT(sources); i++)
        check(sources[i], sources[i], steps);
    for (int i = 0; i < NESTED; i++)
        at = stpcpy(at, "{% with %}");
    at = stpcpy(
        at, "{% for i in range(90000) %}{% for j in range(90000) %}{% if range %}{% endif %}{% endfor %}{% endfor %}");
    for (int i = 0; i < NESTED; i++)
        at = stpcpy(at, "{% endwith %}");
    check(source, "names through many scopes", steps);
    assert_int_equal(n_slow, 0);
}
