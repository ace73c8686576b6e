/* Messages and their tokens. conversation_file.c reads and writes files. */
#include "cli/conversation.h"

#include "base/memory.h"
#include "base/status.h"
#include "base/strings.h"
#include "text/utf8_stream.h"

#include <stdlib.h>
#include <string.h>

static const int64_t current_time = -1;

static qn_status no_memory(void)
{
    return qn_fail(QN_ERR_MEMORY, "no memory for the conversation");
}

/* ---- Messages ---- */

qn_status qn_conversation_begin(qn_conversation *c, const qn_model *model, const char *system, const char *effort)
{
    *c = (qn_conversation){ .model = model, .messages = json_array(), .thinking = json_object() };
    if (!c->messages || !c->thinking ||
        (effort && json_object_set_new(c->thinking, "reasoning_effort", json_string(effort))))
        return no_memory();
    return qn_conversation_set_system(c, system);
}

void qn_conversation_free(qn_conversation *c)
{
    free(c->system);
    json_decref(c->messages);
    json_decref(c->thinking);
    free(c->loaded);
}

void qn_conversation_reset(qn_conversation *c)
{
    json_array_clear(c->messages);
    free(c->loaded);
    c->loaded = NULL;
    c->n_loaded = 0;
    c->first = 0;
}

/* Copies a text with U+FFFD for bytes that are not UTF-8. The caller frees *text. */
static qn_status valid_text(const char *bytes, char **text)
{
    qn_utf8_stream stream = { 0 };
    const char *part;
    size_t n, n_end;
    *text = NULL;
    qn_status status = qn_utf8_stream_feed(&stream, bytes, strlen(bytes), &part, &n);
    if (status == QN_OK) {
        *text = malloc(n + sizeof "\xef\xbf\xbd");
        status = *text ? QN_OK : no_memory();
    }
    if (status == QN_OK) {
        memcpy(*text, part, n);
        status = qn_utf8_stream_flush(&stream, &part, &n_end);
    }
    if (status == QN_OK) {
        memcpy(*text + n, part, n_end);
        (*text)[n + n_end] = 0;
    } else {
        free(*text);
    }
    qn_utf8_stream_free(&stream);
    return status;
}

qn_status qn_conversation_set_system(qn_conversation *c, const char *system)
{
    char *copy = NULL;
    if (system)
        QN_TRY(valid_text(system, &copy));
    free(c->system);
    c->system = copy;
    qn_conversation_reset(c);
    return QN_OK;
}

qn_status qn_conversation_add(qn_conversation *c, const char *role, const char *content, const char *reasoning)
{
    char *text;
    QN_TRY(valid_text(content, &text));
    json_t *message = json_pack("{s:s, s:s}", "role", role, "content", text);
    free(text);
    if (message && reasoning && *reasoning &&
        json_object_set_new(message, "reasoning_content", json_string(reasoning))) {
        json_decref(message);
        message = NULL;
    }
    return json_array_append_new(c->messages, message) ? no_memory() : QN_OK;
}

void qn_conversation_truncate(qn_conversation *c, size_t n)
{
    while (json_array_size(c->messages) > n)
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
}

static bool is_user(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && strcmp(role, "user") == 0;
}

size_t qn_conversation_last_user(const qn_conversation *c, const char **text)
{
    for (size_t i = json_array_size(c->messages); i > c->first; i--) {
        const json_t *message = json_array_get(c->messages, i - 1);
        if (!is_user(message))
            continue;
        if (text)
            *text = json_string_value(json_object_get(message, "content"));
        return i - 1;
    }
    return SIZE_MAX;
}

/* ---- Rendering ---- */

/* The parts of a conversation that are rendered. */
struct selection {
    const char *system; /* or NULL */
    bool has_stand_in;  /* a user and an assistant message stand for the loaded tokens */
    size_t first;       /* index of the first message; SIZE_MAX: none */
    bool has_header;    /* of the answer */
};

static int append_text(json_t *messages, const char *role, const char *content)
{
    return json_array_append_new(messages, json_pack("{s:s, s:s}", "role", role, "content", content));
}

static json_t *select_messages(const qn_conversation *c, const struct selection *s)
{
    json_t *object = json_copy(c->thinking), *messages = json_array();
    int failed = json_object_set(object, "messages", messages);
    failed |= json_object_set_new(object, "add_generation_prompt", json_boolean(s->has_header));
    if (s->system)
        failed |= append_text(messages, "system", s->system);
    if (s->has_stand_in)
        failed |= append_text(messages, "user", ".") | append_text(messages, "assistant", ".");
    for (size_t i = s->first; i < json_array_size(c->messages); i++)
        failed |= json_array_append(messages, json_array_get(c->messages, i));
    json_decref(messages);
    if (!failed)
        return object;
    json_decref(object);
    return NULL;
}

static qn_status encode(const qn_conversation *c, struct selection s, qn_token **tokens, size_t *count)
{
    *tokens = NULL;
    json_t *object = select_messages(c, &s);
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    if (!text)
        return no_memory();
    const qn_status status = qn_conversation_tokens(c->model, text, strlen(text), current_time, tokens, count);
    free(text);
    return status;
}

