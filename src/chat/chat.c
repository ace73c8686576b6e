/* The chat template of a model, and the variables for rendering it. */
#include "chat/chat.h"

#include "base/memory.h"
#include "base/status.h"
#include "base/utf8.h"
#include "chat/continue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHATML_START "<|im_start|>"
#define CHATML_END "<|im_end|>"

static const char chatml[] = "{% for message in messages %}"
                             "{{ '" CHATML_START "' + message.role + '\\n' + message.content + '" CHATML_END "\\n' }}"
                             "{% endfor %}"
                             "{% if add_generation_prompt %}{{ '" CHATML_START "assistant\\n' }}{% endif %}";

struct qn_chat_template {
    qn_jinja *jinja;
    const char *name;
    char *text; /* with `jinja`: its source */
    qn_output_params output;
    bool has_parsed_calls; /* true also without tools */
    char reasoning_end[QN_OUTPUT_MAX_WORDS];
    qn_chat_traits traits;
    bool *structural;                /* [n_vocab] see qn_chat_text_tokens */
    char problem[QN_ERROR_TEXT_MAX]; /* why there is no usable template */
};

/* ---- Finding the template ---- */

static qn_status use(qn_chat_template *chat, const char *name, const char *text, size_t length)
{
    const size_t mark = qn_utf8_mark(text, length);
    QN_TRY(qn_jinja_compile(text + mark, length - mark, &chat->jinja));
    qn_chat_traits_of(chat->jinja, &chat->traits);
    chat->name = name;
    QN_TRY(qn_alloc(&chat->text, length - mark + 1, 1, "chat template"));
    memcpy(chat->text, text + mark, length - mark);
    return QN_OK;
}

static qn_status use_chatml(qn_chat_template *chat, const qn_tokenizer *tok)
{
    if (qn_tokenizer_find(tok, CHATML_START) >= 0 && qn_tokenizer_find(tok, CHATML_END) >= 0)
        return use(chat, "chatml", chatml, sizeof chatml - 1);
    snprintf(chat->problem, sizeof chat->problem,
             "no chat template, and its vocabulary has no " CHATML_START " and " CHATML_END);
    return QN_OK;
}

static qn_status find_template(qn_chat_template *chat, const qn_gguf *file, const qn_tokenizer *tok, const char *given)
{
    qn_string text = { NULL, 0 };
    if (given)
        return use(chat, "given", given, strlen(given));
    QN_TRY(qn_gguf_get_string(file, "tokenizer.chat_template", false, &text));
    if (!text.length)
        return use_chatml(chat, tok);
    const qn_status status = use(chat, "file", text.data, text.length);
    if (status == QN_ERR_MEMORY)
        return status;
    if (status)
        snprintf(chat->problem, sizeof chat->problem, "a chat template that quern cannot use (%s)", qn_error_text());
    return QN_OK;
}

static void find_output(qn_chat_template *chat, const qn_tokenizer *tok)
{
    if (chat->jinja) {
        chat->has_parsed_calls = qn_output_form_of(chat->jinja, &chat->output);
        qn_output_find_tokens(&chat->output, tok);
        qn_output_reasoning_words(chat->jinja, &chat->output, chat->reasoning_end);
        chat->output.reasoning_end = chat->reasoning_end;
    } else {
        chat->has_parsed_calls = true;
        qn_output_params_init(&chat->output, QN_OUTPUT_PLAIN);
        chat->output.think_open.text = chat->output.think_close.text = NULL;
    }
}

struct marking {
    const qn_tokenizer *tok;
    bool *structural;
};

static bool mark_spelled(const char *text, size_t length, void *user)
{
    const struct marking *marking = user;
    qn_tokenizer_mark_structural(marking->tok, text, length, marking->structural);
    return true;
}

static qn_status find_structural(qn_chat_template *chat, const qn_tokenizer *tok)
{
    QN_TRY(qn_alloc(&chat->structural, qn_tokenizer_n_vocab(tok), sizeof *chat->structural, "structural tokens"));
    for (const char *const *marker = qn_output_markers; *marker; marker++)
        qn_tokenizer_mark_structural(tok, *marker, strlen(*marker), chat->structural);
    if (chat->jinja)
        qn_jinja_spells(chat->jinja, mark_spelled, &(struct marking){ tok, chat->structural });
    return QN_OK;
}

qn_status qn_chat_template_create(const qn_gguf *file, const qn_tokenizer *tok, const char *given,
                                  qn_chat_template **out)
{
    *out = NULL;
    qn_chat_template *chat;
    QN_TRY(qn_alloc(&chat, 1, sizeof *chat, "chat template"));
    chat->name = "";
    qn_status status = find_template(chat, file, tok, given);
    if (status == QN_OK)
        status = find_structural(chat, tok);
    if (status != QN_OK) {
        qn_chat_template_free(chat);
        return status;
    }
    find_output(chat, tok);
    *out = chat;
    return QN_OK;
}

void qn_chat_template_free(qn_chat_template *chat)
{
    if (!chat)
        return;
    qn_jinja_free(chat->jinja);
    qn_free(chat->text);
    qn_free(chat->structural);
    qn_free(chat);
}

const char *qn_chat_template_name(const qn_chat_template *chat)
{
    return chat->name;
}

const char *qn_chat_template_text(const qn_chat_template *chat)
{
    return chat->text ? chat->text : "";
}

const char *qn_chat_template_problem(const qn_chat_template *chat)
{
    return chat->problem;
}

const qn_jinja *qn_chat_template_jinja(const qn_chat_template *chat)
{
    return chat->jinja;
}

bool qn_chat_template_output(const qn_chat_template *chat, qn_output_params *output)
{
    *output = chat->output;
    return chat->has_parsed_calls;
}

