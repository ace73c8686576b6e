/* Rows of sessions: embeddings in place of tokens, positions, logits of any rows, hidden states; what truncation,
 * forks, files and qn_generate do after them; rows that are refused. */
#include "helper_sessions.h"

#include <math.h>

enum { N = 24, IMAGE = 5, N_IMAGE = 6, N_CTX = 200 };

static float *embeddings;       /* [N, n_embd] of the tokens `ids` */
static const float *as_rows[N]; /* pointers to them */
static size_t n_embd;

static qn_session *new_session(const char *kv)
{
    return create_session(model, &SESSION_PARAMS(.n_ctx = N_CTX, .n_batch = 7, .kv = kv));
}

static void open_rows(const char *name)
{
    open_model(name, CPU_MODEL(.n_threads = 2), N);
    n_embd = info.n_embd;
    embeddings = malloc(N * n_embd * sizeof *embeddings);
    assert_non_null(embeddings);
    const qn_matrix *table = &model->plan.ops[0].embed.table;
    assert_int_equal(model->plan.ops[0].embed.inverse.block, 0);
    for (size_t i = 0; i < N; i++) {
        as_rows[i] = embeddings + i * n_embd;
        table->type->to_float(table->data + (size_t)ids[i] * table->row_bytes,
                              table->n_cols / table->type->block_weights, embeddings + i * n_embd);
    }
}

static void close_rows(void)
{
    free(embeddings);
    close_model();
}

static qn_rows rows_of(size_t n)
{
    qn_rows rows = QN_ROWS_INIT;
    rows.n = n;
    rows.tokens = ids;
    rows.n_embd = n_embd;
    return rows;
}

/* Logits of all N rows. */
static void eval_all(qn_session *session, qn_rows rows, float *logits)
{
    rows.n_logit_rows = rows.n;
    rows.logits = logits;
    assert_ok(qn_session_eval_rows(session, &rows));
}

/* A prompt with an image of N_IMAGE rows at IMAGE, in a grid of two lines of three: the embeddings are those of the
 * tokens `ids`, in reverse order, which no token row has. The positions are those of Qwen's models. */
struct image {
    qn_token tokens[N];
    const float *embeddings[N];
    uint32_t positions[N][3];
    uint64_t ids[N];
};

static qn_rows image_rows(struct image *image, bool with_positions)
{
    qn_rows rows = rows_of(N);
    for (uint32_t i = 0; i < N; i++) {
        const bool is_image = i >= IMAGE && i < IMAGE + N_IMAGE;
        const uint32_t k = i - IMAGE, text = i < IMAGE ? i : i - N_IMAGE + 3; /* the image advances by its width */
        image->tokens[i] = is_image ? -1 : ids[i];
        image->embeddings[i] = is_image ? as_rows[N - 1 - i] : NULL;
        image->ids[i] = is_image ? 1000 + i : 0;
        for (uint32_t c = 0; c < 3; c++)
            image->positions[i][c] = !is_image ? text : IMAGE + (c == 1 ? k / 3 : c == 2 ? k % 3 : 0);
    }
    rows.tokens = image->tokens;
    rows.embeddings = image->embeddings;
    rows.ids = image->ids;
    rows.n_components = 3;
    rows.positions = with_positions ? image->positions[0] : NULL;
    return rows;
}

static const char *const models[] = { "qwen35.q1_0", "qwen3.q2_0", "llama.f16" };
enum { N_MODELS = COUNT(models) };

/* ---- Evaluation ---- */

