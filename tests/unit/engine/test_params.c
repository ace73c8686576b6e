/* Structs of the interface that begin with their size: each one as an older and as a newer program would pass it. */
#include "helper_create.h"
#include "helper_folder.h"

#include "base/params.h"
#include "quern/grammar.h"
#include "quern/scheduler.h"

#include <stdalign.h>
#include <unistd.h>

#define MODEL QN_SOURCE_DIR "/tests/golden/parrot.gguf"

static qn_model *model;
static qn_session *session;
static qn_scheduler *scheduler;

static int begin(void)
{
    model = create_model(MODEL, &CPU_MODEL());
    session = create_session(model, NULL);
    scheduler = create_scheduler(model, &SCHEDULER_PARAMS(.no_thread = true));
    return make_folder();
}

static int end(void)
{
    qn_scheduler_free(scheduler);
    qn_session_free(session);
    qn_model_free(model);
    return remove_folder();
}

/* ---- Each function with a struct ---- */

static qn_status use_model(void *params)
{
    qn_model *loaded;
    const qn_status status = qn_model_load(MODEL, params, &loaded);
    qn_model_free(loaded);
    return status;
}

static qn_status use_session(void *params)
{
    qn_session *created;
    const qn_status status = qn_session_create(model, params, &created);
    qn_session_free(created);
    return status;
}

static qn_status use_restore(void *params)
{
    qn_session *restored;
    (void)unlink(path);
    assert_ok(qn_session_save(session, path));
    const qn_status status = qn_session_restore(model, path, params, &restored);
    qn_session_free(restored);
    return status;
}

static qn_status use_rows(void *rows)
{
    assert_ok(qn_session_truncate(session, 0));
    return qn_session_eval_rows(session, rows);
}

static qn_status use_capacity(void *found)
{
    return qn_model_get_capacity(model, NULL, 1, found);
}

static qn_status use_sampling(void *params)
{
    qn_sampler *sampler;
    const qn_status status = qn_sampler_create(params, 100, &sampler);
    qn_sampler_free(sampler);
    return status;
}

static qn_status use_request(void *params)
{
    assert_ok(qn_session_truncate(session, 0));
    return qn_generate(session, params, NULL);
}

static qn_status use_result(void *found)
{
    assert_ok(qn_session_truncate(session, 0));
    const qn_token token = 1;
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    params.tokens = &token;
    params.n_tokens = 1;
    params.max_tokens = 1;
    return qn_generate(session, &params, found);
}

static qn_status use_submit(void *params)
{
    const qn_status status = qn_scheduler_submit(scheduler, params, NULL);
    assert_ok(qn_scheduler_wait(scheduler));
    return status;
}

static qn_status use_scheduler(void *params)
{
    qn_scheduler *created;
    const qn_status status = qn_scheduler_create(model, params, &created);
    qn_scheduler_free(created);
    return status;
}

static qn_status use_refusal(void *found)
{
    const qn_token token = 1;
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    params.tokens = &token;
    params.n_tokens = 1;
    params.max_tokens = 1;
    const qn_status status = qn_scheduler_submit_all(scheduler, &params, 1, NULL, found);
    assert_ok(qn_scheduler_wait(scheduler));
    return status;
}

static qn_status use_counters(void *found)
{
    return qn_scheduler_get_counters(scheduler, found);
}

static qn_status use_quantize(void *params)
{
    return qn_quantize_file(MODEL, path, "q8_0", params);
}

/* Beyond the size the struct is right: the folder is none. */
static qn_status use_convert(void *params)
{
    const qn_status status = qn_convert_checkpoint("/nonexistent", path, NULL, params);
    return status == QN_ERR_IO ? QN_OK : status;
}

/* Beyond the size the struct is right: the model is of an architecture without such blocks. */
static qn_status use_graft(void *params)
{
    const qn_status status = qn_graft_mtp(MODEL, MODEL, path, NULL, params);
    return status == QN_ERR_INVALID && strstr(qn_error_text(), "MTP block") ? QN_OK : status;
}

static qn_status use_style(void *params)
{
    qn_grammar *grammar;
    const qn_status status = qn_grammar_create_in(model, NULL, params, QN_GRAMMAR_JSON, NULL, 0, &grammar);
    qn_grammar_free(grammar);
    return status;
}

/* The chat template of the model has no calls. */
static qn_status use_calls(void *params)
{
    qn_grammar *grammar;
    const qn_status status = qn_grammar_create_calls(model, params, &grammar);
    return status == QN_ERR_UNSUPPORTED ? QN_OK : status;
}

/* The first members of qn_request_params and their use: what is cut off has its default. */
static const qn_token tokens[] = { 1, 2, 3 };
static const qn_request_params request = { .size = sizeof request,
                                           .tokens = tokens,
                                           .n_tokens = 3,
                                           .sampling = QN_SAMPLING_INIT,
                                           .n_logprobs = -1,
                                           .max_tokens = 2,
                                           .reasoning_budget = -1 };
