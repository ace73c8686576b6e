/* Special tokens and chat templates. Keys are made by the rules of llama.cpp's converter (gguf-py/gguf/vocab.py,
 * SpecialVocab). */
#include "convert/tokenizer.h"

#include "base/append.h"
#include "convert/checkpoint.h"
#include "text/tokenizer.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum token_role { BOS, EOS, UNK, SEP, PAD, CLS, MASK, N_ROLES };

static const struct {
    const char *name, *key, *add_key; /* add_key: whether the tokeniser adds the token; NULL: there is no such key */
} roles[N_ROLES] = {
    [BOS] = { "bos", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.add_bos_token" },
    [EOS] = { "eos", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.add_eos_token" },
    [UNK] = { "unk", "tokenizer.ggml.unknown_token_id", NULL },
    [SEP] = { "sep", "tokenizer.ggml.seperator_token_id", "tokenizer.ggml.add_sep_token" }, /* spelled so in the format
                                                                                             */
    [PAD] = { "pad", "tokenizer.ggml.padding_token_id", NULL },
    [CLS] = { "cls", "tokenizer.ggml.cls_token_id", NULL },
    [MASK] = { "mask", "tokenizer.ggml.mask_token_id", NULL },
};

struct special {
    const char *text[N_ROLES]; /* NULL: none */
    int adds[N_ROLES];         /* -1: not specified */
};

static const char *content_of(const json_t *token)
{
    const char *text = json_string_value(token);
    return text ? text : json_string_value(json_object_get(token, "content"));
}

/* Returns the special token at one end of a template, or NULL. */
static const char *token_at(const json_t *single, size_t i)
{
    return json_string_value(json_object_get(json_object_get(json_array_get(single, i), "SpecialToken"), "id"));
}

/* GGUF has a key for adding the token of a role, but none for adding any other token. */
static qn_status read_end(const qn_tokenizer_files *f, struct special *s, enum token_role role, const char *token)
{
    if (!token)
        return QN_OK;
    if (!s->text[role])
        s->text[role] = token;
    if (strcmp(token, s->text[role]) != 0)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "%s: the post-processor adds '%.60s' to texts, which is not the %s_token, '%.60s'", f->path,
                       token, roles[role].name, s->text[role]);
    s->adds[role] = 1;
    return QN_OK;
}

static qn_status read_processor(const qn_tokenizer_files *f, struct special *s, const json_t *processor)
{
    const char *type = json_string_value(json_object_get(processor, "type"));
    const json_t *single = json_object_get(processor, "single");
    if (type && strcmp(type, "ByteLevel") == 0) {
        s->adds[BOS] = s->adds[BOS] < 0 ? 0 : s->adds[BOS];
        s->adds[EOS] = s->adds[EOS] < 0 ? 0 : s->adds[EOS];
    } else if (type && strcmp(type, "TemplateProcessing") == 0 && json_array_size(single) > 1) {
        QN_TRY(read_end(f, s, BOS, token_at(single, 0)));
        return read_end(f, s, EOS, token_at(single, json_array_size(single) - 1));
    }
    return QN_OK;
}

static qn_status read_special(const qn_tokenizer_files *f, struct special *s)
{
    for (int role = 0; role < N_ROLES; role++) {
        char name[32];
        snprintf(name, sizeof name, "%s_token", roles[role].name);
        s->text[role] = content_of(json_object_get(f->settings, name));
        s->adds[role] = -1;
    }
    const json_t *processor = json_object_get(f->tokenizer, "post_processor");
    const json_t *parts = json_object_get(processor, "processors");
    if (!parts)
        QN_TRY(read_processor(f, s, processor));
    for (size_t i = 0; i < json_array_size(parts); i++)
        QN_TRY(read_processor(f, s, json_array_get(parts, i)));
    for (int role = 0; role < N_ROLES; role++) {
        char name[32];
        snprintf(name, sizeof name, "add_%s_token", roles[role].name);
        const json_t *adds = json_object_get(f->settings, name);
        if (s->adds[role] < 0 && json_is_boolean(adds))
            s->adds[role] = json_is_true(adds);
    }
    return QN_OK;
}

/* Returns the id of an added token, or NULL. */
static const json_t *find_added(const qn_tokenizer_files *f, const char *text)
{
    const json_t *added = json_object_get(f->tokenizer, "added_tokens");
    for (size_t i = 0; text && i < json_array_size(added); i++) {
        const json_t *entry = json_array_get(added, i);
        const char *content = json_string_value(json_object_get(entry, "content"));
        if (content && strcmp(content, text) == 0)
            return json_object_get(entry, "id");
    }
    return NULL;
}

/* ---- Ids ---- */

enum { MAX_ENDS = 64 }; /* limit of the loader */

struct ends {
    int32_t ids[MAX_ENDS];
    size_t n;
};

static qn_status check_id(const qn_tokenizer_files *f, const char *path, const char *name, const json_t *id)
{
    if (!json_is_integer(id))
        return qn_fail(QN_ERR_FORMAT, "%s: '%s' is not an id", path, name);
    if (json_integer_value(id) < 0 || json_integer_value(id) >= (json_int_t)f->config->n_vocab)
        return qn_fail(QN_ERR_FORMAT, "%s: '%s' is %lld, expected 0 to %u", path, name,
                       (long long)json_integer_value(id), (unsigned)f->config->n_vocab - 1);
    return QN_OK;
}

/* Returns the value of a key in the whole configuration, else in the text model's. NULL if it is missing or null. */
static const json_t *find_configured(const qn_tokenizer_files *f, const char *name)
{
    const json_t *id = json_object_get(f->config->json, name);
    if (!id || json_is_null(id))
        id = json_object_get(f->config->text, name);
    return json_is_null(id) ? NULL : id;
}

static qn_status write_id(const qn_tokenizer_files *f, qn_gguf_writer *w, const struct special *s, enum token_role role)
{
    char name[32];
    const json_t *id = find_added(f, s->text[role]);
    snprintf(name, sizeof name, "%s_token_id", roles[role].name);
    if (!json_is_integer(id))
        id = find_configured(f, name);
    if (!id)
        return QN_OK;
    QN_TRY(check_id(f, f->config->path, name, id));
    return qn_gguf_writer_add_u32(w, roles[role].key, (uint32_t)json_integer_value(id));
}

/* Adds an id, or all ids of a list. */
static qn_status add_ends(const qn_tokenizer_files *f, struct ends *ends, const char *path, const json_t *value)
{
    static const char name[] = "eos_token_id";
    const size_t n = json_is_array(value) ? json_array_size(value) : value && !json_is_null(value);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        bool is_known = false;
        QN_TRY(check_id(f, path, name, id));
        for (size_t e = 0; e < ends->n; e++)
            is_known |= ends->ids[e] == json_integer_value(id);
        if (is_known)
            continue;
        if (ends->n == MAX_ENDS)
            return qn_fail(QN_ERR_UNSUPPORTED, "%s: '%s' has too many ids, at most %d are supported", path, name,
                           MAX_ENDS);
        ends->ids[ends->n++] = (int32_t)json_integer_value(id);
    }
    return QN_OK;
}