/* Returns the index in with[] of the end token that closes the stand-in's answer; n_with: there is none. It is the last
 * end token of before[], and is found by its number among the end tokens, as a template may print an answer differently
 * when a message follows it. */
static size_t closing_end(const qn_model *model, const qn_token *before, size_t n_before, const qn_token *with,
                          size_t n_with)
{
    size_t n_ends = 0, at = 0;
    for (size_t i = 0; i < n_before; i++)
        n_ends += qn_token_is_end(model, before[i]);
    for (; at < n_with && n_ends > 0; at++)
        if (qn_token_is_end(model, with[at]) && --n_ends == 0)
            return at;
    return n_with;
}

/* Encodes the messages after loaded tokens: a stand-in is rendered before them, and the tokens from the end token on
 * that closes it are used. */
static qn_status encode_after_loaded(const qn_conversation *c, struct selection s, qn_token **tokens, size_t *count)
{
    qn_token *before, *with = NULL;
    size_t n_before, n_with = 0;
    const struct selection stand_in = { c->system, true, SIZE_MAX, false };
    *tokens = NULL;
    QN_TRY(encode(c, stand_in, &before, &n_before));
    qn_status status = encode(c, s, &with, &n_with);
    const size_t close = status ? 0 : closing_end(c->model, before, n_before, with, n_with);
    qn_free_tokens(before);
    if (status == QN_OK && close == n_with)
        status = qn_fail(QN_ERR_UNSUPPORTED, "the chat template ends an answer differently when a turn follows it");
    if (status == QN_OK) {
        *count = c->n_loaded + n_with - close;
        *tokens = malloc(*count * sizeof **tokens);
        status = *tokens ? QN_OK : no_memory();
    }
    if (status == QN_OK) {
        memcpy(*tokens, c->loaded, c->n_loaded * sizeof **tokens);
        memcpy(*tokens + c->n_loaded, with + close, (n_with - close) * sizeof **tokens);
    }
    qn_free_tokens(with);
    return status;
}

/* ---- Prompts ---- */

/* Encodes a prompt that begins with a turn. */
static qn_status encode_prompt(const qn_conversation *c, bool has_loaded, size_t first, bool has_header,
                               qn_token **tokens, size_t *count)
{
    const struct selection s = { c->system, has_loaded, first, has_header };
    return has_loaded ? encode_after_loaded(c, s, tokens, count) : encode(c, s, tokens, count);
}

/* The messages with which turns begin, from c->first on: the first message and each user message. Turn 0 includes
 * loaded tokens, which are dropped before the first message. */
struct turns {
    size_t *starts, n;
};

static qn_status find_turns(const qn_conversation *c, struct turns *turns)
{
    const size_t n = json_array_size(c->messages);
    turns->n = 0;
    turns->starts = malloc((n - c->first + 2) * sizeof *turns->starts);
    if (!turns->starts)
        return no_memory();
    if (c->loaded)
        turns->starts[turns->n++] = c->first;
    turns->starts[turns->n++] = c->first;
    for (size_t i = c->first + 1; i < n; i++)
        if (is_user(json_array_get(c->messages, i)))
            turns->starts[turns->n++] = i;
    return QN_OK;
}

static qn_status encode_turn(const qn_conversation *c, const struct turns *turns, size_t turn, qn_cli_prompt *prompt)
{
    qn_cli_prompt_free(prompt);
    return encode_prompt(c, c->loaded && turn == 0, turns->starts[turn], true, &prompt->tokens, &prompt->count);
}

/* Finds the first turn from which on the prompt has at most `limit` tokens, or the last turn. */
static qn_status fit(const qn_conversation *c, const struct turns *turns, size_t limit, size_t *turn,
                     qn_cli_prompt *prompt)
{
    size_t high = turns->n - 1;
    *turn = 0;
    QN_TRY(encode_turn(c, turns, 0, prompt));
    if (prompt->count <= limit || high == 0)
        return QN_OK;
    for (size_t low = 1; low < high;) {
        const size_t middle = low + (high - low) / 2;
        QN_TRY(encode_turn(c, turns, middle, prompt));
        if (prompt->count <= limit)
            high = middle;
        else
            low = middle + 1;
    }
    *turn = high;
    return encode_turn(c, turns, high, prompt);
}

/* Counts the tokens that the prompt shares with the same messages without the answer's header. */
static qn_status find_shared(const qn_conversation *c, bool has_loaded, size_t first, qn_cli_prompt *prompt)
{
    qn_token *tokens;
    size_t count, n = 0;
    QN_TRY(encode_prompt(c, has_loaded, first, false, &tokens, &count));
    while (n < count && n < prompt->count && tokens[n] == prompt->tokens[n])
        n++;
    prompt->n_messages = n;
    qn_free_tokens(tokens);
    return QN_OK;
}

