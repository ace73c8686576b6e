/* A backend in a folder of its own: golden models run on it, and the engine calls it as often as the interface says. */
#include "counting.h"
#include "helper_golden.h"
#include "helper_create.h"

#include <unistd.h>

enum { MAX_IDS = 256, BATCH = 16 };

static char file_path[4096];

static qn_model *open_model(const char *name)
{
    counting_calls_of = (counting_calls){ 0 };
    snprintf(file_path, sizeof file_path, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, name);
    qn_model *model = create_model(file_path, &MODEL_PARAMS(.device = "counting", .n_threads = 2));
    assert_string_equal(qn_model_get_info(model)->device, "counting");
    return model;
}

/* Logits within the bounds of the golden ones, rows and steps as the session's batches have them. */
static void check_logits(const char *name)
{
    qn_token ids[MAX_IDS];
    size_t n_rows;
    label("%s", name);
    qn_model *model = open_model(name);
    const size_t n_vocab = qn_model_get_info(model)->n_vocab, n = read_golden_ids(name, ids, MAX_IDS);
    float *expected = read_golden_logits(name, n_vocab, &n_rows), *found = malloc(n * n_vocab * sizeof *found);
    assert_non_null(found);
    assert_int_equal(n_rows, n);
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = MAX_IDS, .n_batch = BATCH));
    assert_ok(qn_session_eval(session, ids, n, QN_LOGITS_ALL, found));
    assert_true(mean_relative_error(found, expected, n, n_vocab) < 2e-3);
    assert_int_equal(counting_calls_of.creations, 1);
    assert_true(counting_calls_of.uploads > 0);
    assert_int_equal(counting_calls_of.rows, n);
    assert_int_equal(counting_calls_of.logit_rows, n);
    assert_int_equal(counting_calls_of.runs, (n + BATCH - 1) / BATCH);
    assert_int_equal(counting_calls_of.prepares, counting_calls_of.runs);
    assert_true(counting_calls_of.reserves > counting_calls_of.runs);
    qn_session_free(session);
    qn_model_free(model);
    assert_int_equal(counting_calls_of.memories, counting_calls_of.memory_frees);
    assert_int_equal(counting_calls_of.frees, 1);
    free(expected);
    free(found);
}

TEST(golden_models_run)
{
    check_logits("llama.f16");
    check_logits("qwen3.f16");
    check_logits("qwen35.f16");
}

/* A session's file from this device continues on it, through the same two functions as on others. */
TEST(sessions_are_saved)
{
    char path[] = "/tmp/quern-counting-XXXXXX";
    qn_token ids[MAX_IDS];
    qn_model *model = open_model("qwen35.f16");
    const size_t n_vocab = qn_model_get_info(model)->n_vocab, n = read_golden_ids("qwen35.f16", ids, MAX_IDS);
    float *expected = malloc(n_vocab * sizeof *expected), *found = malloc(n_vocab * sizeof *found);
    qn_session *session, *restored;
    const int fd = mkstemp(path);
    assert_true(expected && found && fd >= 0);
    close(fd);
    session = create_session(model, NULL);
    append_tokens(session, ids, n - 1);
    assert_ok(qn_session_save(session, path));
    assert_ok(qn_session_restore(model, path, NULL, &restored));
    assert_int_equal(counting_calls_of.serializes, 1);
    assert_int_equal(counting_calls_of.deserializes, 1);
    assert_ok(qn_session_eval(session, ids + n - 1, 1, QN_LOGITS_LAST, expected));
    assert_ok(qn_session_eval(restored, ids + n - 1, 1, QN_LOGITS_LAST, found));
    assert_memory_equal(found, expected, n_vocab * sizeof *found);
    qn_session_free(session);
    qn_session_free(restored);
    qn_model_free(model);
    unlink(path);
    free(expected);
    free(found);
}
