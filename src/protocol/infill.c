/* Prompts with a gap: the text before it and the text after it, between the model's tokens for that, after the texts of
 * other files. As llama-server's /infill; `suffix` of completions is the same without other files. */
#include "protocol/openai.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_FILES = 512 };

/* Between texts of a model that has no token for it, as llama-server's. */
static const char separator[] = "\n\n--- snippet ---\n\n";

static bool check_files(const json_t *files, qn_refusal *refusal)
{
    if (files && !json_is_array(files))
        return qn_refuse_type(refusal, "input_extra", files, "an array of {\"filename\": ..., \"text\": ...}");
    if (json_array_size(files) > MAX_FILES)
        return qn_refuse(refusal, 400, NULL, "input_extra", "'input_extra' has %zu texts, at most %d are allowed",
                         json_array_size(files), MAX_FILES);
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *file = json_array_get(files, i), *name = qn_field(file, "filename");
        if (!json_is_string(qn_field(file, "text")) || (name && !json_is_string(name)))
            return qn_refuse_type(refusal, "input_extra", file, "{\"filename\": ..., \"text\": ...}");
    }
    return true;
}

bool qn_openai_take_suffix(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    json_t *suffix = qn_field(body, "suffix");
    if (suffix && !json_is_string(suffix))
        return qn_refuse_type(refusal, "suffix", suffix, "a string");
    if (json_string_length(suffix) && x->is_echo)
        return qn_refuse(refusal, 400, "unsupported", "suffix", "'suffix' with 'echo' is not supported");
    x->gap.suffix = json_string_length(suffix) ? json_incref(suffix) : NULL;
    return true;
}

bool qn_openai_take_gap(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    json_t *suffix = qn_field(body, "input_suffix"), *files = qn_field(body, "input_extra");
    if (!json_is_string(suffix))
        return qn_refuse_type(refusal, "input_suffix", suffix, "a string");
    if (!check_files(files, refusal))
        return false;
    x->gap = (qn_gap){ .suffix = json_incref(suffix), .files = json_incref(files), .cuts = true };
    return true;
}

/* ---- Tokens ---- */

/* A growing list of tokens. */
typedef struct list {
    const qn_model *model;
    qn_account *account;
    qn_token *tokens;
    size_t n, capacity;
    qn_refusal *refusal;
} list;

static bool append(list *l, const qn_token *tokens, size_t n)
{
    if (!qn_account_take(l->account, n * sizeof *tokens))
        return qn_refuse_over(l->account, l->refusal);
    if (qn_realloc_array(&l->tokens, &l->capacity, l->n + n + 1, sizeof *l->tokens, "a prompt"))
        return qn_refuse_memory(l->refusal);
    if (n)
        memcpy(l->tokens + l->n, tokens, n * sizeof *tokens);
    l->n += n;
    return true;
}

static bool append_token(list *l, qn_token token)
{
    return token < 0 || append(l, &token, 1);
}

static bool append_text(list *l, const char *text, size_t length)
{
    qn_token *tokens;
    size_t n;
    if (qn_tokenize(l->model, text, length, false, false, &tokens, &n))
        return qn_refuse(l->refusal, 400, "unsupported", "prompt", "%s", qn_error_text());
    const bool done = append(l, tokens, n);
    qn_free_tokens(tokens);
    return done;
}

static bool append_name(list *l, const json_t *name, const char *otherwise)
{
    const bool is_given = json_string_length(name);
    return append_text(l, is_given ? json_string_value(name) : otherwise,
                       is_given ? json_string_length(name) : strlen(otherwise)) &&
           append_text(l, "\n", 1);
}

/* Appends the texts of other files; where the model has tokens for it, with names, for which clients that send none get
 * llama-server's. */