/* Rows of tokens, and embeddings of the same tokens, are evaluated as qn_session_eval does. */
TEST(rows_are_tokens_or_their_embeddings)
{
    for (size_t i = 0; i < N_MODELS; i++) {
        label("%s", models[i]);
        open_rows(models[i]);
        qn_session *tokens = new_session(NULL), *rows = new_session(NULL), *embedded = new_session(NULL);
        const float *mixed[N];
        uint32_t positions[N];
        assert_ok(qn_session_eval(tokens, ids, N, QN_LOGITS_ALL, expected));
        qn_rows given = rows_of(N);
        for (uint32_t k = 0; k < N; k++) {
            mixed[k] = k % 3 == 1 ? as_rows[k] : NULL;
            positions[k] = k;
        }
        given.positions = positions;
        given.n_components = 1;
        eval_all(rows, given, found);
        assert_same_logits();
        assert_int_equal(rows->n_own_rows, 0);
        given.embeddings = mixed;
        eval_all(embedded, given, found);
        assert_same_logits();
        for (size_t k = 0; k < N; k++)
            assert_int_equal(qn_session_tokens(embedded)[k], mixed[k] ? -1 : ids[k]);
        assert_ok(qn_session_truncate(embedded, 0));
        assert_int_equal(embedded->n_own_rows, 0);
        given = rows_of(N);
        given.tokens = NULL;
        given.embeddings = as_rows;
        memset(found, 0xff, logits_bytes);
        eval_all(embedded, given, found);
        assert_same_logits();
        qn_session_free(tokens);
        qn_session_free(rows);
        qn_session_free(embedded);
        close_rows();
    }
}

/* Logits and hidden states of some rows, in any batch, are those of the rows evaluated one by one. */
TEST(any_rows_have_logits_and_hidden_states)
{
    static const uint32_t wanted[] = { 0, 3, 6, 7, 20, 22 };
    enum { N_WANTED = COUNT(wanted) };
    for (size_t i = 0; i < N_MODELS; i++) {
        label("%s", models[i]);
        open_rows(models[i]);
        qn_session *together = new_session(NULL), *alone = new_session(NULL);
        float *states = calloc(4 * N * n_embd, sizeof *states), *hidden[N], *normed[N];
        assert_non_null(states);
        qn_rows rows = rows_of(N);
        for (size_t k = 0; k < N; k++) {
            hidden[k] = k % 2 ? states + k * n_embd : NULL;
            normed[k] = k % 5 == 0 ? states + (N + k) * n_embd : NULL;
        }
        rows.logit_rows = wanted;
        rows.n_logit_rows = N_WANTED;
        rows.logits = found;
        rows.hidden = hidden;
        rows.normed = normed;
        memset(found, 0xff, logits_bytes);
        assert_ok(qn_session_eval_rows(together, &rows));
        float *all = malloc(logits_bytes);
        assert_non_null(all);
        for (size_t k = 0; k < N; k++) {
            float *const own[] = { states + (2 * N + k) * n_embd, states + (3 * N + k) * n_embd };
            qn_rows one = rows_of(1);
            one.tokens = ids + k;
            one.n_logit_rows = 1;
            one.logits = all + k * info.n_vocab;
            one.hidden = hidden[k] ? &own[0] : NULL;
            one.normed = normed[k] ? &own[1] : NULL;
            assert_ok(qn_session_eval_rows(alone, &one));
        }
        memset(expected, 0xff, logits_bytes);
        for (size_t k = 0; k < N_WANTED; k++)
            memcpy(expected + k * info.n_vocab, all + wanted[k] * info.n_vocab, info.n_vocab * sizeof *all);
        assert_same_logits();
        assert_memory_equal(states, states + 2 * N * n_embd, 2 * N * n_embd * sizeof *states);
        assert_true(states[1 * n_embd] != 0 && states[N * n_embd] != 0 && states[0] == 0);
        /* Without a list, the last rows. */
        assert_ok(qn_session_truncate(together, 0));
        rows = rows_of(N);
        rows.n_logit_rows = 3;
        rows.logits = found;
        assert_ok(qn_session_eval_rows(together, &rows));
        assert_memory_equal(found, all + (N - 3) * info.n_vocab, 3 * info.n_vocab * sizeof *all);
        free(all);
        free(states);
        qn_session_free(together);
        qn_session_free(alone);
        close_rows();
    }
}

/* Text after an image follows its greatest position, as do qn_session_eval and qn_generate; another position has other
 * logits. */
