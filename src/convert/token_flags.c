/* Flags of added tokens (https://github.com/huggingface/tokenizers, AddedToken). lstrip and rstrip have quern's own
 * keys; other unsupported flags are refused, with the token. */
#include "convert/tokenizer.h"

#include "base/memory.h"
#include "gguf/json_decode.h"
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

enum { LSTRIP = 1, RSTRIP = 2 };

static bool is_ascii(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text >= 0x80)
            return false;
    return true;
}

static bool is_one_of(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static qn_status check_flag(const char *path, const char *content, const char *flag, const json_t *value)
{
    static const char *const others[] = { "id", "content", "__type" }, *const flags[] = { "special", "lstrip", "rstrip",
                                                                                          "normalized" };
    char found[QN_JSON_FOUND_BYTES];
    if (json_is_false(value) || json_is_null(value) || is_one_of(flag, others, sizeof others / sizeof *others))
        return QN_OK;
    if (is_one_of(flag, flags, sizeof flags / sizeof *flags))
        return json_is_true(value)
                   ? QN_OK
                   : qn_fail(QN_ERR_FORMAT, "%s: '%s' of the added token '%.60s' is %s, expected true or false", path,
                             flag, content, qn_json_found(value, found));
    return qn_fail(QN_ERR_UNSUPPORTED, "%s: the added token '%.60s' has the flag '%.40s', which is not supported", path,
                   content, flag);
}

/* Reads the flags. `normalized` means that the token is found after normalisation, which makes no difference for
 * ASCII or without normalisation. */
static qn_status read_flags(const qn_tokenizer_files *f, const char *path, const json_t *entry, uint8_t *flags)
{
    const char *content = json_string_value(json_object_get(entry, "content")), *flag;
    json_t *value;
    content = content ? content : "";
    json_object_foreach((json_t *)entry, flag, value) QN_TRY(check_flag(path, content, flag, value));
    if (json_is_true(json_object_get(entry, "normalized")) && f->nfc && !is_ascii(content))
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "%s: the added token '%.60s' has the flag 'normalized', which is supported for ASCII alone",
                       path, content);
    *flags = (uint8_t)((json_is_true(json_object_get(entry, "lstrip")) ? LSTRIP : 0) |
                       (json_is_true(json_object_get(entry, "rstrip")) ? RSTRIP : 0));
    return QN_OK;
}

/* Reads the flags of tokenizer.json, then those of tokenizer_config.json, which replace them. All ids have been
 * checked. */
static qn_status read_all(const qn_tokenizer_files *f, uint8_t *flags)
{
    const json_t *added = json_object_get(f->tokenizer, "added_tokens");
    const char *key;
    json_t *entry;
    for (size_t i = 0; i < json_array_size(added); i++) {
        entry = json_array_get(added, i);
        QN_TRY(read_flags(f, f->path, entry, &flags[json_integer_value(json_object_get(entry, "id"))]));
    }
    json_object_foreach(json_object_get(f->settings, "added_tokens_decoder"), key, entry)
        QN_TRY(read_flags(f, "tokenizer_config.json", entry, &flags[strtoul(key, NULL, 10)]));
    return QN_OK;
}

static qn_status write_ids(qn_gguf_writer *w, const char *key, const uint8_t *flags, size_t n, uint8_t flag,
                           size_t *n_stripping)
{
    int32_t *ids;
    size_t n_ids = 0;
    QN_TRY(qn_alloc(&ids, n, sizeof *ids, "ids of tokens"));
    for (size_t i = 0; i < n; i++)
        if (flags[i] & flag)
            ids[n_ids++] = (int32_t)i;
    const qn_status status = n_ids ? qn_gguf_writer_add_i32s(w, key, ids, n_ids) : QN_OK;
    *n_stripping += n_ids;
    qn_free(ids);
    return status;
}

qn_status qn_token_flags_write(qn_tokenizer_files *f, qn_gguf_writer *w)
{
    const size_t n = f->config->n_vocab;
    uint8_t *flags;
    f->n_stripping = 0;
    QN_TRY(qn_alloc(&flags, n, 1, "flags of tokens"));
    qn_status status = read_all(f, flags);
    if (!status)
        status = write_ids(w, QN_KEY_LSTRIP_IDS, flags, n, LSTRIP, &f->n_stripping);
    if (!status)
        status = write_ids(w, QN_KEY_RSTRIP_IDS, flags, n, RSTRIP, &f->n_stripping);
    qn_free(flags);
    return status;
}
