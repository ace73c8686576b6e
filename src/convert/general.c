/* General keys. Names, types and rules are those of llama.cpp's converter (gguf-py/gguf/metadata.py, utility.py),
 * except for data from model cards and for parts of a folder's name. */
#include "convert/general.h"

#include "base/file.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_GENERATION_BYTES = 1 << 20 };

/* Whether a word is a version, which is no word: "v2", "v1.5". */
static bool is_version(const char *word, size_t n)
{
    if (n < 2 || word[0] != 'v')
        return false;
    for (size_t i = 1; i < n; i++)
        if (!isdigit((unsigned char)word[i]) && (word[i] != '.' || !isdigit((unsigned char)word[i - 1]) || i + 1 == n))
            return false;
    return true;
}

static bool is_lower_case(const char *word, size_t n)
{
    bool lower = false;
    for (size_t i = 0; i < n; i++) {
        if (isupper((unsigned char)word[i]))
            return false;
        lower |= islower((unsigned char)word[i]) != 0;
    }
    return lower;
}

void qn_general_name(const char *folder, char *out, size_t size)
{
    char *real = qn_file_real_path(folder);
    const char *last = qn_file_name(real ? real : folder), *name = *last ? last : folder;
    size_t used = 0;
    for (size_t n; *name && used + 1 < size; name += n) {
        n = strcspn(name, "- ");
        if (n == 0) {
            n = 1;
            continue;
        }
        const bool title = is_lower_case(name, n) && !isdigit((unsigned char)*name) && !is_version(name, n);
        if (used > 0 && used + 1 < size)
            out[used++] = ' ';
        for (size_t i = 0; i < n && used + 1 < size; i++)
            out[used++] =
                (char)(title && (i == 0 || !isalpha((unsigned char)name[i - 1])) ? toupper((unsigned char)name[i])
                                                                                 : name[i]);
    }
    out[used] = '\0';
    free(real);
}

void qn_general_size_label(uint64_t n_weights, char *out, size_t size)
{
    static const struct {
        double unit;
        char suffix;
    } units[] = { { 1e12, 'T' }, { 1e9, 'B' }, { 1e6, 'M' }, { 1e3, 'K' } };
    size_t u = 0;
    while (u < 3 && !((double)n_weights > units[u].unit))
        u++;
    const double value = (double)n_weights / units[u].unit, rounded = rint(value);
    snprintf(out, size, "%.*f%c", rounded < 1 ? 2 : rounded < 10 ? 1 : 0, value, units[u].suffix);
}

static qn_status write_sampling(const char *folder, qn_gguf_writer *w)
{
    static const struct {
        const char *json, *key;
        bool integer;
    } fields[] = {
        { "top_k", "general.sampling.top_k", true },
        { "top_p", "general.sampling.top_p", false },
        { "min_p", "general.sampling.min_p", false },
        { "temperature", "general.sampling.temp", false },
        { "repetition_penalty", "general.sampling.penalty_repeat", false },
    };
    char path[QN_CHECKPOINT_PATH_MAX];
    json_t *json;
    qn_status status = QN_OK;
    QN_TRY(qn_checkpoint_path(folder, "generation_config.json", path));
    QN_TRY(qn_json_read(path, MAX_GENERATION_BYTES, false, &json));
    for (size_t i = 0; !status && i < sizeof fields / sizeof *fields; i++) {
        const json_t *value = json_object_get(json, fields[i].json);
        if (!json_is_number(value))
            continue;
        const double number = json_number_value(value);
        if (!(fabs(number) <= INT32_MAX))
            status = qn_fail(QN_ERR_FORMAT, "%s: '%s' is %g", path, fields[i].json, number);
        else if (fields[i].integer)
            status = qn_gguf_writer_add_i32(w, fields[i].key, (int32_t)number);
        else
            status = qn_gguf_writer_add_f32(w, fields[i].key, (float)number);
    }
    json_decref(json);
    return status;
}

/* Returns the type of most weights, which llama.cpp shows as the file's. */
static const qn_type_info *most_used_type(const qn_targets *targets)
{
    const qn_type_info *best = qn_type_find(QN_TYPE_F32);
    size_t n_types;
    uint64_t most = 0;
    const qn_type_info *types = qn_types(&n_types);
    for (size_t i = 0; i < n_types; i++) {
        uint64_t n = 0;
        for (size_t t = 0; t < targets->n; t++)
            n += targets->at[t].to == &types[i] ? targets->at[t].rows * targets->at[t].columns : 0;
        if (n > most) {
            most = n;
            best = &types[i];
        }
    }
    return best;
}

qn_status qn_general_write(const char *folder, const qn_config *config, const qn_targets *targets, qn_gguf_writer *w)
{
    char name[256], label[32];
    uint64_t n_weights = 0;
    for (size_t i = 0; i < targets->n; i++)
        n_weights += targets->at[i].rows * targets->at[i].columns;
    qn_general_name(folder, name, sizeof name);
    qn_general_size_label(n_weights, label, sizeof label);
    QN_TRY(qn_gguf_writer_add_string(w, "general.architecture", config->architecture));
    QN_TRY(qn_gguf_writer_add_string(w, "general.type", "model"));
    QN_TRY(write_sampling(folder, w));
    QN_TRY(qn_gguf_writer_add_string(w, "general.name", name));
    QN_TRY(qn_gguf_writer_add_string(w, "general.size_label", label));
    const int file_type = most_used_type(targets)->file_type;
    if (file_type >= 0)
        QN_TRY(qn_gguf_writer_add_u32(w, "general.file_type", (uint32_t)file_type));
    /* version of ggml's block layouts, since 2023 */
    return qn_gguf_writer_add_u32(w, "general.quantization_version", 2);
}
