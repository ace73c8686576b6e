/* Hash tables of key and tensor names, which keep validation linear for a file with millions of them; names and
 * sizes of value types. */
#include "gguf/file.h"

#include "base/keyed_hash.h"
#include "base/memory.h"

#include <string.h>

static const qn_string *item_at(const struct qn_name_table *table, size_t index)
{
    return (const void *)((const char *)table->items + index * table->stride);
}

/* Returns the slot of a name, or the empty slot where it would be inserted. At most half of the slots are in use. */
static size_t *slot_of(const struct qn_name_table *table, const char *name, size_t length)
{
    for (size_t i = (size_t)qn_keyed_hash(name, length);; i++) {
        size_t *slot = &table->slots[i & table->mask];
        if (*slot == 0)
            return slot;
        const qn_string *other = item_at(table, *slot - 1);
        if (other->length == length && memcmp(other->data, name, length) == 0)
            return slot;
    }
}

qn_status qn_name_table_build(struct qn_name_table *table, const void *items, size_t count, size_t stride,
                              size_t *duplicate)
{
    size_t size = 16;
    while (size / 2 < count)
        size *= 2;
    *table = (struct qn_name_table){ .items = items, .stride = stride, .mask = size - 1 };
    QN_TRY(qn_alloc(&table->slots, size, sizeof *table->slots, "table of names"));
    *duplicate = count;
    for (size_t i = 0; i < count; i++) {
        const qn_string *name = item_at(table, i);
        size_t *slot = slot_of(table, name->data, name->length);
        if (*slot != 0) {
            *duplicate = i;
            return QN_OK;
        }
        *slot = i + 1;
    }
    return QN_OK;
}

const void *qn_name_table_find(const struct qn_name_table *table, const char *name, size_t length)
{
    const size_t *slot = slot_of(table, name, length);
    return *slot == 0 ? NULL : item_at(table, *slot - 1);
}

static const struct {
    const char *name;
    size_t size;
} types[] = {
    [QN_GGUF_U8] = { "u8", 1 },       [QN_GGUF_I8] = { "i8", 1 },     [QN_GGUF_U16] = { "u16", 2 },
    [QN_GGUF_I16] = { "i16", 2 },     [QN_GGUF_U32] = { "u32", 4 },   [QN_GGUF_I32] = { "i32", 4 },
    [QN_GGUF_F32] = { "f32", 4 },     [QN_GGUF_BOOL] = { "bool", 1 }, [QN_GGUF_STRING] = { "string", 0 },
    [QN_GGUF_ARRAY] = { "array", 0 }, [QN_GGUF_U64] = { "u64", 8 },   [QN_GGUF_I64] = { "i64", 8 },
    [QN_GGUF_F64] = { "f64", 8 },
};

const char *qn_gguf_type_name(uint32_t type)
{
    return type < sizeof types / sizeof types[0] ? types[type].name : "unknown";
}

size_t qn_gguf_type_size(uint32_t type)
{
    return type < sizeof types / sizeof types[0] ? types[type].size : 0;
}
