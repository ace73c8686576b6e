/* Ranking of documents: prompts and scores are those of tests/golden/ranker.scores, computed in float64
 * (tools/make_ranker_model.py), in a session and in a scheduler. Models without a head, and with a wrong one, are
 * refused with the reason. */
#include "helper_scheduler.h"

#include "gguf/gguf.h"

#include <math.h>
#include <unistd.h>

#define RANKER "tests/golden/ranker"
#define LABELS "qwen3.classifier.output_labels"

enum { N_CTX = 1024, MAX_CASES = 16, MAX_TOKENS = 600 };

/* A line of the file of scores. */
struct ranked {
    double score;
    qn_token tokens[MAX_TOKENS];
    size_t n;
    const char *query, *document;
};

static char lines[1 << 16];
static struct ranked cases[MAX_CASES];
static size_t n_cases;
static qn_model *model;

static void read_scores(void)
{
    FILE *file = fopen(QN_SOURCE_DIR "/" RANKER ".scores", "rb");
    assert_non_null(file);
    lines[fread(lines, 1, sizeof lines - 1, file)] = '\0';
    fclose(file);
    n_cases = 0;
    for (char *at = lines; *at;) {
        struct ranked *c = &cases[n_cases++];
        c->n = 0;
        c->score = strtod(at, &at);
        do
            c->tokens[c->n++] = (qn_token)strtol(at + 1, &at, 10);
        while (*at == ',');
        c->query = at + 1;
        at = strchr(at + 1, '\t');
        *at++ = '\0';
        c->document = at;
        at = strchr(at, '\n');
        *at++ = '\0';
    }
    assert_true(n_cases >= 8);
}

static void load(int n_threads)
{
    read_scores();
    load_model(RANKER ".gguf", 0, n_threads, &model);
    assert_ok(qn_model_check_ranking(model));
    assert_int_equal(qn_model_get_pooling(model), QN_POOLING_NONE);
}

static float score_of(const struct ranked *c, const char *kv, uint32_t n_batch)
{
    float score = -1;
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = N_CTX, .n_batch = n_batch, .kv = kv));
    assert_ok(qn_rank(session, c->tokens, c->n, &score));
    assert_int_equal(qn_session_length(session), c->n);
    qn_session_free(session);
    return score;
}

/* ---- Prompts and scores ---- */

TEST(prompts_have_both_texts)
{
    load(1);
    for (size_t i = 0; i < n_cases; i++) {
        const struct ranked *c = &cases[i];
        qn_token *tokens;
        size_t n;
        label("%s / %s", c->query, c->document);
        assert_ok(qn_ranking_tokens(model, c->query, strlen(c->query), c->document, strlen(c->document), &tokens, &n));
        assert_int_equal(n, c->n);
        assert_memory_equal(tokens, c->tokens, n * sizeof *tokens);
        qn_free_tokens(tokens);
    }
    qn_model_free(model);
}

/* With keys and values unrounded, what remains is float32: sums of up to 64 products in two layers. An fp16 cache
 * rounds to 2^-11, and the logits, whose differences a score shows at most by a quarter, are of magnitude 3. */
TEST(scores_are_float64s)
{
    load(2);
    for (size_t i = 0; i < n_cases; i++) {
        label("%s / %s", cases[i].query, cases[i].document);
        assert_true(fabs((double)score_of(&cases[i], "f32", 0) - cases[i].score) < 1e-5);
        assert_true(fabs((double)score_of(&cases[i], "f16", 0) - cases[i].score) < 2e-3);
    }
    qn_model_free(model);
}

TEST(threads_and_batches_do_not_matter)
{
    static const uint32_t batches[] = { 1, 7, 64, 4096 };
    float expected[MAX_CASES];
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        load(n_threads);
        for (size_t i = 0; i < n_cases; i++)
            for (size_t b = 0; b < COUNT(batches); b++) {
                const float score = score_of(&cases[i], "f16", batches[b]);
                label("%d threads, case %zu, %u tokens", n_threads, i, (unsigned)batches[b]);
                if (n_threads == 1 && b == 0)
                    expected[i] = score;
                assert_true(score == expected[i]);
            }
        qn_model_free(model);
    }
}

/* ---- In a scheduler ---- */

struct scored {
    struct answer answer; /* first: answer_end takes its address */
    float score;
    int n_scores;
};

static bool take_score(void *user, const float *score, size_t n)
{
    struct scored *s = user;
    assert_int_equal(n, 1);
    s->score = *score;
    s->n_scores++;
    return true;
}

