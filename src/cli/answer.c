/* Generates and shows an answer. */
#include "cli/answer.h"

#include "base/program.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/signals.h"
#include "cli/terminal.h"
#include "cli/wrap.h"

#include "base/append.h"
#include "base/memory.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLEAR_LINE "\r\033[K"

static const double redraw_interval = 0.1;

struct text {
    char *bytes;
    size_t length, capacity;
};

/* The state of one answer. */
struct stream {
    qn_chat_format format;
    qn_progress progress;
    qn_reasoning_view view;
    bool terminal;           /* standard output is one */
    bool moves;              /* and its cursor moves */
    const char *dim, *plain; /* styles, or "" */
    qn_wrap wrap;            /* if it moves */
    bool in_reasoning;       /* reasoning is being shown */
    bool is_counted;         /* the last token is counted as reasoning */
    bool ends_line, broken;
    struct text content, reasoning;
    size_t n_tokens, n_reasoning;
    double started, first, thinking_since, drawn;
    qn_status status; /* the first error of a callback */
};

static void keep_error(struct stream *s, qn_status status)
{
    if (s->status == QN_OK)
        s->status = status;
}

static void append(struct stream *s, struct text *text, const char *bytes, size_t length)
{
    if (qn_realloc_array(&text->bytes, &text->capacity, text->length + length + 1, 1, "answer")) {
        keep_error(s, QN_ERR_MEMORY);
        return;
    }
    memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = 0;
}

static void print(struct stream *s, const char *text, size_t length)
{
    size_t columns, rows;
    if (!length)
        return;
    if (s->moves) {
        if (qn_signals_drop_redraw()) { /* the style is plain again */
            qn_wrap_again(&s->wrap);
            fputs(s->in_reasoning && s->view == QN_REASONING_SHOW ? s->dim : "", stdout);
        }
        qn_terminal_size(stdout, &columns, &rows);
        qn_wrap_text(&s->wrap, text, length, columns);
    } else {
        qn_print_text(stdout, text, length);
    }
    s->ends_line = text[length - 1] == '\n';
}

static void print_line(struct stream *s, const char *text)
{
    print(s, text, strlen(text));
    print(s, "\n", 1);
}

/* ---- Reasoning ---- */

static void draw_fold(struct stream *s, const char *label)
{
    char line[128];
    size_t columns, rows;
    qn_text_buffer text = QN_APPEND_TO(line);
    qn_append(&text, "%s %zu token%s, %.1f s", label, s->n_reasoning, s->n_reasoning == 1 ? "" : "s",
              qn_seconds() - s->thinking_since);
    qn_terminal_size(stdout, &columns, &rows);
    printf(CLEAR_LINE "%s%.*s%s", s->dim, (int)columns, line, s->plain);
    s->drawn = qn_seconds();
}

static void begin_reasoning(struct stream *s)
{
    s->in_reasoning = true;
    s->thinking_since = qn_seconds();
    s->n_reasoning = 0;
    s->drawn = 0;
    if (s->view != QN_REASONING_SHOW)
        return;
    if (!s->ends_line)
        print(s, "\n", 1);
    if (*s->dim)
        fputs(s->dim, stdout);
    else
        print_line(s, s->format.think_open);
}

static void end_reasoning(struct stream *s)
{
    if (!s->in_reasoning)
        return;
    s->in_reasoning = false;
    if (s->view == QN_REASONING_FOLD && s->moves) {
        draw_fold(s, "thought:");
        putchar('\n');
        s->ends_line = true;
    } else if (s->view == QN_REASONING_SHOW) {
        fputs(s->plain, stdout);
        if (!s->ends_line)
            print(s, "\n", 1);
        if (!*s->dim)
            print_line(s, s->format.think_close);
        print(s, "\n", 1);
    }
}

static void show_reasoning(struct stream *s, const char *text, size_t length)
{
    if (!s->in_reasoning)
        begin_reasoning(s);
    append(s, &s->reasoning, text, length);
    s->n_reasoning += !s->is_counted;
    s->is_counted = true;
    if (s->view == QN_REASONING_SHOW)
        print(s, text, length);
    else if (s->view == QN_REASONING_FOLD && s->moves && qn_seconds() - s->drawn >= redraw_interval)
        draw_fold(s, "thinking...");
}

/* ---- Content ---- */

static void show_content(struct stream *s, const char *text, size_t length)
{
    end_reasoning(s);
    append(s, &s->content, text, length);
    print(s, text, length);
}