TEST(text_follows_the_positions_of_an_image)
{
    struct image image;
    open_rows("qwen35.q1_0");
    qn_session *given = new_session(NULL), *continued = new_session(NULL), *flat = new_session(NULL);
    qn_rows rows = image_rows(&image, true);
    eval_all(given, rows, expected);
    assert_int_equal(given->n_own_rows, N_IMAGE); /* the text's positions follow */
    rows.n = IMAGE + N_IMAGE;
    eval_all(continued, rows, found);
    assert_ok(qn_session_eval(continued, ids + rows.n, N - rows.n, QN_LOGITS_ALL, found + rows.n * info.n_vocab));
    assert_same_logits();
    rows = image_rows(&image, false);
    eval_all(flat, rows, found);
    assert_memory_equal(found, expected, IMAGE * info.n_vocab * sizeof *found);
    assert_memory_not_equal(found + (N - 1) * info.n_vocab, expected + (N - 1) * info.n_vocab,
                            info.n_vocab * sizeof *found);
    /* Greedy tokens, evaluated again at the positions that they must have had. */
    struct collected answer = { .count = 0 };
    generate(continued, ids, 3, 9, &answer);
    rows = rows_of(3 + 8);
    qn_token tokens[3 + 8];
    uint32_t positions[3 + 8];
    for (uint32_t i = 0; i < rows.n; i++) {
        tokens[i] = i < 3 ? ids[i] : answer.tokens[i - 3];
        positions[i] = N - N_IMAGE + 3 + i;
    }
    rows.tokens = tokens;
    rows.positions = positions;
    rows.n_components = 1;
    rows.n_logit_rows = 9;
    rows.logits = found;
    assert_ok(qn_session_eval_rows(given, &rows));
    assert_int_equal(given->n_own_rows, N_IMAGE);
    for (size_t i = 0; i < 9; i++) {
        size_t best = 0;
        for (size_t t = 1; t < info.n_vocab; t++)
            best = found[i * info.n_vocab + t] > found[i * info.n_vocab + best] ? t : best;
        assert_int_equal(best, answer.tokens[i]);
    }
    /* The same bits after one more token: the cache and the state are equal. */
    float *a = expected, *b = found;
    qn_token pending;
    assert_true(qn_session_pending(continued, &pending));
    assert_ok(qn_session_eval(continued, &pending, 1, QN_LOGITS_LAST, a));
    assert_ok(qn_session_eval(given, &pending, 1, QN_LOGITS_LAST, b));
    assert_memory_equal(a, b, info.n_vocab * sizeof *a);
    qn_session_free(given);
    qn_session_free(continued);
    qn_session_free(flat);
    close_rows();
}

/* ---- Failures ---- */

static const qn_device_vtable *device_functions;
static size_t runs_before_failure;

static qn_status run_until_failure(qn_device *device, const qn_step *step)
{
    return runs_before_failure-- ? device_functions->run(device, step) : qn_fail(QN_ERR_DEVICE, "refused");
}

/* After a batch that fails, the session has the rows of the batches before it, and continues as if there had been no
 * failure. */
TEST(a_failed_batch_leaves_no_rows)
{
    struct image image;
    open_rows("qwen35.q1_0");
    qn_session *session = new_session(NULL), *other = new_session(NULL);
    qn_rows rows = image_rows(&image, true);
    qn_device_vtable failing = *(device_functions = model->device->vtable);
    failing.run = run_until_failure;
    eval_all(other, rows, expected);
    runs_before_failure = 1;
    model->device->vtable = &failing;
    rows.n_logit_rows = N;
    rows.logits = found;
    assert_int_equal(qn_session_eval_rows(session, &rows), QN_ERR_DEVICE);
    model->device->vtable = device_functions;
    assert_int_equal(qn_session_length(session), session->n_batch);
    assert_int_equal(session->n_own_rows, session->n_batch - IMAGE);
    rows.n = rows.n_logit_rows = N - session->n_batch;
    rows.tokens += session->n_batch;
    rows.embeddings += session->n_batch;
    rows.ids += session->n_batch;
    rows.positions = image.positions[session->n_batch];
    rows.logits = found + session->n_batch * info.n_vocab;
    assert_ok(qn_session_eval_rows(session, &rows));
    assert_int_equal(session->n_own_rows, N_IMAGE);
    assert_same_logits();
    qn_session_free(session);
    qn_session_free(other);
    close_rows();
}