/* Documents of one query, whose prompts share a prefix, next to each other and to an answer that is decoded. */
TEST(schedulers_give_the_same)
{
    static struct scored scored[MAX_CASES];
    static struct answer decoding;
    load(2);
    qn_scheduler *scheduler =
        create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .max_rows = 64, .no_thread = true));
    qn_request_params params = prompt_of(cases[0].tokens, cases[0].n, 100, &decoding);
    assert_ok(qn_scheduler_submit(scheduler, &params, NULL));
    for (size_t i = 0; i < n_cases; i++) {
        memset(&scored[i], 0, sizeof scored[i]);
        params = prompt_of(cases[i].tokens, cases[i].n, 0, &scored[i].answer);
        params.pooling = QN_POOLING_RANK;
        params.on_embedding = take_score;
        assert_ok(qn_scheduler_submit(scheduler, &params, NULL));
    }
    for (bool idle = false; !idle;)
        assert_ok(qn_scheduler_step(scheduler, &idle));
    for (size_t i = 0; i < n_cases; i++) {
        label("case %zu", i);
        assert_int_equal(scored[i].n_scores, 1);
        assert_int_equal(scored[i].answer.n_ends, 1);
        assert_true(scored[i].score == score_of(&cases[i], "f16", 0));
    }
    assert_int_equal(decoding.n_tokens, 100);
    qn_scheduler_free(scheduler);
    qn_model_free(model);
}

/* ---- What is refused ---- */

TEST(models_without_a_head_say_so)
{
    float score;
    qn_token *tokens, one = 0;
    size_t n;
    load_model("tests/golden/parrot.gguf", 0, 1, &model);
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = 64));
    assert_int_equal(qn_model_check_ranking(model), QN_ERR_UNSUPPORTED);
    assert_text("has no head that ranks documents");
    assert_int_equal(qn_ranking_tokens(model, "a", 1, "b", 1, &tokens, &n), QN_ERR_UNSUPPORTED);
    assert_null(tokens);
    assert_int_equal(qn_rank(session, &one, 1, &score), QN_ERR_UNSUPPORTED);
    struct answer answer;
    qn_scheduler *scheduler = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = 64, .no_thread = true));
    qn_request_params params = prompt_of(&one, 1, 0, &answer);
    params.pooling = QN_POOLING_RANK;
    params.on_embedding = take_score;
    assert_int_equal(qn_scheduler_submit(scheduler, &params, NULL), QN_ERR_UNSUPPORTED);
    qn_scheduler_free(scheduler);
    qn_session_free(session);
    qn_model_free(model);
}

TEST(wrong_calls_are_refused)
{
    float score, vector[64];
    load(1);
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = 8));
    assert_int_equal(qn_rank(session, cases[0].tokens, 0, &score), QN_ERR_INVALID);
    assert_int_equal(qn_rank(session, cases[0].tokens, 9, &score), QN_ERR_CONTEXT);
    assert_int_equal(qn_embed(session, cases[0].tokens, 4, QN_POOLING_RANK, vector), QN_ERR_INVALID);
    qn_session_free(session);
    qn_model_free(model);
}

/* The file with another array of labels, pooling, prompt and head. NULL, or no rows: left out. */
struct file {
    const char *labels[3];
    uint32_t pooling;
    const char *prompt;
    size_t n_rows;
    float value; /* of all weights of the head */
    qn_status status;
    const char *text;
};

static char path[] = "/tmp/quern-ranker-XXXXXX";

static void write_labels(qn_gguf_writer *writer, const struct file *f)
{
    qn_string labels[3];
    size_t n = 0;
    for (; n < 3 && f->labels[n]; n++)
        labels[n] = (qn_string){ f->labels[n], strlen(f->labels[n]) };
    if (n)
        assert_ok(qn_gguf_writer_add_strings(writer, LABELS, labels, n));
}

static void write_file(const struct file *f)
{
    static float head[3 * 64];
    const uint64_t dims[] = { 64, f->n_rows };
    const qn_string name = { "cls.output.weight", 17 };
    qn_gguf *file;
    qn_gguf_writer *writer;
    assert_ok(qn_gguf_open(QN_SOURCE_DIR "/" RANKER ".gguf", &file));
    assert_ok(qn_gguf_writer_create(path, &writer));
    for (size_t i = 0; i < qn_gguf_n_kv(file); i++) {
        const qn_string key = qn_gguf_kv_at(file, i)->key;
        if (!qn_string_equals(key, LABELS) && !qn_string_equals(key, "qwen3.pooling_type") &&
            !qn_string_equals(key, "tokenizer.chat_template.rerank"))
            assert_ok(qn_gguf_writer_copy(writer, qn_gguf_kv_at(file, i)));
    }
    write_labels(writer, f);
    assert_ok(qn_gguf_writer_add_u32(writer, "qwen3.pooling_type", f->pooling));
    if (f->prompt)
        assert_ok(qn_gguf_writer_add_string(writer, "tokenizer.chat_template.rerank", f->prompt));
    for (size_t i = 0; i < qn_gguf_n_tensors(file); i++) {
        const qn_gguf_tensor *t = qn_gguf_tensor_at(file, i);
        if (!qn_string_equals(t->name, "cls.output.weight"))
            assert_ok(qn_gguf_writer_add_tensor(writer, t->name, t->type, t->n_dims, t->dims, t->bytes));
    }
    if (f->n_rows)
        assert_ok(qn_gguf_writer_add_tensor(writer, name, QN_TYPE_F32, 2, dims, f->n_rows * 64 * sizeof(float)));
    assert_ok(qn_gguf_writer_begin_data(writer));
    for (size_t i = 0; i < qn_gguf_n_tensors(file); i++)
        if (!qn_string_equals(qn_gguf_tensor_at(file, i)->name, "cls.output.weight"))
            assert_ok(qn_gguf_writer_data(writer, qn_gguf_tensor_at(file, i)->data, qn_gguf_tensor_at(file, i)->bytes));
    for (size_t i = 0; i < COUNT(head); i++)
        head[i] = f->value;
    if (f->n_rows)
        assert_ok(qn_gguf_writer_data(writer, head, f->n_rows * 64 * sizeof(float)));
    assert_ok(qn_gguf_writer_finish(writer));
    qn_gguf_writer_free(writer);
    qn_gguf_close(file);
}

