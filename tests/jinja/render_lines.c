/* Renders templates for a comparison with jinja2: reads lines of JSON {"template": text, "variables": {...}, "now":
 * seconds} and prints for each one line, {"text": ..., "spans": [[begin, end, from_template], ...]} or {"error": ...}.
 * Variables whose names end in "_token" count as the template's own. */
#include "jinja/jinja.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VARIABLES = 100 };

static size_t read_variables(json_t *object, qn_jinja_variable *variables)
{
    size_t n = 0;
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        const size_t length = strlen(name);
        if (n < MAX_VARIABLES)
            variables[n++] = (qn_jinja_variable){ name, value, length > 6 && !strcmp(name + length - 6, "_token") };
    }
    return n;
}

static json_t *failed(void)
{
    return json_pack("{s:s}", "error", qn_error_text());
}

static json_t *render(json_t *line)
{
    qn_jinja_variable variables[MAX_VARIABLES];
    qn_jinja_output output;
    qn_jinja *jinja;
    json_t *template = json_object_get(line, "template");
    if (qn_jinja_compile(json_string_value(template), json_string_length(template), &jinja))
        return failed();
    const size_t n = read_variables(json_object_get(line, "variables"), variables);
    const qn_status status =
        qn_jinja_render(jinja, variables, n, json_integer_value(json_object_get(line, "now")), NULL, &output);
    qn_jinja_free(jinja);
    if (status)
        return failed();
    json_t *spans = json_array(), *result = json_object();
    for (size_t i = 0; i < output.n_spans; i++)
        json_array_append_new(spans, json_pack("[I,I,b]", (json_int_t)output.spans[i].begin,
                                               (json_int_t)output.spans[i].end, output.spans[i].from_template));
    json_object_set_new(result, "text", json_stringn(output.text, output.length));
    json_object_set_new(result, "spans", spans);
    qn_jinja_output_free(&output);
    return result;
}

int main(void)
{
    char *text = NULL;
    size_t capacity = 0;
    ssize_t n;
    while ((n = getline(&text, &capacity, stdin)) > 0) {
        json_t *line = json_loadb(text, (size_t)n, JSON_ALLOW_NUL, NULL), *result = line ? render(line) : NULL;
        if (!result) {
            fprintf(stderr, "render_lines: not a line of JSON\n");
            return 1;
        }
        json_dumpf(result, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(result);
        json_decref(line);
    }
    free(text);
    return 0;
}
