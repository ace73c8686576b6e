/* Reads and checks the keys of rotated weights. */
#include "model/hadamard.h"

#include "base/append.h"
#include "base/memory.h"
#include "plan/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMESPACE "prism.hadamard"
#define KEY(name) NAMESPACE "." name
#define TABLE "token_embd.weight"
#define OUTPUT "output.weight"
#define STRING_ARGS(s) (int)((s).length < 64 ? (s).length : 64), (s).data

/* Existing files have three input widths. */
enum { MAX_WIDTHS = 64, NAME_MAX_BYTES = 128 };

static const char *const keys[] = {
    KEY("version"),       KEY("tied_output"),  KEY("block_size"),           KEY("transform"),
    KEY("axis"),          KEY("sign_mode"),    KEY("sign_widths"),          KEY("sign_values"),
    KEY("gdn_v_grouped"), KEY("weight_names"), KEY("inverse_weight_names"),
};

enum { N_KEYS = sizeof keys / sizeof keys[0] };

static bool in_namespace(qn_string key)
{
    return key.length >= strlen(NAMESPACE) && !memcmp(key.data, NAMESPACE, strlen(NAMESPACE));
}

static const qn_gguf_kv *first_key(const qn_gguf *file)
{
    for (size_t i = 0; i < qn_gguf_n_kv(file); i++)
        if (in_namespace(qn_gguf_kv_at(file, i)->key))
            return qn_gguf_kv_at(file, i);
    return NULL;
}

static qn_status reject_unknown_keys(const qn_gguf *file)
{
    for (size_t i = 0; i < qn_gguf_n_kv(file); i++) {
        const qn_string key = qn_gguf_kv_at(file, i)->key;
        bool known = !in_namespace(key);
        for (int k = 0; k < N_KEYS && !known; k++)
            known = qn_string_equals(key, keys[k]);
        if (!known)
            return qn_fail(QN_ERR_UNSUPPORTED, "%s: key '%.*s' is not a supported key of rotated weights",
                           qn_gguf_path(file), STRING_ARGS(key));
    }
    return QN_OK;
}

/* Reads a required string key, which must be `value` or `other`. *second: whether it is `other`. */
static qn_status read_enum_key(const qn_gguf *file, const char *key, const char *value, const char *other, bool *second)
{
    qn_string found;
    QN_TRY(qn_gguf_get_string(file, key, true, &found));
    *second = other && qn_string_equals(found, other);
    if (*second || qn_string_equals(found, value))
        return QN_OK;
    return qn_fail(QN_ERR_UNSUPPORTED, "%s: key '%s' is '%.*s', expected %s%s%s", qn_gguf_path(file), key,
                   STRING_ARGS(found), value, other ? " or " : "", other ? other : "");
}

/* ---- Signs ---- */

/* Reads an array element as double, without rounding: an element that is only close to a sign or width must be
 * rejected. */
static qn_status read_number(const qn_gguf *file, const qn_gguf_kv *kv, uint64_t i, double *out)
{
    if (kv->element_type == QN_GGUF_F64 && i < kv->count) {
        memcpy(out, kv->data + (size_t)i * sizeof *out, sizeof *out);
        return QN_OK;
    }
    if (kv->element_type == QN_GGUF_F32) {
        float value = 0;
        QN_TRY(qn_gguf_array_f32(file, kv, i, &value));
        *out = (double)value;
        return QN_OK;
    }
    int32_t value = 0;
    QN_TRY(qn_gguf_array_i32(file, kv, i, &value));
    *out = value;
    return QN_OK;
}

static qn_status find_array(const qn_gguf *file, const char *key, const char *expected, const qn_gguf_kv **out)
{
    *out = qn_gguf_find(file, key);
    if (!*out)
        return qn_fail(QN_ERR_FORMAT, "%s: key '%s' is missing, expected %s", qn_gguf_path(file), key, expected);
    if ((*out)->type != QN_GGUF_ARRAY)
        return qn_fail(QN_ERR_FORMAT, "%s: key '%s' is not an array, expected %s", qn_gguf_path(file), key, expected);
    return QN_OK;
}

