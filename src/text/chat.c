/* Recognising and writing ChatML. */
#include "text/chat.h"

#include "base/memory.h"
#include "text/chatml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define START QN_CHATML_START
#define END QN_CHATML_END

struct qn_chat_template {
    bool known;         /* plain ChatML */
    int32_t start, end; /* the tokens of START and END */
    int32_t bos;        /* the token before the first message, or -1 */
    char *system;       /* the default system message, or NULL */
    char problem[400];  /* why the template is not supported */
};

/* ---- Reading the template ---- */

static bool has(qn_string in, const char *what)
{
    return in.length && memmem(in.data, in.length, what, strlen(what));
}

/* START "assistant" and a newline, as a character or as an escape: distinguishes ChatML from other formats with its first
 * token. */
static bool opens_turns(qn_string text)
{
    return has(text, START "assistant\n") || has(text, START "assistant\r\n") || has(text, START "assistant\\n");
}

static void name_unknown(qn_chat_template *chat, qn_string text)
{
    static const struct {
        const char *marker, *family;
    } families[] = {
        { "<|start_header_id|>", "Llama 3" }, { "<start_of_turn>", "Gemma" }, { "<|im_sep|>", "Phi 4" }, { "[INST]", "Mistral" }
    };
    const char *family = "unknown";
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (has(text, families[i].marker)) {
            family = families[i].family;
            break;
        }
    snprintf(chat->problem, sizeof chat->problem, "a chat template that is not supported (%s family; it begins '%.*s')", family,
             (int)(text.length < 60 ? text.length : 60), text.data);
}

/* The default system message is encoded as text, without control tokens. A template whose message contains control tokens is
 * not supported. */
static qn_status check_system(qn_chat_template *chat, const qn_tokenizer *tok)
{
    int32_t *as_text, *as_special = NULL;
    size_t n_text, n_special;
    const size_t length = strlen(chat->system);
    QN_TRY(qn_tokenizer_encode(tok, chat->system, length, false, false, &as_text, &n_text));
    const qn_status status = qn_tokenizer_encode(tok, chat->system, length, true, false, &as_special, &n_special);
    if (status == QN_OK && (n_text != n_special || memcmp(as_text, as_special, n_text * sizeof *as_text) != 0)) {
        chat->known = false;
        snprintf(chat->problem, sizeof chat->problem, "a ChatML template whose default system message spells control tokens");
    }
    free(as_text);
    free(as_special);
    return status;
}

static qn_status read_template(qn_chat_template *chat, const qn_gguf *file, const qn_tokenizer *tok)
{
    static const char key[] = "tokenizer.chat_template";
    qn_string text = { NULL, 0 };
    QN_TRY(qn_gguf_get_string(file, key, false, &text));
    if (!text.length) {
        snprintf(chat->problem, sizeof chat->problem, "no chat template ('%s' is %s)", key, text.data ? "empty" : "missing");
        return QN_OK;
    }
    if (!has(text, END) || !opens_turns(text)) {
        name_unknown(chat, text);
        return QN_OK;
    }
    chat->start = qn_tokenizer_find(tok, START);
    chat->end = qn_tokenizer_find(tok, END);
    if (chat->start < 0 || chat->end < 0) {
        snprintf(chat->problem, sizeof chat->problem, "a ChatML template, but no special token '%s'",
                 chat->start < 0 ? START : END);
        return QN_OK;
    }
    qn_chatml chatml;
    QN_TRY(qn_chatml_read(text, &chatml));
    chat->known = chatml.plain;
    chat->system = chatml.system;
    chat->bos = chatml.bos ? qn_tokenizer_bos(tok) : -1;
    if (!chat->known)
        snprintf(chat->problem, sizeof chat->problem, "a ChatML template that is not plain: %s", chatml.problem);
    return chat->system ? check_system(chat, tok) : QN_OK;
}

qn_status qn_chat_template_create(const qn_gguf *file, const qn_tokenizer *tok, qn_chat_template **out)
{
    *out = NULL;
    qn_chat_template *chat;
    QN_TRY(qn_alloc(&chat, 1, sizeof *chat, "chat template"));
    const qn_status status = read_template(chat, file, tok);
    if (status == QN_OK)
        *out = chat;
    else
        qn_chat_template_free(chat);
    return status;
}