/* Writes the end tokens as in transformers: those of generation_config.json, or without it those of config.json. The
 * first is the tokeniser's, as llama.cpp's converter writes it. A single id in config.json may be its class's
 * default, but a list is not. */
static qn_status write_ends(const qn_tokenizer_files *f, qn_gguf_writer *w, const struct special *s)
{
    char path[QN_CHECKPOINT_PATH_MAX];
    struct ends ends = { .n = 0 };
    const json_t *configured = find_configured(f, "eos_token_id");
    QN_TRY(qn_checkpoint_path(f->folder, "generation_config.json", path));
    QN_TRY(add_ends(f, &ends, f->path, find_added(f, s->text[EOS])));
    QN_TRY(add_ends(f, &ends, path, json_object_get(f->generation, "eos_token_id")));
    if (!f->generation || !ends.n || json_is_array(configured))
        QN_TRY(add_ends(f, &ends, f->config->path, configured));
    if (ends.n)
        QN_TRY(qn_gguf_writer_add_u32(w, roles[EOS].key, (uint32_t)ends.ids[0]));
    return ends.n > 1 ? qn_gguf_writer_add_i32s(w, QN_KEY_EOS_IDS, ends.ids, ends.n) : QN_OK;
}

/* ---- Chat templates ---- */

enum { MAX_KEY = 128 };

/* Makes the key of a named template; false for an entry without a name or text. */
static bool template_key(const json_t *entry, char key[MAX_KEY])
{
    const char *name = json_string_value(json_object_get(entry, "name"));
    if (!name || !*name || !json_is_string(json_object_get(entry, "template")))
        return false;
    const bool is_default = strcmp(name, "default") == 0;
    qn_text_buffer text = qn_append_to(key, MAX_KEY);
    qn_append(&text, "tokenizer.chat_template%s", is_default ? "" : ".");
    for (; !is_default && *name; name++)
        qn_append(&text, "%c", isalnum((unsigned char)*name) ? *name : '_');
    return true;
}

/* Writes a list of named templates: "default" is the template, others have their own keys. Of equal keys the first
 * counts. */
static qn_status write_templates(qn_gguf_writer *w, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        char key[MAX_KEY], earlier[MAX_KEY];
        bool is_new = template_key(json_array_get(list, i), key);
        for (size_t j = 0; is_new && j < i; j++)
            is_new = !template_key(json_array_get(list, j), earlier) || strcmp(key, earlier) != 0;
        if (is_new)
            QN_TRY(qn_gguf_writer_add_string(w, key,
                                             json_string_value(json_object_get(json_array_get(list, i), "template"))));
    }
    return QN_OK;
}

static qn_status write_template(const qn_tokenizer_files *f, qn_gguf_writer *w)
{
    static const char key[] = "tokenizer.chat_template";
    const json_t *template = json_object_get(f->settings, "chat_template");
    if (!template && f->template_text)
        return qn_gguf_writer_add_string(w, key, f->template_text);
    if (!template)
        template = json_object_get(f->template_file, "chat_template");
    if (json_is_array(template))
        return write_templates(w, template);
    return json_is_string(template) ? qn_gguf_writer_add_string(w, key, json_string_value(template)) : QN_OK;
}

qn_status qn_special_tokens_write(qn_tokenizer_files *f, qn_gguf_writer *w)
{
    struct special s;
    QN_TRY(read_special(f, &s));
    f->adds_end = s.adds[EOS] > 0;
    for (int role = 0; role < N_ROLES; role++)
        QN_TRY(role == EOS ? write_ends(f, w, &s) : write_id(f, w, &s, (enum token_role)role));
    for (int role = 0; role < N_ROLES; role++)
        if (s.adds[role] >= 0 && roles[role].add_key)
            QN_TRY(qn_gguf_writer_add_bool(w, roles[role].add_key, s.adds[role] > 0));
    return write_template(f, w);
}