/* Inserts a width in ascending order, with NULL for its signs. */
static qn_status insert_sorted_width(qn_rotation *r, size_t width, size_t *index)
{
    size_t at = r->n_widths;
    for (; at && r->widths[at - 1] >= width; at--)
        if (r->widths[at - 1] == width)
            return qn_fail(QN_ERR_FORMAT, "%s: key '" KEY("sign_widths") "' has %zu twice, expected every width once",
                           qn_gguf_path(r->file), width);
    memmove(r->widths + at + 1, r->widths + at, (r->n_widths - at) * sizeof *r->widths);
    memmove(r->signs + at + 1, r->signs + at, (r->n_widths - at) * sizeof *r->signs);
    r->widths[at] = width;
    r->signs[at] = NULL;
    r->n_widths++;
    *index = at;
    return QN_OK;
}

static qn_status read_signs_of_width(qn_rotation *r, const qn_gguf_kv *values, uint64_t first, size_t width)
{
    size_t at = 0;
    QN_TRY(insert_sorted_width(r, width, &at));
    QN_TRY(qn_alloc(&r->signs[at], width, sizeof **r->signs, KEY("sign_values")));
    for (size_t i = 0; i < width; i++) {
        double sign;
        QN_TRY(read_number(r->file, values, first + i, &sign));
        if (sign != 1 && sign != -1)
            return qn_fail(QN_ERR_FORMAT, "%s: key '" KEY("sign_values") "': element %llu is %.17g, expected 1 or -1",
                           qn_gguf_path(r->file), (unsigned long long)(first + i), sign);
        r->signs[at][i] = (float)sign;
    }
    return QN_OK;
}

static qn_status read_signs(qn_rotation *r)
{
    const char *path = qn_gguf_path(r->file);
    const qn_gguf_kv *widths, *values;
    uint64_t first = 0;
    QN_TRY(find_array(r->file, KEY("sign_widths"), "an array of input widths", &widths));
    QN_TRY(find_array(r->file, KEY("sign_values"), "an array of 1 and -1", &values));
    if (widths->count > MAX_WIDTHS)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "%s: key '" KEY("sign_widths") "' has %llu elements, at most %d are supported", path,
                       (unsigned long long)widths->count, MAX_WIDTHS);
    QN_TRY(qn_alloc(&r->widths, MAX_WIDTHS, sizeof *r->widths, KEY("sign_widths")));
    QN_TRY(qn_alloc(&r->signs, MAX_WIDTHS, sizeof *r->signs, KEY("sign_widths")));
    for (uint64_t i = 0; i < widths->count; i++) {
        double width;
        QN_TRY(read_number(r->file, widths, i, &width));
        if (!(width >= 1 && width <= UINT32_MAX) || width != (double)(uint32_t)width || (uint32_t)width % r->block)
            return qn_fail(
                QN_ERR_FORMAT,
                "%s: key '" KEY("sign_widths") "': element %llu is %.17g, expected a multiple of the block size %zu",
                path, (unsigned long long)i, width, r->block);
        if ((uint64_t)width > values->count - first)
            break;
        QN_TRY(read_signs_of_width(r, values, first, (size_t)width));
        first += (uint64_t)width;
    }
    if (r->n_widths != widths->count || first != values->count)
        return qn_fail(
            QN_ERR_FORMAT,
            "%s: key '" KEY("sign_values") "' has %llu elements, expected the sum of '" KEY("sign_widths") "'", path,
            (unsigned long long)values->count);
    return QN_OK;
}

static qn_status reject_signs(const qn_gguf *file)
{
    static const char *const unused[] = { KEY("sign_widths"), KEY("sign_values") };
    for (int i = 0; i < 2; i++) {
        const qn_gguf_kv *kv = qn_gguf_find(file, unused[i]);
        if (kv && !(kv->type == QN_GGUF_ARRAY && kv->count == 0))
            return qn_fail(QN_ERR_FORMAT, "%s: key '%s' has signs, expected none with " KEY("sign_mode") " 'identity'",
                           qn_gguf_path(file), unused[i]);
    }
    return QN_OK;
}

