/* Files of quern chat: /save keeps the messages in a file of JSON and the session's cache in another next to it, whose
 * name has ".session" added. Both are read again together; a cache that is missing, or of another model, costs only the
 * time to evaluate the messages. Session files of --save have no messages: their tokens begin the conversation. */
#include "cli/chat.h"

#include "base/file.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "cli/wrap.h"

#include "base/append.h"
#include "base/printable.h"
#include "engine/state_file.h"
#include "http/bytes.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define CACHE_SUFFIX ".session"

/* Of a loaded conversation at most SHOWN_TURNS turns are shown, and of each message its beginning and its end. */
enum { SHOWN_TURNS = 2, SHOWN_BYTES = 1200, SHOWN_TOKENS = 400 };

/* ---- Showing the last turns ---- */

static void show_text(FILE *to, const char *text, size_t length)
{
    qn_wrap wrap;
    size_t columns, rows;
    qn_terminal_size(to, &columns, &rows);
    qn_wrap_begin(&wrap, to);
    qn_wrap_text(&wrap, text, length, columns);
    fputc('\n', to);
}

static bool is_inside_character(char byte)
{
    return ((unsigned char)byte & 0xc0) == 0x80;
}

static void show_message(FILE *to, const char *text)
{
    const size_t length = strlen(text);
    size_t head = SHOWN_BYTES, tail = length - SHOWN_BYTES;
    if (length <= 2 * SHOWN_BYTES) {
        show_text(to, text, length);
        return;
    }
    while (head && is_inside_character(text[head]))
        head--;
    while (is_inside_character(text[tail]))
        tail++;
    show_text(to, text, head);
    fprintf(to, "%s[%zu bytes are not shown]%s\n", qn_terminal_style(to, QN_STYLE_DIM), tail - head,
            qn_terminal_style(to, QN_STYLE_PLAIN));
    show_text(to, text + tail, length - tail);
}

static const char *string_of(const json_t *message, const char *key)
{
    return json_string_value(json_object_get(message, key));
}

static void show_turns(FILE *to, const json_t *messages)
{
    size_t from = json_array_size(messages), n_turns = 0;
    while (from > 0 && n_turns < SHOWN_TURNS) {
        const char *role = string_of(json_array_get(messages, --from), "role");
        n_turns += role && strcmp(role, "user") == 0;
    }
    for (size_t i = from; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        const char *role = string_of(message, "role"), *content = string_of(message, "content");
        const bool is_user = role && strcmp(role, "user") == 0;
        if (!content)
            continue;
        if (is_user)
            fprintf(to, "%s> %s", qn_terminal_style(to, QN_STYLE_PROMPT), qn_terminal_style(to, QN_STYLE_MESSAGE));
        show_message(to, content);
        if (is_user)
            fputs(qn_terminal_style(to, QN_STYLE_PLAIN), to);
        else
            fputc('\n', to);
    }
}

/* Prints the last tokens of a session, special ones by name. */
static void show_tokens(FILE *to, const qn_model *model, const qn_session *session)
{
    const uint32_t length = qn_session_length(session);
    qn_bytes text = { 0 };
    for (uint32_t i = length > SHOWN_TOKENS ? length - SHOWN_TOKENS : 0; i < length; i++) {
        const char *piece;
        size_t n;
        if (qn_token_piece(model, qn_session_tokens(session)[i], &piece, &n) == QN_OK)
            qn_bytes_add(&text, piece, n);
    }
    if (!text.has_failed)
        show_text(to, text.data, text.length);
    qn_bytes_free(&text);
}

void qn_chat_show_last(const qn_chat *chat)
{
    const qn_conversation *c = &chat->conversation;
    if (!qn_terminal_moves(stdout))
        return;
    if (json_array_size(c->messages))
        show_turns(stdout, c->messages);
    else if (c->loaded)
        show_tokens(stdout, chat->model, chat->session);
    fflush(stdout);
}

/* ---- Names ---- */