/* ---- Truncation, forks, files ---- */

/* Logits of the last tokens of `ids`, after the session's rows. */
static void eval_rest(qn_session *session, size_t from, float *logits)
{
    memset(logits, 0, logits_bytes);
    assert_ok(qn_session_eval(session, ids + from, N - from, QN_LOGITS_ALL, logits));
}

TEST(truncation_and_copies_keep_rows)
{
    struct image image;
    for (int i = 0; i < 2; i++) {
        label("%s", models[i]);
        open_rows(models[i]);
        qn_session *session = new_session(NULL), *other = new_session(NULL), *copy;
        qn_rows rows = image_rows(&image, i == 0);
        rows.n = IMAGE + N_IMAGE + 2;
        assert_ok(qn_session_eval_rows(other, &rows));
        eval_rest(other, rows.n, expected);
        assert_ok(qn_session_eval_rows(session, &rows));
        append_tokens(session, ids, 9);
        assert_ok(qn_session_truncate(session, (uint32_t)rows.n));
        assert_ok(qn_session_fork(session, &copy));
        eval_rest(copy, rows.n, found);
        assert_same_logits();
        qn_session_free(copy);
        assert_ok(qn_session_save(session, path));
        assert_ok(qn_session_restore(model, path, NULL, &copy));
        assert_memory_equal(qn_session_tokens(copy), qn_session_tokens(session), rows.n * sizeof(qn_token));
        eval_rest(copy, rows.n, found);
        assert_same_logits();
        qn_session_free(copy);
        eval_rest(session, rows.n, found);
        assert_same_logits();
        /* Into the image, and rows in place of the rest of it. */
        assert_ok(qn_session_truncate(session, IMAGE + 2));
        assert_int_equal(session->n_own_rows, 2);
        rows.n -= IMAGE + 2;
        rows.tokens += IMAGE + 2;
        rows.embeddings += IMAGE + 2;
        rows.ids += IMAGE + 2;
        rows.positions = rows.positions ? image.positions[IMAGE + 2] : NULL;
        assert_ok(qn_session_eval_rows(session, &rows));
        eval_rest(session, IMAGE + N_IMAGE + 2, found);
        assert_same_logits();
        qn_session_free(session);
        qn_session_free(other);
        close_rows();
    }
}