/* ---- Names ---- */

static int compare_names(const void *a, const void *b)
{
    const qn_string *x = a, *y = b;
    const int order = memcmp(x->data, y->data, x->length < y->length ? x->length : y->length);
    return order ? order : (x->length > y->length) - (x->length < y->length);
}

static bool is_listed(const qn_rotation *r, qn_string name)
{
    return r->n_names && bsearch(&name, r->names, r->n_names, sizeof name, compare_names);
}

/* Checks a listed name: it must be a matrix whose width is a multiple of the block size and, in a file with signs, has
 * signs. */
static qn_status check_matrix(const qn_rotation *r, const char *key, qn_string name)
{
    const char *path = qn_gguf_path(r->file);
    char terminated[NAME_MAX_BYTES];
    const qn_gguf_tensor *t = NULL;
    if (name.length < sizeof terminated && !memchr(name.data, 0, name.length)) {
        memcpy(terminated, name.data, name.length);
        terminated[name.length] = 0;
        t = qn_gguf_find_tensor(r->file, terminated);
    }
    if (!t)
        return qn_fail(QN_ERR_FORMAT, "%s: key '%s' lists '%.*s', which is not a tensor of the file", path, key,
                       STRING_ARGS(name));
    if (t->n_dims < 2 || t->dims[2] != 1 || t->dims[3] != 1)
        return qn_fail(QN_ERR_FORMAT, "%s: key '%s' lists '%s', which has %u dimensions, expected a matrix", path, key,
                       terminated, (unsigned)t->n_dims);
    if (t->dims[0] % r->block)
        return qn_fail(QN_ERR_FORMAT,
                       "%s: key '%s' lists '%s' of width %llu, expected a multiple of the block size %zu", path, key,
                       terminated, (unsigned long long)t->dims[0], r->block);
    if (r->signs && !qn_rotation_signs(r, (size_t)t->dims[0]))
        return qn_fail(QN_ERR_FORMAT,
                       "%s: key '%s' lists '%s' of width %llu, for which '" KEY("sign_widths") "' has no signs", path,
                       key, terminated, (unsigned long long)t->dims[0]);
    return QN_OK;
}

/* Checks that of the matrices with the same input all or none are listed. */
static qn_status check_siblings(const qn_rotation *r, qn_string name)
{
    static const char *const sets[][3] = { { "attn_q.weight", "attn_k.weight", "attn_v.weight" },
                                           { "attn_qkv.weight", "attn_gate.weight", NULL },
                                           { "ffn_gate.weight", "ffn_up.weight", NULL } };
    enum { N_SETS = sizeof sets / sizeof sets[0], SIZE = 3 };
    for (int member = 0; member < N_SETS * SIZE; member++) {
        const char *base = sets[member / SIZE][member % SIZE];
        const size_t length = base ? strlen(base) : 0, block = name.length - length;
        if (!length || name.length <= length || name.data[block - 1] != '.' ||
            memcmp(name.data + block, base, length) != 0)
            continue;
        for (int i = 0; i < SIZE && sets[member / SIZE][i]; i++) {
            char sibling[NAME_MAX_BYTES + 32];
            qn_text_buffer text = QN_APPEND_TO(sibling);
            qn_append_bytes(&text, name.data, block);
            qn_append(&text, "%s", sets[member / SIZE][i]);
            if (!text.is_cut && qn_gguf_find_tensor(r->file, sibling) &&
                !is_listed(r, (qn_string){ sibling, text.length }))
                return qn_fail(
                    QN_ERR_FORMAT,
                    "%s: key '" KEY("weight_names") "' lists '%.*s' but not '%s', which reads the same input",
                    qn_gguf_path(r->file), STRING_ARGS(name), sibling);
        }
    }
    return QN_OK;
}