static const qn_model_params model_params = { .size = sizeof(qn_model_params), .device = "cpu" };
static const qn_session_params session_params = QN_SESSION_PARAMS_INIT;
static const qn_rows rows = { .size = sizeof rows, .n = 3, .tokens = tokens };
static const qn_capacity capacity = QN_CAPACITY_INIT;
static const qn_sampling sampling = QN_SAMPLING_INIT;
static const qn_request_result result = QN_REQUEST_RESULT_INIT;
static const qn_scheduler_params scheduler_params = QN_SCHEDULER_PARAMS_INIT;
static const qn_submit_refusal refusal = QN_SUBMIT_REFUSAL_INIT;
static const qn_scheduler_counters counters = QN_SCHEDULER_COUNTERS_INIT;
static const qn_quantize_params quantize_params = QN_QUANTIZE_PARAMS_INIT;
static const qn_convert_params convert_params = QN_CONVERT_PARAMS_INIT;
static const qn_graft_params graft_params = QN_GRAFT_PARAMS_INIT;
static const qn_json_style style = QN_JSON_STYLE_INIT;
static const qn_call_params call_params = QN_CALL_PARAMS_INIT;

static const struct {
    const char *type;
    const void *with_defaults;
    size_t size, least; /* `least` bytes are enough for the call */
    bool is_result;
    qn_status (*use)(void *given);
} structs[] = {
    { "qn_model_params", &model_params, sizeof model_params, 0, false, use_model },
    { "qn_session_params", &session_params, sizeof session_params, 0, false, use_session },
    { "qn_session_params", &session_params, sizeof session_params, 0, false, use_restore },
    { "qn_rows", &rows, sizeof rows, offsetof(qn_rows, n_embd), false, use_rows },
    { "qn_capacity", &capacity, sizeof capacity, 0, true, use_capacity },
    { "qn_sampling", &sampling, sizeof sampling, 0, false, use_sampling },
    { "qn_request_params", &request, sizeof request, offsetof(qn_request_params, min_tokens), false, use_request },
    { "qn_request_params", &request, sizeof request, offsetof(qn_request_params, min_tokens), false, use_submit },
    { "qn_request_result", &result, sizeof result, 0, true, use_result },
    { "qn_scheduler_params", &scheduler_params, sizeof scheduler_params, 0, false, use_scheduler },
    { "qn_submit_refusal", &refusal, sizeof refusal, 0, true, use_refusal },
    { "qn_scheduler_counters", &counters, sizeof counters, 0, true, use_counters },
    { "qn_quantize_params", &quantize_params, sizeof quantize_params, 0, false, use_quantize },
    { "qn_convert_params", &convert_params, sizeof convert_params, 0, false, use_convert },
    { "qn_graft_params", &graft_params, sizeof graft_params, 0, false, use_graft },
    { "qn_json_style", &style, sizeof style, 0, false, use_style },
    { "qn_call_params", &call_params, sizeof call_params, 0, false, use_calls },
};
enum { N_STRUCTS = COUNT(structs), BEYOND = 64, BYTES = 2048 };

static alignas(max_align_t) uint8_t given[BYTES + BEYOND];

/* The struct of case i, as a program has it whose struct has `size` bytes; 0xa5 follows it. */
static void *pass(size_t i, size_t size)
{
    assert_true(structs[i].size + BEYOND <= sizeof given && size <= structs[i].size + BEYOND);
    for (size_t at = 0; at < sizeof given; at++)
        given[at] = at < size ? 0 : 0xa5;
    memcpy(given, structs[i].with_defaults, structs[i].size < size ? structs[i].size : size);
    memcpy(given, &size, sizeof size);
    return given;
}

static void nothing_is_written_beyond(size_t size)
{
    for (size_t i = size; i < sizeof given; i++)
        assert_int_equal(given[i], 0xa5);
    size_t found;
    memcpy(&found, given, sizeof found);
    assert_int_equal(found, size);
}

/* ---- Sizes ---- */

TEST(older_structs_have_defaults)
{
    for (size_t i = 0; i < N_STRUCTS; i++) {
        const size_t least = structs[i].least ? structs[i].least : 2 * sizeof(size_t);
        for (size_t size = least; size <= structs[i].size; size += sizeof(size_t)) {
            label("%s, %zu of %zu bytes", structs[i].type, size, structs[i].size);
            assert_ok(structs[i].use(pass(i, size)));
            nothing_is_written_beyond(size);
        }
    }
}

TEST(newer_structs_may_have_zeros)
{
    for (size_t i = 0; i < N_STRUCTS; i++) {
        const size_t size = structs[i].size + BEYOND;
        label("%s", structs[i].type);
        assert_ok(structs[i].use(pass(i, size)));
        nothing_is_written_beyond(size);
        for (size_t at = structs[i].size; at < size && structs[i].is_result; at++)
            assert_int_equal(given[at], 0);
    }
}