bool qn_chat_path(const char *name, char path[PATH_MAX])
{
    const char *home = qn_file_home(NULL);
    if (name[0] == '~' && qn_file_is_separator(name[1]) && home)
        return qn_print(path, PATH_MAX, "%s/%s", home, name + 2);
    return qn_print(path, PATH_MAX, "%s", name);
}

static bool cache_path(const char *path, char cache[PATH_MAX])
{
    return qn_print(cache, PATH_MAX, "%s" CACHE_SUFFIX, path);
}

/* ---- Saving ---- */

static void say_saved(const qn_conversation *c, const char *more, const char *size, const char *cache)
{
    qn_wrap_print(stderr, "%zu messages are saved.%s%s%s%s%s\n", json_array_size(c->messages), more, size,
                  *cache ? ", is in " : "", cache, *cache ? "." : "");
}

void qn_chat_save(const qn_chat *chat, const char *path)
{
    char cache[PATH_MAX], size[32];
    const qn_conversation *c = &chat->conversation;
    const uint32_t n = qn_session_length(chat->session);
    if (qn_check_output(chat->args, NULL, path))
        return;
    if (qn_conversation_save(c, path)) {
        qn_cli_fail();
        return;
    }
    /* An empty session replaces an earlier one. */
    if (!cache_path(path, cache) || qn_check_output(chat->args, NULL, cache) || (!n && !qn_file_exists(cache))) {
        say_saved(c, "", "", "");
    } else if (qn_session_save(chat->session, cache)) {
        say_saved(c, "", "", "");
        qn_cli_error("%s; the messages are saved without the cache", qn_error_text());
    } else {
        qn_print_size(size, qn_session_cache_bytes(chat->session, n));
        qn_mask(cache);
        say_saved(c, " The cache, ", size, cache);
    }
}

/* ---- Loading ---- */

static qn_status restore(qn_chat *chat, const char *path)
{
    qn_session *session;
    const qn_session_params params = {
        .size = sizeof(qn_session_params),
        .n_ctx = (uint32_t)chat->args->context,
        .n_batch = (uint32_t)chat->args->batch,
        .kv = chat->args->kv,
        .n_checkpoints = QN_SESSION_CHECKPOINTS,
        .on_log = chat->args->quiet ? NULL : qn_cli_log_note,
    };
    const qn_status status = qn_session_restore(chat->model, path, &params, &session);
    if (status)
        return status;
    qn_session_free(chat->session);
    chat->session = session;
    return QN_OK;
}

/* Restores the cache next to a conversation. Without it the session is emptied, as --save must not save the old one. */
static qn_status restore_cache(qn_chat *chat, const char *path, size_t n_loaded)
{
    char cache[PATH_MAX];
    const bool is_there = cache_path(path, cache) && qn_file_exists(cache);
    qn_status status = is_there ? restore(chat, cache) : QN_OK;
    const bool is_restored = is_there && status == QN_OK;
    if (status)
        qn_cli_error("note: the messages are evaluated again: %s", qn_error_text());
    status = is_restored ? QN_OK : qn_session_truncate(chat->session, 0);
    if (status == QN_OK && n_loaded && is_restored)
        status = qn_conversation_take_loaded(&chat->conversation, chat->session, n_loaded);
    else if (status == QN_OK && n_loaded)
        qn_cli_error("note: the conversation began with %zu tokens that have no messages and were in %s", n_loaded,
                     cache);
    return status;
}

qn_status qn_chat_load(qn_chat *chat, const char *path)
{
    qn_conversation *c = &chat->conversation;
    size_t n_loaded;
    if (!qn_conversation_is_file(path) && qn_session_check_target(path) == QN_OK && qn_file_exists(path)) {
        qn_status status = restore(chat, path);
        if (status == QN_OK)
            status = qn_conversation_load_tokens(c, chat->session);
        return status;
    }
    qn_status status = qn_conversation_open(c, path, &n_loaded);
    if (status == QN_OK)
        status = restore_cache(chat, path, n_loaded);
    return status;
}