static qn_status read_names(qn_rotation *r)
{
    const char *path = qn_gguf_path(r->file);
    const qn_gguf_kv *kv;
    QN_TRY(find_array(r->file, KEY("weight_names"), "an array of tensor names", &kv));
    QN_TRY(qn_gguf_array_strings(r->file, kv, &r->names));
    r->n_names = (size_t)kv->count;
    if (!r->n_names)
        return qn_fail(QN_ERR_FORMAT, "%s: key '" KEY("weight_names") "' is empty, expected at least one tensor", path);
    qsort(r->names, r->n_names, sizeof *r->names, compare_names);
    for (size_t i = 0; i < r->n_names; i++) {
        if (i && !compare_names(&r->names[i - 1], &r->names[i]))
            return qn_fail(QN_ERR_FORMAT, "%s: key '" KEY("weight_names") "' lists '%.*s' twice", path,
                           STRING_ARGS(r->names[i]));
        if (qn_string_equals(r->names[i], TABLE))
            return qn_fail(QN_ERR_FORMAT,
                           "%s: key '" KEY("weight_names") "' lists '" TABLE
                                                           "', expected it only in '" KEY("inverse_weight_names") "'",
                           path);
        QN_TRY(check_matrix(r, KEY("weight_names"), r->names[i]));
        QN_TRY(check_siblings(r, r->names[i]));
    }
    return QN_OK;
}

static qn_status read_inverse_names(qn_rotation *r)
{
    const qn_gguf_kv *kv = qn_gguf_find(r->file, KEY("inverse_weight_names"));
    qn_string *names = NULL;
    qn_status status = QN_OK;
    if (!kv)
        return QN_OK;
    QN_TRY(qn_gguf_array_strings(r->file, kv, &names));
    for (uint64_t i = 0; i < kv->count && status == QN_OK; i++) {
        if (!qn_string_equals(names[i], TABLE))
            status = qn_fail(QN_ERR_UNSUPPORTED, "%s: key '%s' lists '%.*s', expected " TABLE " alone",
                             qn_gguf_path(r->file), KEY("inverse_weight_names"), STRING_ARGS(names[i]));
        else if (i)
            status = qn_fail(QN_ERR_FORMAT, "%s: key '%s' lists '" TABLE "' twice", qn_gguf_path(r->file),
                             KEY("inverse_weight_names"));
        else
            status = check_matrix(r, KEY("inverse_weight_names"), names[i]);
    }
    r->inverse_embedding = status == QN_OK && kv->count > 0;
    free(names);
    return status;
}

/* ---- Consistency of keys ---- */

/* Reads gdn_v_grouped. The grouped order is specified only for rotated ssm_out matrices. A file with gdn_v_grouped in
 * which some of them are not rotated is rejected. */
static qn_status read_grouping(qn_rotation *r)
{
    static const char base[] = ".ssm_out.weight";
    QN_TRY(qn_gguf_get_bool(r->file, KEY("gdn_v_grouped"), false, &r->gdn_v_grouped));
    for (size_t i = 0; i < qn_gguf_n_tensors(r->file) && r->gdn_v_grouped; i++) {
        const qn_string name = qn_gguf_tensor_at(r->file, i)->name;
        if (name.length >= strlen(base) && !memcmp(name.data + name.length - strlen(base), base, strlen(base)) &&
            !is_listed(r, name))
            return qn_fail(QN_ERR_FORMAT,
                           "%s: key '" KEY("gdn_v_grouped") "' is true, expected '%.*s' in '" KEY("weight_names") "'",
                           qn_gguf_path(r->file), STRING_ARGS(name));
    }
    return QN_OK;
}