/* The longest common prefix, by tokens, ids of embeddings and positions. */
TEST(prompts_of_rows_are_compared)
{
    struct image image;
    static const struct {
        int change; /* of the prompt's row */
        uint32_t row, shared;
    } cases[] = { { 0, 0, N - 1 },
                  { 1, 3, 3 },
                  { 1, N - 3, N - 3 },
                  { 2, IMAGE + 4, IMAGE + 4 },
                  { 3, IMAGE + 1, IMAGE + 1 },
                  { 3, N - 2, N - 2 },
                  { 4, IMAGE + 2, IMAGE + 2 } };
    open_rows("qwen3.q2_0");
    for (int hashed = 0; hashed < 2; hashed++)
        for (size_t i = 0; i < COUNT(cases); i++) {
            label("case %zu, %d", i, hashed);
            uint32_t shared, positions[N];
            const uint32_t row = cases[i].row;
            qn_session *session = new_session(NULL);
            qn_rows rows = image_rows(&image, false);
            float *copies = malloc(N * n_embd * sizeof *copies);
            assert_non_null(copies);
            rows.ids = hashed ? NULL : rows.ids;
            assert_ok(qn_session_eval_rows(session, &rows));
            for (uint32_t k = 0; k < N; k++) {
                positions[k] = k;
                if (image.embeddings[k])
                    image.embeddings[k] = memcpy(copies + k * n_embd, image.embeddings[k], n_embd * sizeof *copies);
            }
            image.tokens[row] += cases[i].change == 1;
            copies[row * n_embd] += cases[i].change == 2;
            image.ids[row] += cases[i].change == 2;
            positions[row] += cases[i].change == 3;
            if (cases[i].change == 4) { /* a token in place of an embedding */
                image.tokens[row] = 1;
                image.embeddings[row] = NULL;
            }
            rows.positions = cases[i].change == 3 ? positions : NULL;
            rows.n_components = 1;
            rows.embeddings = hashed ? rows.embeddings : NULL;
            assert_ok(qn_session_truncate_to_rows(session, &rows, &shared));
            assert_int_equal(shared, cases[i].shared);
            assert_int_equal(qn_session_length(session), cases[i].shared);
            free(copies);
            qn_session_free(session);
        }
    /* Tokens alone end before the image, even with its ids of -1; without ids and embeddings nothing is known. */
    uint32_t shared;
    qn_session *session = new_session(NULL);
    qn_rows rows = image_rows(&image, false);
    assert_ok(qn_session_eval_rows(session, &rows));
    rows.ids = NULL;
    rows.embeddings = NULL;
    assert_fails(qn_session_truncate_to_rows(session, &rows, &shared), QN_ERR_INVALID,
                 "row 5 has no token, no embedding and no id");
    assert_ok(qn_session_truncate_to(session, image.tokens, N, &shared));
    assert_int_equal(shared, IMAGE);
    /* A token at a position of its own. */
    uint32_t position = 50;
    rows = rows_of(1);
    rows.positions = &position;
    rows.n_components = 1;
    assert_ok(qn_session_eval_rows(session, &rows));
    assert_int_equal(session->n_own_rows, 1);
    image.tokens[IMAGE] = ids[0];
    assert_ok(qn_session_truncate_to(session, image.tokens, N, &shared));
    assert_int_equal(shared, IMAGE);
    qn_session_free(session);
    close_rows();
}

/* With AURA codes a truncated page is evaluated again, which needs its embeddings; tokens at positions of their own can
 * be evaluated again. */
TEST(embeddings_are_not_evaluated_again)
{
    uint32_t position = 300;
    open_rows("qwen3.q2_0");
    qn_session *session = new_session("aura4"), *other = new_session("aura4");
    assert_string_equal(qn_session_kv(session), "aura4");
    for (int i = 0; i < 2; i++) {
        qn_session *s = i ? other : session;
        append_tokens(s, ids, 70);
        qn_rows own = rows_of(1);
        own.positions = &position;
        own.n_components = 1;
        assert_ok(qn_session_eval_rows(s, &own));
        append_tokens(s, ids, 9);
        if (i) /* 80 tokens */
            break;
        own = rows_of(1);
        own.embeddings = as_rows;
        assert_ok(qn_session_eval_rows(s, &own));
        append_tokens(s, ids, 80);
    }
    assert_int_equal(qn_session_length(session), 161);
    assert_int_equal(qn_session_reach(session, 100), 80);
    assert_int_equal(qn_session_reach(session, 140), 140);
    assert_fails(qn_session_truncate(session, 100), QN_ERR_UNSUPPORTED, "row 80 is an embedding");
    assert_int_equal(qn_session_length(session), 161);
    assert_ok(qn_session_truncate(session, 80));
    assert_int_equal(session->n_own_rows, 1);
    eval_rest(session, 0, found);
    eval_rest(other, 0, expected);
    assert_same_logits();
    qn_session_free(session);
    qn_session_free(other);
    close_rows();
}

/* ---- Errors ---- */

