/* How the JSON values of rewritten schemas are made. A failed allocation is noted in a step counter, since a schema
 * that lacks a keyword is another schema. */
#include "grammar/schema_merge.h"

#include "base/status.h"

qn_status qn_schema_no_memory(void)
{
    return qn_fail(QN_ERR_MEMORY, "schema: no memory");
}

json_t *qn_schema_made(json_t *value, uint64_t *steps)
{
    if (!value)
        *steps = QN_SCHEMA_NO_MEMORY;
    return value;
}

json_t *qn_schema_copy(json_t *value)
{
    json_t *copy = json_copy(value);
    if (json_object_size(copy) == json_object_size(value) && json_array_size(copy) == json_array_size(value))
        return copy;
    json_decref(copy);
    return NULL;
}

void qn_schema_add(json_t *list, json_t *value, uint64_t *steps)
{
    if (json_array_append_new(list, value))
        *steps = QN_SCHEMA_NO_MEMORY;
}

void qn_schema_add_all(json_t *list, json_t *values, uint64_t *steps)
{
    if (json_array_extend(list, values))
        *steps = QN_SCHEMA_NO_MEMORY;
}

void qn_schema_put(json_t *object, const char *key, json_t *value, uint64_t *steps)
{
    if (json_object_set_new_nocheck(object, key, value))
        *steps = QN_SCHEMA_NO_MEMORY;
}