#define PROMPT "{query} {document}"

static const struct file refused[] = {
    { { NULL }, 4, PROMPT, 2, 1, QN_ERR_FORMAT, "there is a tensor 'cls.output.weight', but no key '" LABELS "'" },
    { { "yes" }, 4, PROMPT, 1, 1, QN_ERR_UNSUPPORTED, "key '" LABELS "' has 1 labels, expected 2 to 64" },
    { { "a", "b", "c" }, 4, PROMPT, 2, 1, QN_ERR_FORMAT, "tensor 'cls.output.weight'" },
    { { "a", "b" }, 4, PROMPT, 3, 1, QN_ERR_FORMAT, "tensor 'cls.output.weight'" },
    { { "a", "b" },
      4,
      PROMPT,
      2,
      INFINITY,
      QN_ERR_FORMAT,
      "tensor 'cls.output.weight' has a value that is not finite" },
    { { "a", "b" }, 4, PROMPT, 2, NAN, QN_ERR_FORMAT, "tensor 'cls.output.weight' has a value that is not finite" },
    { { "a", "b" }, 3, PROMPT, 2, 1, QN_ERR_UNSUPPORTED, "tensor 'cls.output.weight' is not used" },
};

/* These load, but do not rank. */
static const struct file missing[] = {
    { { "a", "b" }, 4, PROMPT, 0, 1, QN_OK, "no head that ranks documents" },
    { { "a", "b" }, 4, NULL, 2, 1, QN_OK, "no prompt for it, the key tokenizer.chat_template.rerank" },
    { { "a", "b" }, 4, "{query}", 2, 1, QN_OK, "has not one {query} and one {document}" },
    { { "a", "b" }, 4, "{query}{document}{query}", 2, 1, QN_OK, "has not one {query} and one {document}" },
};

TEST(wrong_heads_are_refused)
{
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < COUNT(refused); i++) {
        label("%zu: %s", i, refused[i].text);
        write_file(&refused[i]);
        assert_int_equal(qn_model_load(path, &CPU_MODEL(.n_threads = 1, .skip_weight_scan = true), &model),
                         refused[i].status);
        assert_text(refused[i].text);
    }
    for (size_t i = 0; i < COUNT(missing); i++) {
        label("%zu: %s", i, missing[i].text);
        write_file(&missing[i]);
        assert_ok(qn_model_load(path, &CPU_MODEL(.n_threads = 1), &model));
        assert_int_equal(qn_model_check_ranking(model), QN_ERR_UNSUPPORTED);
        assert_text(missing[i].text);
        qn_model_free(model);
    }
    /* Both texts in the other order, at the ends; equal rows give one half. */
    const struct file turned = { { "a", "b", "c" }, 4, "{document}|{query}", 3, 0.5f, QN_OK, NULL };
    const qn_token expected[] = { 'x', 'y', '|', 'z' };
    qn_token *tokens;
    size_t n;
    float score;
    write_file(&turned);
    assert_ok(qn_model_load(path, &CPU_MODEL(.n_threads = 1), &model));
    assert_ok(qn_ranking_tokens(model, "z", 1, "xy", 2, &tokens, &n));
    assert_int_equal(n, COUNT(expected));
    assert_memory_equal(tokens, expected, sizeof expected);
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = 64));
    assert_ok(qn_rank(session, tokens, n, &score));
    assert_true(fabs((double)score - 1 / 3.0) < 1e-7);
    qn_session_free(session);
    qn_free_tokens(tokens);
    qn_model_free(model);
    unlink(path);
}

TEST_GROUP(NULL, NULL)