TEST(wrong_rows_are_refused)
{
    static const uint32_t descending[] = { 3, 2 }, outside[] = { 2, 4 }, large[] = { 0, 1, 2, 1u << 30 };
    static const uint32_t different[] = { 0, 0, 1, 1, 2, 3, 3, 3 };
    static const qn_token vocabulary[] = { 0, 1, 2, -1 };
    qn_session *session;
    uint32_t shared;
    open_rows("qwen3.q2_0");
    session = new_session(NULL);
    const float *holes[] = { as_rows[0], NULL, as_rows[1], as_rows[2] };
    float *const hidden[4] = { found };
    assert_int_equal(qn_session_eval_rows(session, NULL), QN_ERR_INVALID);
    assert_int_equal(qn_session_truncate_to_rows(session, NULL, &shared), QN_ERR_INVALID);
#define REFUSED(status, text, ...)                                                                                     \
    do {                                                                                                               \
        qn_rows rows_ = rows_of(4);                                                                                    \
        __VA_ARGS__;                                                                                                   \
        label("%s", text);                                                                                             \
        assert_fails(qn_session_eval_rows(session, &rows_), status, text);                                             \
        assert_int_equal(qn_session_length(session), 0);                                                               \
        assert_int_equal(session->n_own_rows, 0);                                                                      \
    } while (0)
    REFUSED(QN_ERR_INVALID, "size is 0", rows_.size = 0);
    REFUSED(QN_ERR_INVALID, "neither tokens nor embeddings", rows_.tokens = NULL);
    REFUSED(QN_ERR_INVALID, "outside the vocabulary", rows_.tokens = vocabulary);
    REFUSED(QN_ERR_INVALID, "row 1 has neither", rows_.tokens = NULL, rows_.embeddings = holes);
    REFUSED(QN_ERR_INVALID, "outside the vocabulary", rows_.tokens = vocabulary + 2, rows_.embeddings = holes);
    REFUSED(QN_ERR_INVALID, "n_embd is", rows_.embeddings = as_rows, rows_.n_embd--);
    REFUSED(QN_ERR_INVALID, "n_embd is 0", rows_.hidden = hidden, rows_.n_embd = 0);
    REFUSED(QN_ERR_INVALID, "n_embd is", rows_.normed = hidden, rows_.n_embd++);
    REFUSED(QN_ERR_INVALID, "positions of 0 components", rows_.positions = different);
    REFUSED(QN_ERR_INVALID, "positions of 5 components, expected 1 to 4", rows_.positions = different,
            rows_.n_components = 5);
    REFUSED(QN_ERR_INVALID, "of row 3 is 1073741824", rows_.positions = large, rows_.n_components = 1);
    REFUSED(QN_ERR_UNSUPPORTED, "row 2 has different components", rows_.positions = different, rows_.n_components = 2);
    REFUSED(QN_ERR_INVALID, "logits: NULL", rows_.n_logit_rows = 1);
    REFUSED(QN_ERR_INVALID, "logits of 5 rows, there are 4", rows_.n_logit_rows = 5, rows_.logits = found);
    REFUSED(QN_ERR_INVALID, "logit row 1 is 2", rows_.n_logit_rows = 2, rows_.logits = found,
            rows_.logit_rows = descending);
    REFUSED(QN_ERR_INVALID, "logit row 1 is 4", rows_.n_logit_rows = 2, rows_.logits = found,
            rows_.logit_rows = outside);
    REFUSED(QN_ERR_CONTEXT, "do not fit", rows_.n = N_CTX + 1);
    embeddings[2 * n_embd + 1] = NAN;
    REFUSED(QN_ERR_INVALID, "the embedding of row 2 is nan at 1", rows_.embeddings = as_rows);
    embeddings[2 * n_embd + 1] = -INFINITY;
    REFUSED(QN_ERR_INVALID, "the embedding of row 2 is -inf at 1", rows_.embeddings = as_rows);
    /* A device that takes only tokens, and positions that follow each other. */
    const unsigned features = model->device->row_features;
    const uint32_t apart[] = { 0, 1, 2, 9 }, plain[] = { 0, 1, 2, 3 };
    embeddings[2 * n_embd + 1] = 0;
    model->device->row_features = 0;
    REFUSED(QN_ERR_UNSUPPORTED, "cpu: rows with embeddings are not supported", rows_.embeddings = as_rows);
    REFUSED(QN_ERR_UNSUPPORTED, "cpu: hidden states of rows are not supported", rows_.normed = hidden);
    REFUSED(QN_ERR_UNSUPPORTED, "positions of their own are not supported", rows_.positions = apart,
            rows_.n_components = 1);
#undef REFUSED
    qn_rows rows = rows_of(4);
    rows.positions = plain;
    rows.n_components = 1;
    rows.n_logit_rows = 4;
    rows.logits = found;
    assert_ok(qn_session_eval_rows(session, &rows));
    model->device->row_features = features;
    qn_session_free(session);
    close_rows();
}

