/* Sampling of bench-serve's requests: members of their bodies, from the options. */
#include "cli/bench_serve.h"

#include "gguf/json_decode.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SCHEMA = 1 << 24 };

/* Returns a number as written, 0.8, although the nearest float is 0.800000012. A new reference. */
static json_t *decimal(float value)
{
    char text[32];
    snprintf(text, sizeof text, "%.7g", (double)value);
    return json_real(strtod(text, NULL));
}

/* Members that are not sent have the server's defaults. */
static bool set_sampling(json_t *to, const qn_args *args)
{
    const struct {
        const char *name;
        size_t offset;
        float value;
    } numbers[] = { { "top_p", offsetof(qn_args, sampling.top_p), args->sampling.top_p },
                    { "min_p", offsetof(qn_args, sampling.min_p), args->sampling.min_p } };
    bool ok = json_object_set_new(to, "temperature", decimal(args->sampling.temperature)) == 0;
    for (size_t i = 0; ok && i < sizeof numbers / sizeof *numbers; i++)
        if (qn_args_has(args, numbers[i].offset))
            ok = json_object_set_new(to, numbers[i].name, decimal(numbers[i].value)) == 0;
    if (ok && qn_args_has(args, offsetof(qn_args, sampling.top_k)))
        ok = json_object_set_new(to, "top_k", json_integer(args->sampling.top_k)) == 0;
    /* JSON integers are signed: a seed of 2^63 or more is sent as the negative number with the same bits. */
    if (ok && qn_args_has_sampling(args))
        ok = json_object_set_new(to, "seed", json_integer((json_int_t)args->sampling.seed)) == 0;
    return ok;
}

static json_t *read_schema(const char *value)
{
    const char *name;
    char *text;
    size_t length;
    json_error_t error;
    if (!qn_read_option("--json-schema", value, qn_is_json_object(value), MAX_SCHEMA, &text, &length, &name))
        return NULL;
    json_t *schema = qn_json_load(text, length, JSON_DECODE_ANY, 0, &error);
    free(text);
    if (!schema)
        qn_cli_error("%s:%d:%d: %s", name, error.line, error.column, error.text);
    else if (!json_is_object(schema))
        qn_cli_error("%s: expected a JSON schema, which is an object", name);
    if (json_is_object(schema))
        return schema;
    json_decref(schema);
    return NULL;
}

bool qn_bench_serve_take_sampling(qn_bench_serve_target *target, const qn_args *args)
{
    target->sampling = json_object();
    bool ok = target->sampling && set_sampling(target->sampling, args);
    if (ok && args->json_schema) {
        json_t *schema = read_schema(args->json_schema);
        if (!schema)
            return false;
        target->format = json_pack("{s:s, s:{s:s, s:b, s:o}}", "type", "json_schema", "json_schema", "name", "schema",
                                   "strict", 1, "schema", schema);
        ok = target->format != NULL;
    }
    if (!ok)
        qn_cli_error("no memory for requests");
    return ok;
}