/* Shows an event of an answer. Without tools it has only reasoning and content. */
static bool on_event(void *user, const qn_output_event *event)
{
    struct stream *s = user;
    if (event->kind == QN_OUTPUT_REASONING)
        show_reasoning(s, event->text, event->length);
    else
        show_content(s, event->text, event->length);
    s->broken = !qn_out_flush();
    return !s->broken && s->status == QN_OK;
}

static bool on_token(void *user, qn_token token, const qn_logprobs *logprobs)
{
    (void)logprobs;
    struct stream *s = user;
    (void)token;
    qn_progress_end(&s->progress);
    if (!s->n_tokens++)
        s->first = qn_seconds();
    s->is_counted = false;
    return true;
}

static bool on_progress(void *user, size_t done, size_t total)
{
    struct stream *s = user;
    return qn_progress_update(s->n_tokens ? NULL : &s->progress, done, total);
}

/* ---- The session ---- */

/* Evaluates the messages of the prompt that the session does not hold, and adds a checkpoint. */
static qn_status evaluate_messages(qn_session *session, const qn_cli_prompt *prompt, struct stream *s, uint32_t *shared)
{
    QN_TRY(qn_session_truncate_to(session, prompt->tokens, prompt->count, shared));
    qn_progress_announce(&s->progress, prompt->count - *shared, "token");
    if (prompt->n_messages <= *shared || prompt->n_messages >= prompt->count)
        return QN_OK;
    QN_TRY(qn_session_eval(session, prompt->tokens + *shared, prompt->n_messages - *shared, QN_LOGITS_NONE, NULL));
    return qn_session_checkpoint(session);
}

static qn_status run(qn_session *session, const qn_cli_prompt *prompt, const qn_request_params *params,
                     struct stream *s, qn_request_result *result, uint32_t *shared)
{
    qn_request_params own = *params;
    own.on_event = on_event;
    own.on_token = on_token;
    own.user = s;
    s->started = qn_seconds();
    qn_progress_begin(&s->progress, "reading");
    qn_session_on_progress(session, on_progress, s);
    qn_signals_session(session);
    qn_status status = qn_signals_stop_requested() ? QN_ERR_CANCELLED : evaluate_messages(session, prompt, s, shared);
    if (status == QN_OK) {
        const uint32_t from = qn_session_length(session);
        own.tokens = prompt->tokens + from;
        own.n_tokens = prompt->count - from;
        status = qn_generate(session, &own, result);
    }
    qn_signals_session(NULL);
    qn_session_on_progress(session, NULL, NULL);
    qn_progress_end(&s->progress);
    if (s->n_tokens == 0) { /* no answer: the turn must not be saved with the session */
        const qn_status dropped = qn_session_truncate(session, qn_session_reach(session, *shared));
        status = status ? status : dropped;
    }
    return status;
}

static void take_results(const struct stream *s, const qn_cli_prompt *prompt, const qn_request_result *result,
                         uint32_t shared, qn_cli_answer *answer)
{
    const double end = qn_seconds();
    *answer = (qn_cli_answer){
        .content = s->content.bytes,
        .reasoning = s->reasoning.bytes,
        .n_prompt = prompt->count,
        .n_reused = shared,
        .n_generated = s->n_tokens,
        .n_drafted = result->n_drafted,
        .n_accepted = result->n_accepted,
        .prompt_seconds = (s->n_tokens ? s->first : end) - s->started,
        .generate_seconds = s->n_tokens ? end - s->first : 0,
        .finish = result->finish,
        .broken = s->broken,
    };
}

qn_status qn_cli_answer_generate(qn_session *session, const qn_model *model, const qn_cli_prompt *prompt,
                                 const qn_request_params *params, qn_reasoning_view view, qn_cli_answer *answer)
{
    struct stream s = { .format = *qn_model_get_chat_format(model), .view = view, .ends_line = true };
    qn_request_result result = QN_REQUEST_RESULT_INIT;
    uint32_t shared = 0;
    s.terminal = qn_is_terminal(STDOUT_FILENO);
    s.moves = qn_terminal_moves(stdout);
    s.dim = qn_terminal_style(stdout, QN_STYLE_DIM);
    s.plain = *s.dim ? QN_STYLE_PLAIN : "";
    qn_wrap_begin(&s.wrap, stdout);
    qn_status status = run(session, prompt, params, &s, &result, &shared);
    status = status ? status : s.status;
    end_reasoning(&s);
    if (!s.broken && !s.ends_line)
        print(&s, "\n", 1);
    if (s.terminal)
        putchar('\n');
    s.broken |= !qn_out_flush();
    take_results(&s, prompt, &result, shared, answer);
    return status;
}

void qn_cli_answer_free(qn_cli_answer *answer)
{
    free(answer->content);
    free(answer->reasoning);
    *answer = (qn_cli_answer){ 0 };
}