/* Checks that the output matrix is the rotated embedding table in version 2, and only there. */
static qn_status check_output(const qn_rotation *r, uint32_t version)
{
    const char *path = qn_gguf_path(r->file);
    const bool has_output = qn_gguf_find_tensor(r->file, OUTPUT) != NULL;
    if (r->tied_output != (version == 2))
        return qn_fail(QN_ERR_FORMAT, "%s: key '" KEY("tied_output") "' is %s, expected %s with " KEY("version") " %u",
                       path, r->tied_output ? "true" : "false or missing", version == 2 ? "true" : "false",
                       (unsigned)version);
    if (r->tied_output == has_output)
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '" OUTPUT "' is %s, expected %s with " KEY("version") " %u", path,
                       has_output ? "present" : "missing", has_output ? "none" : "one", (unsigned)version);
    if (r->tied_output && !r->inverse_embedding)
        return qn_fail(QN_ERR_FORMAT,
                       "%s: key '" KEY("inverse_weight_names") "' does not list '" TABLE
                                                               "', expected it with " KEY("version") " 2",
                       path);
    return QN_OK;
}

static qn_status read_block_size(qn_rotation *r)
{
    uint32_t block = 0;
    QN_TRY(qn_gguf_get_u32(r->file, KEY("block_size"), true, &block));
    if (!block || block & (block - 1))
        return qn_fail(QN_ERR_FORMAT, "%s: key '" KEY("block_size") "' is %u, expected a power of two",
                       qn_gguf_path(r->file), (unsigned)block);
    if (block > QN_PLAN_ROTATION_BLOCK)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: key '" KEY("block_size") "' is %u, at most %d is supported",
                       qn_gguf_path(r->file), (unsigned)block, QN_PLAN_ROTATION_BLOCK);
    r->block = block;
    return QN_OK;
}

static qn_status read_all(qn_rotation *r, const qn_gguf_kv *key)
{
    uint32_t version = 0;
    bool second, is_explicit;
    if (!qn_gguf_find(r->file, KEY("version")))
        return qn_fail(QN_ERR_FORMAT, "%s: key '%.*s' without '" KEY("version") "'", qn_gguf_path(r->file),
                       STRING_ARGS(key->key));
    QN_TRY(qn_gguf_get_u32(r->file, KEY("version"), true, &version));
    if (version != 1 && version != 2)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: key '" KEY("version") "' is %u, expected 1 or 2", qn_gguf_path(r->file),
                       (unsigned)version);
    QN_TRY(reject_unknown_keys(r->file));
    QN_TRY(read_enum_key(r->file, KEY("transform"), "normalized-sylvester-walsh-hadamard", NULL, &second));
    QN_TRY(read_enum_key(r->file, KEY("axis"), "input-last-dimension", NULL, &second));
    QN_TRY(read_enum_key(r->file, KEY("sign_mode"), "identity", "explicit", &is_explicit));
    QN_TRY(read_block_size(r));
    QN_TRY(is_explicit ? read_signs(r) : reject_signs(r->file));
    QN_TRY(read_names(r));
    QN_TRY(read_inverse_names(r));
    QN_TRY(read_grouping(r));
    QN_TRY(qn_gguf_get_bool(r->file, KEY("tied_output"), false, &r->tied_output));
    return check_output(r, version);
}

qn_status qn_rotation_read(const qn_gguf *file, qn_rotation *rotation)
{
    const qn_gguf_kv *key = first_key(file);
    *rotation = (qn_rotation){ .file = file };
    if (!key)
        return QN_OK;
    const qn_status status = read_all(rotation, key);
    if (status != QN_OK)
        qn_rotation_free(rotation);
    return status;
}

void qn_rotation_free(qn_rotation *rotation)
{
    for (size_t i = 0; i < rotation->n_widths; i++)
        qn_free(rotation->signs[i]);
    qn_free(rotation->signs);
    qn_free(rotation->widths);
    free(rotation->names);
    *rotation = (qn_rotation){ 0 };
}

bool qn_rotation_applies(const qn_rotation *rotation, const char *name)
{
    return is_listed(rotation, (qn_string){ name, strlen(name) });
}

const float *qn_rotation_signs(const qn_rotation *rotation, size_t width)
{
    for (size_t i = 0; i < rotation->n_widths; i++)
        if (rotation->widths[i] == width)
            return rotation->signs[i];
    return NULL;
}
