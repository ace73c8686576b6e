/* The interpreter of chat templates: golden texts that jinja2 gave (tools/compare_templates.py --write-golden), where
 * the bytes of a text come from, what errors name, and limits. */
#include "helper_assert.h"
#include "helper_time.h"
#include "helper_files.h"

#include "base/append.h"
#include "jinja/jinja.h"

#include <glob.h>

enum { MAX_VARIABLES = 20 };

static qn_status render_json(const char *source, size_t length, json_t *object, const qn_jinja_limits *limits,
                             qn_jinja_output *output)
{
    qn_jinja_variable variables[MAX_VARIABLES];
    qn_jinja *jinja;
    size_t n = 0;
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        assert_true(n < MAX_VARIABLES);
        variables[n++] = (qn_jinja_variable){ name, value, strstr(name, "_token") != NULL };
    }
    *output = (qn_jinja_output){ 0 };
    qn_status status = qn_jinja_compile(source, length, &jinja);
    if (status == QN_OK)
        status = qn_jinja_render(jinja, variables, n, 1700000000, limits, output);
    qn_jinja_free(jinja);
    return status;
}

/* Variables are JSON with ' for ". */
static qn_status render(const char *source, const char *variables, qn_jinja_output *output)
{
    char text[1000];
    assert_true(strlen(variables) < sizeof text);
    for (size_t i = 0; i <= strlen(variables); i++)
        text[i] = variables[i] == '\'' ? '"' : variables[i];
    json_t *object = json_loads(text, 0, NULL);
    assert_non_null(object);
    const qn_status status = render_json(source, strlen(source), object, NULL, output);
    json_decref(object);
    return status;
}

/* ---- Golden texts ---- */

static void check_line(const char *source, size_t length, const char *line, size_t n_line)
{
    json_t *example = json_loadb(line, n_line, JSON_ALLOW_NUL, NULL);
    assert_non_null(example);
    json_t *expected = json_object_get(example, "text");
    qn_jinja_output output;
    const qn_status status = render_json(source, length, json_object_get(example, "variables"), NULL, &output);
    if (json_is_null(expected)) {
        assert_int_equal(status, QN_ERR_INVALID);
    } else {
        assert_ok(status);
        assert_int_equal(output.length, json_string_length(expected));
        assert_memory_equal(output.text, json_string_value(expected), output.length);
    }
    qn_jinja_output_free(&output);
    json_decref(example);
}

static size_t check_file(const char *path)
{
    char lines_path[500];
    size_t length, n_lines, n = 0;
    label("%s", path);
    snprintf(lines_path, sizeof lines_path, "%.*s.jsonl", (int)(strlen(path) - strlen(".jinja")), path);
    char *source = read_file(path, &length), *lines = read_file(lines_path, &n_lines);
    for (char *line = lines, *end; (end = strchr(line, '\n')); line = end + 1, n++) {
        label("line %zu", n + 1);
        check_line(source, length, line, (size_t)(end - line));
    }
    free(source);
    free(lines);
    return n;
}

TEST(test_golden)
{
    glob_t files;
    assert_int_equal(glob(QN_SOURCE_DIR "/tests/golden/templates/*.jinja", 0, NULL, &files), 0);
    assert_true(files.gl_pathc >= 9);
    for (size_t i = 0; i < files.gl_pathc; i++)
        assert_true(check_file(files.gl_pathv[i]) >= 12);
    globfree(&files);
}

/* ---- Formats ---- */