TEST(unknown_members_are_refused)
{
    for (size_t i = 0; i < N_STRUCTS; i++) {
        if (structs[i].is_result)
            continue;
        for (size_t at = structs[i].size; at < structs[i].size + BEYOND; at += 21) {
            char text[200];
            label("%s, byte %zu", structs[i].type, at);
            ((uint8_t *)pass(i, structs[i].size + BEYOND))[at] = 1;
            assert_int_equal(structs[i].use(given), QN_ERR_INVALID);
            snprintf(text, sizeof text, "%s: its size is %zu, expected at most %zu: byte %zu is set", structs[i].type,
                     structs[i].size + BEYOND, structs[i].size, at);
            assert_text(text);
        }
    }
}

TEST(structs_without_a_size_are_refused)
{
    static const size_t sizes[] = { 0, 1, sizeof(size_t), 4097, SIZE_MAX, (size_t)0xa5a5a5a5a5a5a5a5 };
    for (size_t i = 0; i < N_STRUCTS; i++)
        for (size_t j = 0; j < COUNT(sizes); j++) {
            char text[200];
            label("%s, size %zu", structs[i].type, sizes[j]);
            pass(i, structs[i].size);
            memcpy(given, &sizes[j], sizeof sizes[j]);
            assert_int_equal(structs[i].use(given), QN_ERR_INVALID);
            snprintf(text, sizeof text, "%s: its size is %zu, expected %zu", structs[i].type, sizes[j],
                     structs[i].size);
            assert_text(text);
        }
}

/* ---- Structs in structs, and arrays ---- */

TEST(reserved_bytes_of_sampling_are_zero)
{
    qn_request_params params = request;
    params.sampling.reserved[3] = 1;
    assert_fails(qn_generate(session, &params, NULL), QN_ERR_INVALID, "qn_sampling: byte");
    params = request;
    params.sampling.size = 0;
    assert_fails(qn_scheduler_submit(scheduler, &params, NULL), QN_ERR_INVALID, "qn_sampling: its size is 0");
    qn_json_style none = { 0 };
    qn_grammar *grammar;
    const qn_call_params calls = { .size = sizeof calls, .tools = "[]", .length = 2, .style = &none };
    assert_fails(qn_grammar_create_calls(model, &calls, &grammar), QN_ERR_INVALID, "qn_json_style: its size is 0");
}

/* Items of an array are as far apart as the program's struct is large. */
TEST(arrays_have_the_programs_structs)
{
    uint64_t ids[3];
    static const size_t sizes[] = { offsetof(qn_request_params, min_tokens), sizeof request, sizeof request + BEYOND };
    for (size_t j = 0; j < 3; j++) {
        static alignas(max_align_t) uint8_t array[3 * (sizeof(qn_request_params) + BEYOND)];
        const size_t size = sizes[j], each = size < sizeof request ? size : sizeof request;
        label("%zu bytes", size);
        memset(array, 0, sizeof array);
        for (size_t i = 0; i < 3; i++) {
            memcpy(array + i * size, &request, each);
            memcpy(array + i * size, &size, sizeof size);
        }
        assert_ok(qn_scheduler_submit_all(scheduler, (const qn_request_params *)(const void *)array, 3, ids, NULL));
        assert_ok(qn_scheduler_wait(scheduler));
        assert_int_equal(ids[2], ids[0] + 2);
    }
    qn_request_params two[2] = { request, request };
    two[1].size -= sizeof(size_t);
    assert_fails(qn_scheduler_submit_all(scheduler, two, 2, ids, NULL), QN_ERR_INVALID,
                 "qn_request_params: the size of request 1 is");
}

/* ---- Initialisers ---- */

TEST(functions_initialise_as_macros_do)
{
    const qn_request_params expected = QN_REQUEST_PARAMS_INIT;
    qn_request_params found;
    memset(&found, 0xa5, sizeof found);
    qn_request_params_init(&found, sizeof found);
    assert_int_equal(found.size, sizeof found);
    assert_int_equal(found.n_logprobs, expected.n_logprobs);
    assert_int_equal(found.reasoning_budget, expected.reasoning_budget);
    assert_memory_equal(&found.sampling, &expected.sampling, sizeof expected.sampling);
    assert_null(found.on_token);
    size_t at = 0;
    while (strcmp(structs[at].type, "qn_sampling"))
        at++;
    qn_sampling *const older = pass(at, 3 * sizeof(size_t));
    qn_sampling_init(older, 3 * sizeof(size_t));
    nothing_is_written_beyond(3 * sizeof(size_t));
    assert_float_equal(older->temperature, 0.8f, 0);
}

TEST_GROUP(begin, end)
