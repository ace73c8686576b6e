/* Chat templates: the input's last line is JSON of variables, the text before it the template. Rendering must end
 * within small limits, give valid UTF-8 in contiguous spans, and give the same again. */
#include "base/status.h"
#include "jinja/jinja.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_VARIABLES = 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_output(const qn_jinja_output *output, size_t most)
{
    size_t at = 0;
    if (output->length > most)
        abort();
    for (size_t i = 0; i < output->n_spans; i++) {
        if (output->spans[i].begin != at || output->spans[i].end <= at)
            abort();
        at = output->spans[i].end;
    }
    if (at != output->length)
        abort();
    for (size_t n; output->length && at > 0; at -= n) {
        uint32_t code;
        const size_t begin = output->length - at;
        if (qn_utf8_next(output->text + begin, at, &n, &code) != QN_UTF8_COMPLETE)
            abort();
    }
}

static bool is_equal(const qn_jinja_output *a, const qn_jinja_output *b)
{
    return a->length == b->length && a->n_spans == b->n_spans && (!a->length || !memcmp(a->text, b->text, a->length));
}

static bool visit(const char *text, size_t length, void *user)
{
    size_t *total = user;
    for (size_t i = 0; i < length; i++)
        *total += (unsigned char)text[i];
    return true;
}

static size_t read_variables(json_t *object, qn_jinja_variable *variables)
{
    size_t n = 0;
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        if (n < MAX_VARIABLES)
            variables[n++] = (qn_jinja_variable){ name, value, strstr(name, "_token") != NULL };
    }
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const qn_jinja_limits limits = { .steps = 100000, .memory = 16 << 20, .output = 1 << 20 };
    qn_jinja_variable variables[MAX_VARIABLES];
    qn_jinja_output first, second;
    qn_jinja *jinja;
    size_t length = size, total = 0;
    while (length > 0 && data[length - 1] != '\n')
        length--;
    if (qn_jinja_compile((const char *)data, length, &jinja) != QN_OK)
        return 0;
    json_t *object = json_loadb((const char *)data + length, size - length, JSON_ALLOW_NUL, NULL);
    const size_t n = read_variables(object, variables);
    qn_jinja_spells(jinja, visit, &total);
    const qn_status status = qn_jinja_render(jinja, variables, n, 1700000000, &limits, &first);
    if (status == QN_OK) {
        check_output(&first, limits.output);
        if (qn_jinja_render(jinja, variables, n, 1700000000, &limits, &second) != QN_OK || !is_equal(&first, &second))
            abort();
        qn_jinja_output_free(&second);
    } else if (!*qn_error_text() || first.text) {
        abort();
    }
    qn_jinja_output_free(&first);
    json_decref(object);
    qn_jinja_free(jinja);
    return 0;
}