/* What Python's str.format and % give; NULL: they refuse it. */
TEST(test_formats)
{
    static const struct {
        const char *expression, *text;
    } cases[] = {
        { "'{:012,}'.format(1234)", "0,000,001,234" },
        { "'{:012,}'.format(-1234)", "-000,001,234" },
        { "'{:+013,}'.format(1234)", "+0,000,001,234" },
        { "'{:0=12,}'.format(1234)", "0,000,001,234" },
        { "'{:05,}'.format(1234)", "1,234" },
        { "'{:06,}'.format(12)", "00,012" },
        { "'{:012,.2f}'.format(1234.5)", "0,001,234.50" },
        { "'{:08,%}'.format(1.5)", "150.000000%" },
        { "'{:012,}'.format(1e300)", "000,001e+300" },
        { "'{:0>12,}'.format(1234)", "00000001,234" },
        { "'{:>06,}'.format(12)", "000012" },
        { "'{:<05}'.format(7)", "70000" },
        { "'{:05}'.format('a')", "a0000" },
        { "'{:012,}'.format(1e308 * 10)", "000000000inf" },
        { "'{:,}'.format(1234567.25)", "1,234,567.25" },
        { "'{:,d}'.format(-1234567)", "-1,234,567" },
        { "'{:,x}'.format(305441741)", NULL },
        { "'{:,b}'.format(5)", NULL },
        { "'{:,}'.format('a')", NULL },
        { "'{:+}'.format('a')", NULL },
        { "'{:#}'.format('a')", NULL },
        { "'{:.3d}'.format(3)", NULL },
        { "'{:#010x}'.format(-255)", "-0x00000ff" },
        { "'{:=#12b}'.format(5)", "0b       101" },
        { "'%#010x' % 255", "0x000000ff" },
        { "'%+#010o' % 8", "+0o0000010" },
        { "'%#8.4x' % -255", " -0x00ff" },
        { "'%.100d' % 0 == '0' * 100", "True" },
        { "'%2.0c' % 'x'", " x" },
        { "'{!a:>8}'.format(e)", "  '\\xe9'" },
        { "'{!r}{!s}'.format(e, e)", "'\xc3\xa9'\xc3\xa9" },
        { "'{!b}'.format(e)", NULL },
        { "'{0[1]} {0[0]}'.format(l)", "20 10" },
        { "'{0[a][0]}'.format(d)", "7" },
        { "'{0[a}'.format(d)", NULL },
        { "'{0[a]b}'.format(d)", NULL },
        { "'{0[a]b[0]}'.format(d)", NULL },
        { "'{0.}'.format(d)", NULL },
        { "'{0[]}'.format(d)", NULL },
        { "'{0[a].}'.format(d)", NULL },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char source[200];
        qn_jinja_output output;
        label("%s", cases[i].expression);
        snprintf(source, sizeof source, "{{ %s }}", cases[i].expression);
        const qn_status status = render(source, "{'l': [10, 20], 'd': {'a': [7]}, 'e': '\xc3\xa9'}", &output);
        assert_int_equal(status, cases[i].text ? QN_OK : QN_ERR_INVALID);
        if (cases[i].text)
            assert_string_equal(output.text, cases[i].text);
        qn_jinja_output_free(&output);
    }
}

/* An index that no list has is undefined, as in jinja2. */
TEST(test_large_index)
{
    qn_jinja_output output;
    assert_ok(render("{{ '[{0[2]}{0[4294967297]}{0[99999999999999999999]}]'.format([1, 2]) }}", "{}", &output));
    assert_string_equal(output.text, "[]");
    qn_jinja_output_free(&output);
}

/* The longest number that a format gives: 309 digits, 102 commas, a point, 100 places. */
TEST(test_longest_number)
{
    qn_jinja_output output;
    assert_ok(render("{{ '{:+,.100f}'.format(1e308) }}", "{}", &output));
    assert_int_equal(output.length, 1 + 309 + 102 + 1 + 100);
    assert_int_equal(strncmp(output.text, "+100,000,", 9), 0);
    qn_jinja_output_free(&output);
    assert_ok(render("{{ '{:,.100%}'.format(-1.7e306) }}", "{}", &output));
    assert_int_equal(output.length, 1 + 309 + 102 + 1 + 100 + 1);
    assert_int_equal(strncmp(output.text, "-169,999,", 9), 0);
    qn_jinja_output_free(&output);
    assert_ok(render("{{ '{:010000,}'.format(1) }}", "{}", &output));
    assert_int_equal(output.length, 10001); /* not a comma first */
    assert_int_equal(strncmp(output.text, "0,000,", 6), 0);
    qn_jinja_output_free(&output);
}