/* ---- Files ---- */

static uint8_t bytes[1 << 22];

static void forge(const uint8_t *data, size_t size, qn_status status, const char *text)
{
    qn_session *session;
    write_forged((uint8_t *)(uintptr_t)data, size);
    assert_int_equal(qn_session_restore(model, other_path, NULL, &session), status);
    if (status != QN_OK && !strstr(qn_error_text(), text))
        fail_msg("'%s', expected '%s'", qn_error_text(), text);
    qn_session_free(session);
}

/* Files of text are of version 4, as before; those with rows of version 5, with lists that are checked. */
TEST(files_list_rows)
{
    struct image image;
    struct qn_state_header header;
    open_rows("qwen35.q1_0");
    qn_session *session = new_session(NULL);
    append_tokens(session, ids, N);
    assert_ok(qn_session_save(session, path));
    const size_t text_size = read_state(path, bytes, sizeof bytes);
    memcpy(&header, bytes, sizeof header);
    assert_int_equal(header.version, 4);
    assert_int_equal(header.n_rows, 0);
    assert_ok(qn_session_truncate(session, 0));
    qn_rows rows = image_rows(&image, true);
    assert_ok(qn_session_eval_rows(session, &rows));
    assert_ok(qn_session_save(session, path));
    const size_t size = read_state(path, bytes, sizeof bytes);
    memcpy(&header, bytes, sizeof header);
    assert_int_equal(header.version, 5);
    assert_int_equal(header.n_rows, N_IMAGE);
    assert_int_equal(size, text_size + N_IMAGE * sizeof(qn_session_row));
    qn_session_row *list = (qn_session_row *)(void *)(bytes + sizeof header + N * sizeof(qn_token)), saved[N_IMAGE];
    qn_token *tokens = (qn_token *)(void *)(bytes + sizeof header);
    memcpy(saved, list, sizeof saved);
    assert_int_equal(saved[4].id, 1000 + IMAGE + 4);
    forge(bytes, size, QN_OK, "");
#define WRONG(change, text)                                                                                            \
    do {                                                                                                               \
        label("%s", #change);                                                                                          \
        change;                                                                                                        \
        forge(bytes, size, QN_ERR_FORMAT, text);                                                                       \
        memcpy(list, saved, sizeof saved);                                                                             \
        for (size_t i_ = 0; i_ < N; i_++)                                                                              \
            tokens[i_] = image.tokens[i_];                                                                             \
    } while (0)
    WRONG(list[1].index = list[0].index, "row 1 of its list of rows");
    WRONG(list[N_IMAGE - 1].index = N, "row 5 of its list of rows, with index 24");
    WRONG(list[2].components[1] = UINT32_MAX, "row 2 of its list of rows");
    WRONG(list[2].zero = 1, "row 2 of its list of rows");
    WRONG(tokens[1] = -1, "outside the vocabulary");
    WRONG(tokens[1] = -2, "outside the vocabulary");
    WRONG(tokens[2] = (qn_token)info.n_vocab, "outside the vocabulary");
#undef WRONG
    forge(bytes, size, QN_OK, "");
    const unsigned features = model->device->row_features;
    model->device->row_features = 0;
    forge(bytes, size, QN_ERR_UNSUPPORTED, "positions of their own are not supported");
    model->device->row_features = features;
    qn_session_free(session);
    close_rows();
}

TEST_GROUP(make_folder, remove_folder)