void qn_chat_template_free(qn_chat_template *chat)
{
    if (!chat)
        return;
    qn_free(chat->system);
    qn_free(chat);
}

const char *qn_chat_template_name(const qn_chat_template *chat)
{
    return chat->known ? "chatml" : "";
}

/* ---- Writing a conversation ---- */

typedef struct writer {
    const qn_tokenizer *tok;
    int32_t *tokens;
    size_t n, capacity;
    char *text;
    size_t text_capacity;
} writer;

static qn_status append_token(writer *w, int32_t token)
{
    QN_TRY(qn_realloc_array(&w->tokens, &w->capacity, w->n + 1, sizeof *w->tokens, "tokens"));
    w->tokens[w->n++] = token;
    return QN_OK;
}

static qn_status append_text(writer *w, const char *text, size_t length)
{
    int32_t *tokens;
    size_t count, need;
    QN_TRY(qn_tokenizer_encode(w->tok, text, length, false, false, &tokens, &count));
    qn_status status = qn_add_size(w->n, count, &need)
                           ? qn_realloc_array(&w->tokens, &w->capacity, need, sizeof *w->tokens, "tokens")
                           : qn_fail(QN_ERR_MEMORY, "tokens: %zu and %zu more do not fit in memory", w->n, count);
    if (status == QN_OK && count) {
        memcpy(w->tokens + w->n, tokens, count * sizeof *tokens);
        w->n = need;
    }
    free(tokens);
    return status;
}

/* Role and content are tokenised together, because BPE may merge across the newline. */
static qn_status append_message(writer *w, const qn_chat_template *chat, const char *role, const char *content)
{
    const size_t n_role = strlen(role), n_content = strlen(content);
    size_t need;
    if (!qn_add_size(n_role + 1, n_content, &need))
        return qn_fail(QN_ERR_MEMORY, "message: %zu bytes do not fit in memory", n_content);
    QN_TRY(qn_realloc_array(&w->text, &w->text_capacity, need, 1, "message"));
    memcpy(w->text, role, n_role);
    w->text[n_role] = '\n';
    memcpy(w->text + n_role + 1, content, n_content);
    QN_TRY(append_token(w, chat->start));
    QN_TRY(append_text(w, w->text, need));
    QN_TRY(append_token(w, chat->end));
    return append_text(w, "\n", 1);
}

static qn_status write_chat(writer *w, const qn_chat_template *chat, const qn_chat_message *messages, size_t n,
                            bool add_assistant)
{
    QN_TRY(qn_realloc_array(&w->tokens, &w->capacity, 1, sizeof *w->tokens, "tokens"));
    if (chat->bos >= 0)
        QN_TRY(append_token(w, chat->bos));
    if (n && chat->system && strcmp(messages[0].role, "system") != 0)
        QN_TRY(append_message(w, chat, "system", chat->system));
    for (size_t i = 0; i < n; i++)
        QN_TRY(append_message(w, chat, messages[i].role, messages[i].content));
    if (!add_assistant)
        return QN_OK;
    QN_TRY(append_token(w, chat->start));
    return append_text(w, "assistant\n", sizeof "assistant\n" - 1);
}

static qn_status check_messages(const qn_chat_message *messages, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char *role = messages[i].role;
        if (!role || !messages[i].content)
            return qn_fail(QN_ERR_INVALID, "message %zu has no %s", i, role ? "content" : "role");
        if (strcmp(role, "system") != 0 && strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0)
            return qn_fail(QN_ERR_INVALID, "message %zu has the role '%s', expected system, user or assistant", i, role);
    }
    return QN_OK;
}

qn_status qn_chat_encode(const qn_tokenizer *tok, const qn_chat_template *chat, const qn_chat_message *messages, size_t n,
                         bool add_assistant, int32_t **tokens, size_t *count)
{
    *tokens = NULL;
    *count = 0;
    if (!chat->known)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "the model has %s; quern supports only plain ChatML: give the whole prompt as text (run without --chat)",
                       chat->problem);
    QN_TRY(check_messages(messages, n));
    writer w = { .tok = tok };
    const qn_status status = write_chat(&w, chat, messages, n, add_assistant);
    free(w.text);
    if (status != QN_OK) {
        free(w.tokens);
        return status;
    }
    *tokens = w.tokens;
    *count = w.n;
    return QN_OK;
}