static bool append_files(list *l, const qn_infill_tokens *t, const json_t *files)
{
    const bool has_separator = t->file_separator >= 0;
    if (!json_array_size(files))
        return true;
    if (t->repository >= 0 && (!append_token(l, t->repository) || !append_name(l, NULL, "myproject")))
        return false;
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *file = json_array_get(files, i), *text = json_object_get(file, "text");
        if (!(has_separator
                  ? append_token(l, t->file_separator) && append_name(l, json_object_get(file, "filename"), "tmp")
                  : append_text(l, separator, sizeof separator - 1)) ||
            !append_text(l, json_string_value(text), json_string_length(text)))
            return false;
    }
    return !has_separator || (append_token(l, t->file_separator) && append_name(l, NULL, "filename"));
}

/* How many tokens of each part are used: the last ones of files and prefix, the first ones of the suffix. */
typedef struct cut {
    size_t files, prefix, suffix;
} cut;

/* Returns how many tokens of each part stay. The answer gets what it asks for, up to half of the context, or a quarter.
 * The prefix gets three quarters of the rest, or more if the suffix is short; files get what is left. */
static cut cut_to(const qn_text_exchange *x, cut n, size_t n_fixed)
{
    const size_t n_ctx = x->served->n_ctx;
    const int64_t most = x->params.max_tokens;
    const size_t answer = most < 0                   ? n_ctx / 4
                          : (size_t)most < n_ctx / 2 ? (size_t)most
                                                     : n_ctx / 2,
                 left = n_ctx > answer + n_fixed ? n_ctx - answer - n_fixed : 0;
    if (!x->gap.cuts)
        return n;
    if (n.prefix + n.suffix > left) {
        const size_t least = left / 4, rest = n.prefix < left ? left - n.prefix : 0,
                     suffix = least > rest ? least : rest;
        n.suffix = n.suffix < suffix ? n.suffix : suffix;
        n.prefix = n.prefix < left - n.suffix ? n.prefix : left - n.suffix;
    }
    const size_t room = left - n.prefix - n.suffix;
    n.files = n.files < room ? n.files : room;
    return n;
}

static bool join(const qn_text_exchange *x, const qn_infill_tokens *t, const qn_prompt *prefix, const list *files,
                 const list *suffix, list *out)
{
    const qn_model_info *info = qn_model_get_info(out->model);
    const qn_token bos = info->adds_bos ? info->bos : -1;
    const cut n = cut_to(x, (cut){ files->n, prefix->n, suffix->n }, bos >= 0 ? 4 : 3);
    return append(out, files->tokens + files->n - n.files, n.files) && append_token(out, bos) &&
           append_token(out, t->prefix) && append(out, prefix->tokens + prefix->n - n.prefix, n.prefix) &&
           append_token(out, t->suffix) && append(out, suffix->tokens, n.suffix) && append_token(out, t->middle);
}

bool qn_openai_check_infill(const qn_text_exchange *x, qn_refusal *refusal)
{
    return !x->gap.suffix || qn_model_get_infill(x->served->model) ||
           qn_refuse(refusal, 501, "not_supported", NULL,
                     "the model's vocabulary has no tokens for a prefix, a suffix and the text between them: it cannot "
                     "fill gaps");
}

bool qn_openai_bind_gap(const qn_text_exchange *x, qn_prompt *prompt, qn_refusal *refusal)
{
    const qn_infill_tokens *t = qn_model_get_infill(x->served->model);
    const json_t *after = x->gap.suffix;
    const list empty = { .model = x->served->model, .account = x->base.account, .refusal = refusal };
    list files = empty, suffix = empty, all = empty;
    /* One element, so that a list without tokens is an array, too. */
    const bool done = append(&files, NULL, 0) && append(&suffix, NULL, 0) && append_files(&files, t, x->gap.files) &&
                      append_text(&suffix, json_string_value(after), json_string_length(after)) &&
                      join(x, t, prompt, &files, &suffix, &all);
    qn_account_give(x->base.account, (files.n + suffix.n + prompt->n) * sizeof(qn_token));
    free(files.tokens);
    free(suffix.tokens);
    if (!done) {
        prompt->n = prompt->capacity = 0;
        free(all.tokens);
        return false;
    }
    free(prompt->tokens);
    *prompt = (qn_prompt){ .tokens = all.tokens, .n = all.n, .capacity = all.n, .json = prompt->json };
    return true;
}