/* ---- Spans ---- */

/* What the spans that are the template's hold, with | after each. */
static void assert_template_spans(const char *source, const char *variables, const char *expected)
{
    qn_jinja_output output;
    char found[500] = "";
    size_t at = 0;
    qn_text_buffer text = QN_APPEND_TO(found);
    label("%s", source);
    assert_ok(render(source, variables, &output));
    for (size_t i = 0; i < output.n_spans; i++) {
        const qn_jinja_span *s = &output.spans[i];
        assert_int_equal(s->begin, at);
        assert_true(s->end > s->begin);
        at = s->end;
        if (s->from_template)
            qn_append(&text, "%.*s|", (int)(s->end - s->begin), output.text + s->begin);
    }
    assert_int_equal(at, output.length);
    assert_string_equal(found, expected);
    qn_jinja_output_free(&output);
}

TEST(test_spans)
{
    static const char *const v = "{'s': '<|x|>', 'l': ['<|x|>'], 'd': {'<|x|>': 1}, 'bos_token': '<s>'}";
    assert_template_spans("<|a|>{{ s }}<|b|>", v, "<|a|>|<|b|>|");
    assert_template_spans("{{ bos_token + s + '<|b|>' }}", v, "<s>|<|b|>|");
    assert_template_spans("{{ ('<|a|>' ~ s)[2:9] }}", v, "a|>|");
    assert_template_spans("{{ (s ~ '<|b|>') | replace('x', 'y') }}", v, "y|<|b|>|");
    assert_template_spans("{{ s | upper ~ '<|b|>' | upper }}", v, "<|B|>|");
    assert_template_spans("{{ l | join('<|b|>') }}{{ l | tojson }}{{ l }}", v, "");
    assert_template_spans("{{ (l + l) | join('<|b|>') }}", v, "<|b|>|");
    assert_template_spans("{{ d | tojson }}{{ d.keys() | first }}{{ d | items | list }}", v, "");
    assert_template_spans("{{ '<|%s|>' % s }}{{ '[{}]'.format(s) }}", v, "<|||>[|]|");
    assert_template_spans(
        "{% set b %}<|a|>{{ s }}{% endset %}{{ b | trim }}{% macro m(p) %}{{ p }}<|b|>{% endmacro %}{{ m(s) }}", v,
        "<|a|>|<|b|>|");
    assert_template_spans("{{ s.split('|')[1] ~ s[::-1] ~ s.center(7, '*') }}", v, "*|*|");
    assert_template_spans("{{ '<' ~ s | length ~ '>' }}", v, "<5>|");
}

/* ---- What templates seldom do: texts that jinja2 gives ---- */