const qn_chat_traits *qn_chat_template_traits(const qn_chat_template *chat)
{
    return chat->jinja ? &chat->traits : NULL;
}

/* ---- Rendering ---- */

/* Returns the text of a special token of the vocabulary; NULL if there is none. */
static json_t *token_text(const qn_tokenizer *tok, int32_t token)
{
    const char *bytes;
    size_t length;
    return token >= 0 && qn_tokenizer_piece(tok, token, &bytes, &length) == QN_OK ? json_stringn(bytes, length) : NULL;
}

/* Variables that a conversation need not contain. The caller owns their values. */
enum { STANDARD_VARIABLES = 4 };

static void standard_variables(const qn_tokenizer *tok, qn_jinja_variable *variables)
{
    variables[0] = (qn_jinja_variable){ "bos_token", token_text(tok, qn_tokenizer_bos(tok)), true };
    variables[1] = (qn_jinja_variable){ "eos_token", token_text(tok, qn_tokenizer_eos(tok)), true };
    variables[2] = (qn_jinja_variable){ "tools", json_null(), false };
    variables[3] = (qn_jinja_variable){ "documents", json_null(), false };
}

/* Whether a variable holds a special token. Its text counts as the template's own, even if the caller gives it. */
static bool is_token_variable(const char *name)
{
    const size_t n = strlen(name), suffix = sizeof "_token" - 1;
    return n > suffix && !strcmp(name + n - suffix, "_token");
}

/* Makes the list of a template's variables, which borrows their values. Later variables override earlier ones of the
 * same name. */
static qn_status make_variables(const json_t *conversation, const qn_jinja_variable *standard, qn_jinja_variable **out,
                                size_t *n)
{
    const char *name;
    json_t *value;
    size_t count = STANDARD_VARIABLES;
    QN_TRY(qn_alloc(out, STANDARD_VARIABLES + json_object_size(conversation), sizeof **out,
                    "variables of a chat template"));
    memcpy(*out, standard, STANDARD_VARIABLES * sizeof **out);
    json_object_foreach((json_t *)conversation, name, value)
    {
        (*out)[count++] = (qn_jinja_variable){ name, value, is_token_variable(name) };
    }
    *n = count;
    return QN_OK;
}

static qn_status render(const qn_tokenizer *tok, const qn_jinja *jinja, const json_t *conversation, int64_t now,
                        qn_jinja_output *output)
{
    qn_jinja_variable standard[STANDARD_VARIABLES], *variables = NULL;
    size_t n = 0;
    standard_variables(tok, standard);
    qn_status status = make_variables(conversation, standard, &variables, &n);
    if (status == QN_OK)
        status = qn_jinja_render(jinja, variables, n, now, NULL, output);
    qn_free(variables);
    for (size_t i = 0; i < STANDARD_VARIABLES; i++)
        json_decref(standard[i].value);
    return status;
}

static qn_status render_open(const qn_tokenizer *tok, const qn_chat_template *chat, const json_t *conversation,
                             int64_t now, qn_jinja_output *output)
{
    json_t *marked;
    QN_TRY(qn_chat_mark_content(conversation, &marked));
    qn_status status = render(tok, chat->jinja, marked, now, output);
    json_decref(marked);
    QN_TRY(status);
    status = qn_chat_cut_at_mark(conversation, chat->output.think_close.text, output);
    if (status != QN_OK)
        qn_jinja_output_free(output);
    return status;
}

qn_status qn_chat_render(const qn_tokenizer *tok, const qn_chat_template *chat, const json_t *conversation, int64_t now,
                         qn_jinja_output *output)
{
    json_t *adapted;
    bool continues;
    *output = (qn_jinja_output){ 0 };
    if (!chat->jinja)
        return qn_fail(
            QN_ERR_UNSUPPORTED,
            "the model has %s: name one with --chat-template, or give the whole prompt as text (run without --chat)",
            chat->problem);
    if (!json_is_object(conversation))
        return qn_fail(QN_ERR_INVALID, "the conversation is not a JSON object");
    QN_TRY(qn_chat_continues(conversation, &continues));
    QN_TRY(qn_chat_adapt(&chat->traits, conversation, &adapted));
    const qn_status status =
        (continues ? render_open(tok, chat, adapted, now, output) : render(tok, chat->jinja, adapted, now, output));
    json_decref(adapted);
    return status;
}

qn_status qn_chat_text_tokens(const qn_tokenizer *tok, const qn_chat_template *chat, const qn_jinja_output *text,
                              size_t most, int32_t **tokens, size_t *count)
{
    qn_text_span *spans;
    *tokens = NULL;
    *count = 0;
    QN_TRY(qn_alloc(&spans, text->n_spans, sizeof *spans, "spans of text"));
    for (size_t i = 0; i < text->n_spans; i++)
        spans[i] = (qn_text_span){ text->spans[i].end, text->spans[i].from_template };
    const qn_spanned_text spanned = { .text = text->text,
                                      .length = text->length,
                                      .spans = spans,
                                      .n_spans = text->n_spans,
                                      .structural = chat->structural };
    const qn_status status = qn_tokenizer_encode_spans(tok, &spanned, most, tokens, count);
    qn_free(spans);
    return status;
}

qn_status qn_chat_encode(const qn_tokenizer *tok, const qn_chat_template *chat, const json_t *conversation, int64_t now,
                         int32_t **tokens, size_t *count)
{
    qn_jinja_output text;
    *tokens = NULL;
    *count = 0;
    QN_TRY(qn_chat_render(tok, chat, conversation, now, &text));
    const qn_status status = qn_chat_text_tokens(tok, chat, &text, SIZE_MAX, tokens, count);
    qn_jinja_output_free(&text);
    return status;
}
