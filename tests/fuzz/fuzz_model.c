/* Whole models from hostile files: a golden model is edited (gguf_edits.h), loaded, and evaluated. Any file is refused
 * with a text or gives logits, in memory bounded by its size.
 *
 * The last two of the files are a drafter (model/dflash.h) and a block for multi-token prediction (model/mtp_block.h),
 * which are loaded with a sound model.
 *
 * An input is: a byte that selects the file, one for the session, edits. */
#include "gguf_edits.h"

#include "quern/quern.h"

static const char *const names[] = {
    "llama-yarn.bf16",       "qwen35.q1_0",         "qwen2.q1_0",      "qwen3-linear.f16",  "qwen35-rotated.q1_0",
    "qwen35-rotated.ptq1_0", "qwen35-rotated.q2_0", "qwen35-yarn.f16", "llama-linear.bf16", "qwen35-rotated.pq2_0",
    "qwen35.ptq1_0",         "qwen35.q2_0",         "ranker",          "qwen35-mtp.bf16",   "scheduler-dflash",
    "scheduler-mtp-block"
};
enum { N_NAMES = sizeof names / sizeof *names, BLOCK = N_NAMES - 1, DRAFTER = N_NAMES - 2, N_CTX = 16 };
static char with_drafter[4096]; /* a model for them */

static struct {
    uint8_t *data;
    size_t size;
} models[N_NAMES];

static struct edited_file *edited;

static void set_up(void)
{
    for (size_t i = 0; i < N_NAMES; i++) {
        char name[128];
        snprintf(name, sizeof name, "tests/golden/%s.gguf", names[i]);
        models[i].data = read_source(name, &models[i].size);
    }
    source_path("tests/golden/scheduler.gguf", with_drafter);
    edited = calloc(1, sizeof *edited);
    require(edited, "memory");
}

/* Ranks a document, if the model says that it does. */
static void rank(qn_model *model, qn_session *session)
{
    qn_token *tokens;
    size_t n;
    float score;
    if (qn_model_check_ranking(model) != QN_OK)
        return;
    require(qn_ranking_tokens(model, "a", 1, "b", 1, &tokens, &n) == QN_OK, "a model that ranks has prompts");
    if (n && n <= N_CTX && qn_rank(session, tokens, n, &score) == QN_OK)
        require(!(score < 0) && !(score > 1), "a score is a probability");
    qn_free_tokens(tokens);
}

/* Generates a few tokens with drafts. */
static void generate(qn_model *model, const char *draft, uint8_t choice)
{
    static const char *const formats[] = { "f16", "aura4", "f32", "aura8" };
    const qn_session_params params = { .size = sizeof(qn_session_params), .n_ctx = N_CTX, .kv = formats[choice % 4] };
    const qn_token tokens[] = { 3, 1 };
    qn_request_params request = QN_REQUEST_PARAMS_INIT;
    qn_session *session;
    require(setenv("QN_DRAFT", draft, 1) == 0, "the environment is set");
    if (qn_session_create(model, &params, &session) != QN_OK)
        return;
    request.tokens = tokens;
    request.n_tokens = 2;
    request.max_tokens = 1 + choice / 4 % 8;
    request.ignore_end = true;
    require(qn_generate(session, &request, NULL) == QN_OK, "a model with a drafter answers");
    qn_session_free(session);
}

/* Evaluates two tokens in a batch, one more, then the second again; ranks a document. */
static void evaluate(qn_model *model, uint8_t choice)
{
    static const char *const formats[] = { "f16", "aura4", "f32", "aura8" };
    const qn_model_info info = *qn_model_get_info(model);
    const qn_session_params params = {
        .size = sizeof(qn_session_params), .n_ctx = N_CTX, .n_batch = 1 + choice % 3, .kv = formats[choice / 4 % 4]
    };
    const qn_token tokens[] = { 0, (qn_token)(info.n_vocab - 1), (qn_token)(choice % info.n_vocab) };
    float *logits = malloc(3 * (size_t)info.n_vocab * sizeof *logits);
    qn_session *session;
    require(logits && info.n_vocab > 0 && info.n_layers > 0, "a loaded model has tokens and layers");
    if (qn_session_create(model, &params, &session) == QN_OK) {
        require(qn_session_eval(session, tokens, 2, choice & 64 ? QN_LOGITS_ALL : QN_LOGITS_LAST, logits) == QN_OK,
                "it evaluates two");
        require(qn_session_eval(session, tokens + 2, 1, QN_LOGITS_LAST, logits) == QN_OK, "it evaluates one more");
        require(qn_session_truncate(session, qn_session_reach(session, 1)) == QN_OK, "it goes back");
        require(qn_session_eval(session, tokens + 1, 1, QN_LOGITS_LAST, logits) == QN_OK, "and on again");
        require(qn_session_eval(session, &(qn_token){ (qn_token)info.n_vocab }, 1, QN_LOGITS_LAST, logits) != QN_OK,
                "no token is beyond the vocabulary");
        rank(model, session);
        qn_session_free(session);
    }
    free(logits);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_model_params params = { .size = sizeof(qn_model_params), .device = "cpu", .n_threads = 1 };
    struct input in = { data, size };
    char path[64];
    qn_model *model;
    if (!edited)
        set_up();
    const size_t which = take_byte(&in) % N_NAMES;
    const uint8_t choice = take_byte(&in);
    edited_read(edited, models[which].data, models[which].size);
    edited_apply(edited, &in);
    const int fd = memory_file(edited->file.data, edited->file.n, path);
    const bool is_drafter = which == DRAFTER || which == BLOCK;
    params.draft_model = is_drafter ? path : NULL;
    const qn_status status = qn_model_load(is_drafter ? with_drafter : path, &params, &model);
    if (status == QN_OK && is_drafter)
        generate(model, which == BLOCK ? "mtp" : "dflash", choice);
    else if (status == QN_OK)
        evaluate(model, choice);
    else
        require(size > 2 && *qn_error_text(), "a refusal has a text, and a sound file is not refused");
    qn_model_free(model);
    close(fd);
    return 0;
}