TEST(test_rare)
{
    static const struct {
        const char *source, *text;
    } cases[] = {
        { "{{ strftime_now('%Y|%Z|%z|%f|%%f') }}", "2023|||000000|%f" },
        { "{{ '\u00b2'.isdigit() }} {{ '\u00b2'.isdecimal() }} {{ '\u0664\u0662'|int }} {{ '\u0661.\u0665'|float }}",
          "True False 42 1.5" },
        { "{{ {}[] is defined }} {{ {(): 1}[] }} {{ {(1, 2): 3}[1, 2] }} {{ d[1:, 'a'] }}|{{ 'abcdef'[1:][::2] }}",
          "False 1 3 |bdf" },
        { "{{ {'b': 5}['ab'[1:]] }} {{ {('b', 2): 6}['ab'[1:], 2] }} {{ 'abc'['ab'|length:] }}", "5 6 c" },
        { "{{ lipsum is defined }} {{ joiner is defined }} {{ cycler is defined }}", "True True True" },
        { "{{ d.keys() == {'b': 0, 'a': 1}.keys() }} {{ d.items() == {'a': 1, 'b': 2}.items() }} {{ d.keys() == "
          "d.values() }}",
          "True True False" },
        { "{% macro f(x, y=1) %}{% endmacro %}{{ f.name }} {{ f.arguments }}", "f ('x', 'y')" },
        { "{{ 'a-b-c'.rpartition('-') }} {{ 'abc'.rpartition('-') }}", "('a-b', '-', 'c') ('', '', 'abc')" },
        { "{{ '-7'.zfill(4) }} {{ '7'.zfill(3) }} {{ 'abc'.zfill(2) }} {{ '+'.zfill(3) }}", "-007 007 abc +00" },
        { "{{ 'aB \u00c4\u00df'.swapcase() }}", "Ab \u00e4SS" },
        { "{{ 'foo bar baz qux'|truncate(9) }}|{{ 'foo bar baz qux'|truncate(9, true) }}|{{ 'foo bar baz "
          "qux'|truncate(11) }}|{{ 'foo bar baz qux'|truncate(11, false, '..', 0) }}|{{ (1, 2)|truncate(7, true) }}",
          "foo...|foo ba...|foo bar baz qux|foo bar..|(1, 2)" },
        { "{{ 'a b/\u00e4&'|urlencode }} {{ {'a b': '/x', 'c': 1}|urlencode }} {{ 5|urlencode }} {{ "
          "namespace(a=1)|urlencode }}",
          "a%20b/%C3%A4%26 a+b=%2Fx&c=1 5 %3CNamespace%20%7B%27a%27%3A%201%7D%3E" },
        { "{{ range(7)|slice(3)|list }} {{ range(7)|slice(3, 'x')|list }}",
          "[[0, 1, 2], [3, 4], [5, 6]] [[0, 1, 2], [3, 4, 'x'], [5, 6, 'x']]" },
        { "{% for g in l|groupby('k') %}{{ g.grouper }}:{{ g.list|map(attribute='v')|join(',') }};{% endfor %}{% for "
          "k, v in l|groupby('k', case_sensitive=true) %}{{ k }}{{ v|length }}{% endfor %}",
          "A:1,3;b:2;A1a1b1" },
        { "{{ l|groupby('x', default=0)|length }} {{ l[:1]|groupby('k') }}", "1 [('A', [{'k': 'A', 'v': 1}])]" },
        { "{{ 0 }} {{ 00_0 }} {{ 01.5 }} {{ [7].0 }}", "0 0 1.5 7" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_jinja_output output;
        label("%s", cases[i].source);
        assert_ok(render(cases[i].source,
                         "{'d': {'a': 1, 'b': 2}, 'l': [{'k': 'A', 'v': 1}, {'k': 'b', 'v': 2}, {'k': 'a', 'v': 3}]}",
                         &output));
        assert_string_equal(output.text, cases[i].text);
        qn_jinja_output_free(&output);
    }
}

/* ---- Errors ---- */

TEST(test_errors)
{
    static const struct {
        const char *source, *text;
    } cases[] = {
        { "a\n{{ x.y }}", "line 2, 'x.y': 'x' is undefined" },
        { "a\n\n{{ 1 + 'b' }}", "line 3, '1 + 'b'': int + str is not possible" },
        { "{% for x in 5 %}{% endfor %}", "line 1, '5': int cannot be iterated" },
        { "{{ s | nope }}", "line 1, 's | nope': there is no filter 'nope'" },
        { "{{ s is nope }}", "there is no test 'nope'" },
        { "{{ s.append(1) }}", "'append' is undefined" },
        { "{{ raise_exception('No ' ~ s) }}", "No text" },
        { "a\n{% if x %}", "line 2: the template ends" },
        { "{% endif %}", "line 1: 'endif'" },
        { "a\n{{ 'b }}", "line 2: a string has no end" },
        { "{{ (1 }}", "line 1" },
        { "a {# b", "line 1: a comment has no end" },
        { "{{ 9223372036854775807 + 1 }}", "more than 64 bits" },
        { "{{ 99999999999999999999 }}", "64 bits" },
        { "{{ 017 }}", "line 1: an integer begins with 0" },
        { "{{ 0_1 }}", "line 1: an integer begins with 0" },
        { "{{ cycler(1) }}", "are not supported" },
        { "{{ s[,1] }}", "a subscript" },
        { "{{ s[1,] }}", "line 1" },
        { "\xff", "not valid UTF-8" },
        { "{% break %}", "line 1" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_jinja_output output;
        label("%s", cases[i].source);
        assert_int_not_equal(render(cases[i].source, "{'s': 'text'}", &output), QN_OK);
        assert_text(cases[i].text);
        assert_null(output.text);
    }
}

/* ---- Limits ---- */

/* A rendering within limits that are a tenth of the defaults ends soon, with an error that says why. */
static void assert_limited(const char *source, json_t *variables, const char *text)
{
    enum { MOST_SECONDS = 5 }; /* much more than it takes, for slow machines and sanitizers */
    const qn_jinja_limits limits = { .steps = 2000000, .memory = 50 << 20, .output = 5 << 20 };
    qn_jinja_output output;
    const double begin = cpu_seconds();
    label("%.60s", source);
    assert_fails(render_json(source, strlen(source), variables, &limits, &output), QN_ERR_INVALID, text);
    assert_true(cpu_seconds() - begin < MOST_SECONDS);
}

TEST(test_limits)
{
    static const char *const loops = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}";
    json_t *variables = json_pack("{s:[i,i]}", "xs", 1, 2);
    assert_limited(loops, variables, "more steps than are allowed");
    assert_limited("{{ range(1000000000) | length }}", variables, "a range of more than");
    assert_limited("{{ 'x' * 10000000000 }}", variables, "more steps than are allowed");
    assert_limited("{{ ('x' * 60000000) | length }}", variables, "that a template may use");
    assert_limited("{{ xs * 4611686018427387904 }}", variables, "more steps than are allowed");
    assert_limited("{% set t = 'x' * 1000000 %}{% for a in range(100) %}{{ t }}{% endfor %}", variables,
                   "the output is longer than");
    assert_limited("{% set n = namespace(t='x') %}{% for a in range(100) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
                   variables, "that a template may use");
    assert_limited("{% set n = namespace(t='x') %}{% for a in range(90000) %}{% set n.t = n.t ~ 'x' %}{% endfor %}",
                   variables, "");
    assert_limited("{% set n = namespace(t=[1]) %}{% for a in range(90000) %}{% set n.t = n.t + [1] %}{% endfor %}",
                   variables, "more steps than are allowed");
    assert_limited("{% set n = namespace(t=[]) %}{% for a in range(90000) %}{% set n.t = [n.t] %}{% endfor %}",
                   variables, "nested");
    assert_limited("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", variables, "nested deeper than");
    assert_limited("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
                   variables, "that a template may use");
    assert_limited("{{ '%*d' % (1000000000, 1) }}", variables, "a width or precision above");
    assert_limited("{{ '{:1000000000}'.format(1) }}", variables, "not supported");
    assert_limited("{{ 'x'.center(1000000000) | length }}", variables, "");
    assert_limited("{{ xs | batch(1000000000, 'x') | list | length }}", variables, "");
    assert_limited("{{ xs | tojson(indent=1000000000) }}", variables, "");
    assert_limited("{{ ('a' * 100000).replace('', 'b' * 100000) }}", variables, "");
    assert_limited("{% set l = ('a ' * 20000).split() %}{{ l | select('in', l | map('upper') | list) | list }}",
                   variables, "more steps than are allowed");
    /* Two values whose parts are the same two lists, and so on: 2^60 parts to compare. */
    static const char *const pairs =
        "{%% set n = namespace(a=(1,), b=(1,)) %%}{%% for i in range(60) %%}{%% set n.a = (n.a, n.a) %%}"
        "{%% set n.b = (n.b, n.b) %%}{%% endfor %%}{{ %s }}";
    static const char *const compared[] = { "n.a == n.b",       "n.a < n.b",        "n.a in [n.b]",
                                            "{n.a: 1}",         "{}.get(n.a)",      "{1: 2}[n.a]",
                                            "[n.a, n.b]|sort",  "[n.a, n.b]|max",   "[n.a]|unique|list",
                                            "[n.a].index(n.b)", "[n.a].count(n.b)", "n.a is eq(n.b)",
                                            "n.a is gt(n.b)",   "n.a in {}",        "dict([(n.a, 1)])" };
    for (size_t i = 0; i < COUNT(compared); i++) {
        char source[300];
        snprintf(source, sizeof source, pairs, compared[i]);
        assert_limited(source, variables, "more steps than are allowed");
    }
    assert_limited(
        "{% set n = namespace(a=[1]) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}{% endfor %}{{ n.a }}",
        variables, "more steps than are allowed");
    assert_limited("{% set a = 'x' * 1000000 %}{% set b = a ~ '' %}{% for i in range(99999) %}{% if a == b %}{% endif "
                   "%}{% endfor %}",
                   variables, "more steps than are allowed");
    json_decref(variables);
}

/* Calls of a macro with many parameters, and more names than a template may have. */
static void assert_limited_calls(void)
{
    enum { MANY = 900, TOO_MANY = 2000, CALLS = 20000, BYTES = 400000 };
    static const char call[] = "{{m()}}";
    char *source = malloc(BYTES), *at = source;
    qn_jinja_output output;
    assert_non_null(source);
    at += sprintf(at, "{%% macro m(");
    for (int i = 0; i < MANY; i++)
        at += sprintf(at, "p%d=1,", i);
    at += sprintf(at - 1, ") %%}{%% endmacro %%}") - 1;
    for (int i = 0; i < CALLS; i++)
        at = stpcpy(at, call);
    assert_limited(source, NULL, "more steps than are allowed");
    at = source;
    for (int i = 0; i < TOO_MANY; i++)
        at += sprintf(at, "{{x%d}}", i);
    assert_fails(render_json(source, strlen(source), NULL, NULL, &output), QN_ERR_INVALID, "more than 1000 names");
    free(source);
}

TEST(test_nesting)
{
    enum { DEEP = 100000 };
    static const char *const pairs[][3] = {
        { "{{ ", "(", " }}" },      { "{{ ", "[", " }}" },    { "{{ ", "not ", "1 }}" },
        { "{{ ", "-", "1 }}" },     { "", "{% if 1 %}", "" }, { "{{ x", ".y", " }}" },
        { "{{ x", "|list", " }}" }, { "{{ 1", "+1", " }}" },  { "{{ 1", " if 1 else 1", " }}" },
    };
    for (size_t i = 0; i < COUNT(pairs); i++) {
        const size_t n = strlen(pairs[i][1]);
        char *source = malloc(100 + DEEP * n), *at = source;
        label("%s", pairs[i][1]);
        assert_non_null(source);
        at = stpcpy(at, pairs[i][0]);
        for (int k = 0; k < DEEP; k++)
            at = stpcpy(at, pairs[i][1]);
        strcpy(at, pairs[i][2]);
        qn_jinja_output output;
        assert_int_not_equal(render_json(source, strlen(source), NULL, NULL, &output), QN_OK);
        free(source);
    }
    assert_limited_calls();
    json_t *deep = json_array();
    for (int k = 0; k < 1000; k++)
        deep = json_pack("[o]", deep);
    json_t *variables = json_pack("{s:o}", "deep", deep);
    assert_limited("{{ deep }}", variables, "nested");
    json_decref(variables);
}

int main(void)
{
    setenv("TZ", "UTC", 1);
    return run_all_tests();
}