static qn_status make_prompt(qn_conversation *c, const struct turns *turns, size_t capacity, size_t reserve,
                             qn_cli_prompt *prompt)
{
    size_t turn = 0;
    QN_TRY(fit(c, turns, capacity > reserve ? capacity - reserve : 0, &turn, prompt));
    if (prompt->count >= capacity)
        return qn_fail(QN_ERR_CONTEXT, "the message has %zu tokens, but the context has %zu; use a larger -c",
                       prompt->count, capacity);
    const bool has_loaded = c->loaded && turn == 0;
    QN_TRY(find_shared(c, has_loaded, turns->starts[turn], prompt));
    prompt->n_turns = turn;
    c->first = turns->starts[turn];
    if (!has_loaded) {
        free(c->loaded);
        c->loaded = NULL;
        c->n_loaded = 0;
    }
    return QN_OK;
}

qn_status qn_conversation_prompt(qn_conversation *c, size_t capacity, size_t reserve, qn_cli_prompt *prompt)
{
    struct turns turns;
    *prompt = (qn_cli_prompt){ 0 };
    QN_TRY(find_turns(c, &turns));
    const qn_status status = make_prompt(c, &turns, capacity, reserve, prompt);
    free(turns.starts);
    if (status)
        qn_cli_prompt_free(prompt);
    return status;
}

void qn_cli_prompt_free(qn_cli_prompt *prompt)
{
    qn_free_tokens(prompt->tokens);
    *prompt = (qn_cli_prompt){ 0 };
}

/* ---- Tokens of a session ---- */

/* Makes the text of tokens, special ones by name, up to and including the first that ends a turn. */
static qn_status turn_text(const qn_model *model, const qn_token *tokens, size_t n, char **text)
{
    size_t length = 0, capacity = 0;
    *text = NULL;
    for (size_t i = 0; i < n; i++) {
        const char *piece;
        size_t bytes;
        qn_status status = qn_token_piece(model, tokens[i], &piece, &bytes);
        if (status == QN_OK)
            status = qn_realloc_array(text, &capacity, length + bytes + 1, 1, "system turn");
        if (status) {
            free(*text);
            *text = NULL;
            return status;
        }
        memcpy(*text + length, piece, bytes);
        length += bytes;
        (*text)[length] = 0;
        if (qn_token_is_end(model, tokens[i]))
            break;
    }
    return QN_OK;
}

/* Makes the text of the first turn of a conversation with this system text. */
static qn_status system_turn_text(const qn_model *model, const char *system, char **text)
{
    const qn_chat_message messages[] = { { "system", system }, { "user", "." } };
    qn_token *tokens;
    size_t count;
    *text = NULL;
    QN_TRY(qn_chat_tokens(model, messages, 2, true, &tokens, &count));
    const qn_status made = turn_text(model, tokens, count, text);
    qn_free_tokens(tokens);
    return made;
}

/* Finds the session's system text: the system turns of two texts share the template's prefix and suffix, and the
 * session's first turn is compared with both. */
static qn_status find_system(const qn_session *session, const qn_model *model, char **system)
{
    char *a = NULL, *b = NULL, *turn = NULL;
    *system = NULL;
    qn_status status = system_turn_text(model, "a", &a);
    if (status == QN_OK)
        status = system_turn_text(model, "b", &b);
    if (status == QN_OK)
        status = turn_text(model, qn_session_tokens(session), qn_session_length(session), &turn);
    if (status == QN_OK && a && b && turn) {
        size_t before = 0;
        while (a[before] && a[before] == b[before])
            before++;
        const size_t after = strlen(a + before) - 1, length = strlen(turn);
        if (length >= before + after && memcmp(turn, a, before) == 0 &&
            memcmp(turn + length - after, a + before + 1, after) == 0) {
            *system = qn_strndup(turn + before, length - before - after);
            if (!*system)
                status = no_memory();
        }
    }
    free(a);
    free(b);
    free(turn);
    return status;
}

qn_status qn_conversation_load_tokens(qn_conversation *c, const qn_session *session)
{
    const uint32_t n = qn_session_length(session);
    qn_token pending;
    char *system = NULL;
    qn_conversation_reset(c);
    if (!n)
        return QN_OK;
    QN_TRY(find_system(session, c->model, &system));
    qn_token *tokens = malloc(((size_t)n + 1) * sizeof *tokens);
    if (!tokens) {
        free(system);
        return no_memory();
    }
    memcpy(tokens, qn_session_tokens(session), n * sizeof *tokens);
    free(c->system);
    c->system = system;
    c->loaded = tokens;
    c->n_loaded = n;
    /* A pending end of turn is rendered by the template. */
    if (qn_session_pending(session, &pending) && !qn_token_is_end(c->model, pending))
        c->loaded[c->n_loaded++] = pending;
    return QN_OK;
}

qn_status qn_conversation_take_loaded(qn_conversation *c, const qn_session *session, size_t n)
{
    const uint32_t length = qn_session_length(session);
    if (n > length)
        return qn_fail(QN_ERR_INVALID, "the conversation begins with %zu tokens, but its session has %u", n, length);
    qn_token *tokens = malloc(n * sizeof *tokens + 1);
    if (!tokens)
        return no_memory();
    memcpy(tokens, qn_session_tokens(session), n * sizeof *tokens);
    free(c->loaded);
    c->loaded = tokens;
    c->n_loaded = n;
    return QN_OK;
}
