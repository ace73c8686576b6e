/* Grammars of answers: what sessions and the scheduler generate under them, the distribution of tokens, where grammars
 * begin, and compiled grammars that are kept. */
#include "helper_sanitizers.h"
#include "helper_small_model.h"

#include "scheduler/constraint.h"
#include "quern/grammar.h"

#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

enum { OPEN = END + 1, CLOSE };
enum { ANSWERS = QN_TEST_SANITIZED ? 3 : 16, TOKENS = QN_TEST_SANITIZED ? 40 : 160 };

static qn_model *large, *small;

static int load_models(void)
{
    load_model("tests/golden/scheduler.gguf", 0, 2, &large);
    load_small(&small);
    return 0;
}

static int free_models(void)
{
    qn_model_free(large);
    qn_model_free(small);
    return 0;
}

static qn_grammar *grammar_of(qn_model *model, qn_grammar_kind kind, const char *text)
{
    qn_grammar *grammar;
    assert_ok(qn_grammar_create(model, kind, text, strlen(text), &grammar));
    return grammar;
}

static size_t tokens_of(qn_model *model, const char *text, qn_token **tokens)
{
    size_t n;
    assert_ok(qn_tokenize(model, text, strlen(text), true, true, tokens, &n));
    return n;
}

/* ---- Answers ---- */

static const char person[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":12},"
    "\"age\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":120},"
    "\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"kind\",\"old\",7]},\"maxItems\":3}},"
    "\"required\":[\"name\",\"age\"],\"additionalProperties\":false}";

static bool is_person(const char *text, size_t length)
{
    json_t *json = json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    const json_t *name = json_object_get(json, "name"), *age = json_object_get(json, "age"),
                 *tags = json_object_get(json, "tags");
    bool is_valid = json_is_string(name) && json_string_length(name) > 0 && json_is_integer(age) &&
                    json_integer_value(age) >= 1 && json_integer_value(age) <= 120 &&
                    json_object_size(json) == 2u + (tags != NULL) &&
                    (!tags || (json_is_array(tags) && json_array_size(tags) <= 3));
    json_decref(json);
    return is_valid;
}

static bool is_number(const char *text, size_t length)
{
    size_t point = 0;
    for (size_t i = 0; i < length; i++)
        point = text[i] == '.' ? i : point;
    return length == 7 && point == 4 && strspn(text, "0123456789.") >= length;
}

static bool is_choice(const char *text, size_t length)
{
    return (length == 3 && !memcmp(text, "yes", 3)) || (length == 2 && !memcmp(text, "no", 2));
}

static bool is_list(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (text[i] != (i % 2 ? ',' : 'x'))
            return false;
    return length % 2 == 1;
}

static const struct {
    qn_grammar_kind kind;
    const char *text;
    bool (*fits)(const char *text, size_t length);
} kinds[] = {
    { QN_GRAMMAR_SCHEMA, person, is_person },
    { QN_GRAMMAR_SCHEMA_STRICT, person, is_person },
    { QN_GRAMMAR_REGEX, "[0-9]{4}\\.[0-9]{2}", is_number },
    { QN_GRAMMAR_REGEX, "yes|no", is_choice },
    { QN_GRAMMAR_GBNF, "root ::= \"x\" (\",\" root)?", is_list },
};
enum { N_KINDS = COUNT(kinds) };

static qn_request_params request_of(qn_grammar *grammar, const qn_token *prompt, size_t n, const qn_sampling *sampling,
                                    struct answer *a)
{
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    memset(a, 0, sizeof *a);
    params.tokens = prompt;
    params.n_tokens = n;
    params.sampling = *sampling;
    params.max_tokens = TOKENS;
    params.grammar = grammar;
    collect_answer(&params, a);
    return params;
}

/* Filters need a mask for each token; without them, tokens are checked first. */
static qn_sampling sampling_of(bool has_filters, float temperature, uint64_t seed)
{
    return SAMPLING(.temperature = temperature, .top_k = has_filters ? 40 : 0, .top_p = has_filters ? 0.95f : 1,
                    .min_p = has_filters ? 0.05f : 0, .repeat_penalty = 1, .seed = seed);
}

/* Finished answers fit, others are the beginning of one that does. */
static void check_answer(const struct answer *a, size_t kind, qn_grammar *grammar)
{
    qn_grammar_state *state;
    label("kind %zu: %.*s", kind, (int)a->n_text, a->text);
    assert_ok(qn_grammar_state_create(grammar, &state));
    assert_true(qn_grammar_state_advance(state, a->text, a->n_text));
    assert_true(a->result.finish == QN_FINISH_STOP || a->result.finish == QN_FINISH_LENGTH);
    if (a->result.finish == QN_FINISH_STOP) {
        assert_true(qn_grammar_state_is_finished(state));
        assert_true(kinds[kind].fits(a->text, a->n_text));
    }
    qn_grammar_state_free(state);
}

static void answer_of_session(qn_model *model, uint32_t n_batch, const qn_request_params *request, struct answer *a)
{
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    qn_request_result result = QN_REQUEST_RESULT_INIT;
    params.sampling = request->sampling;
    params.max_tokens = request->max_tokens;
    params.ignore_end = request->ignore_end;
    params.grammar = request->grammar;
    params.grammar_trigger = request->grammar_trigger;
    params.on_token = answer_token;
    params.on_text = answer_text;
    params.user = a;
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = 512, .n_batch = n_batch));
    assert_ok(generate_from(session, request->tokens, request->n_tokens, &params, &result));
    a->result.finish = result.finish == QN_FINISH_STOP ? QN_FINISH_STOP : QN_FINISH_LENGTH;
    qn_session_free(session);
}

/* Many at once, at temperature 1.5, and one of each kind in sessions. The caller's reference is dropped while requests
 * run. */
static void check_answers(qn_model *model)
{
    static struct answer answers[N_KINDS][ANSWERS];
    qn_token *prompt;
    size_t n_finished = 0;
    const size_t n = tokens_of(model, "Once upon a time", &prompt);
    qn_scheduler *scheduler = create_scheduler(model, NULL);
    for (size_t k = 0; k < N_KINDS; k++) {
        qn_grammar *grammar = grammar_of(model, kinds[k].kind, kinds[k].text);
        for (uint64_t i = 0; i < ANSWERS; i++) {
            const qn_sampling sampling = sampling_of(i % 2, 1.5f, i);
            const qn_request_params params = request_of(grammar, prompt, n, &sampling, &answers[k][i]);
            submit_request(scheduler, &params);
        }
        qn_grammar_free(grammar);
    }
    qn_scheduler_wait(scheduler);
    qn_scheduler_free(scheduler);
    for (size_t k = 0; k < N_KINDS; k++) {
        qn_grammar *grammar = grammar_of(model, kinds[k].kind, kinds[k].text);
        for (size_t i = 0; i < ANSWERS; i++) {
            assert_int_equal(answers[k][i].n_ends, 1);
            check_answer(&answers[k][i], k, grammar);
            n_finished += answers[k][i].result.finish == QN_FINISH_STOP;
        }
        qn_grammar_free(grammar);
    }
    assert_true(n_finished > N_KINDS * ANSWERS / 2);
    for (size_t k = 0; k < 2 * N_KINDS; k++) {
        static struct answer alone;
        qn_grammar *grammar = grammar_of(model, kinds[k / 2].kind, kinds[k / 2].text);
        const qn_sampling sampling = sampling_of(k % 2, 1.5f, k);
        const qn_request_params params = request_of(grammar, prompt, n, &sampling, &alone);
        answer_of_session(model, 0, &params, &alone);
        check_answer(&alone, k / 2, grammar);
        qn_grammar_free(grammar);
    }
    qn_free_tokens(prompt);
}

TEST(answers_fit)
{
    check_answers(large);
}

TEST(answers_fit_on_a_gpu)
{
    char path[512];
    qn_model *model;
    snprintf(path, sizeof path, "%s/tests/golden/scheduler.gguf", QN_SOURCE_DIR);
    const qn_status status = qn_model_load(path, &MODEL_PARAMS(.device = "cuda", .n_threads = 2), &model);
    if (status == QN_OK) {
        check_answers(model);
        qn_model_free(model);
    }
    if (status == QN_ERR_UNSUPPORTED)
        skip();
    assert_ok(status);
}

/* ---- The same bits ---- */

/* Greedy and sampled: any number of threads, any batch, the scheduler, with prefixes that are reused and beside
 * others. */
TEST(answers_are_the_same)
{
    static struct answer first, other, beside[2];
    static const char text[] =
        "Once upon a time there was a little girl who lived in a house by the sea. She had a dog, and the "
        "dog had a ball. They played all day long, and when the sun went down they went home to eat. One "
        "day the dog ran away, and the girl looked for him in the wood, at the sea and in the town.";
    qn_model *single;
    qn_token *prompt;
    qn_scheduler *scheduler;
    load_model("tests/golden/scheduler.gguf", 0, 1, &single);
    const size_t n = tokens_of(large, text, &prompt);
    assert_true(n > 64);
    scheduler = create_scheduler(large, &SCHEDULER_PARAMS(.max_rows = 48));
    for (int i = 0; i < 4; i += QN_TEST_SANITIZED ? 3 : 1) {
        label("case %d", i);
        const qn_sampling sampling = sampling_of(i % 2, i < 2 ? 0 : 1.2f, 11);
        qn_grammar *grammar = grammar_of(single, QN_GRAMMAR_SCHEMA, person);
        qn_request_params params = request_of(grammar, prompt, n, &sampling, &first);
        answer_of_session(single, 0, &params, &first);
        assert_true(first.n_tokens > 10);
        static const uint32_t batches[] = { 1, 7, 128 };
        for (size_t k = 0; k < COUNT(batches); k++) {
            params = request_of(grammar, prompt, n, &sampling, &other);
            answer_of_session(large, batches[k], &params, &other);
            assert_same_answer(&first, &other);
        }
        for (size_t k = 0; k < 2; k++) {
            params = request_of(grammar, prompt, n, &sampling, &beside[k]);
            params.sampling.seed += k;
            submit_request(scheduler, &params);
            if (k == 0)
                qn_scheduler_wait(scheduler);
            assert_same_answer(&first, &beside[0]);
        }
        params = request_of(grammar, prompt, n, &sampling, &other);
        submit_and_wait(scheduler, &params);
        assert_same_answer(&first, &other);
        assert_true(other.result.n_reused > 0);
        qn_grammar_free(grammar);
    }
    qn_scheduler_free(scheduler);
    qn_free_tokens(prompt);
    qn_model_free(single);
}

/* ---- The distribution ---- */

enum { VOCABULARY = 320, DRAWS = QN_TEST_SANITIZED ? 1000 : 6000 };

static int larger_first(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Probabilities of tokens: the mask, top-k, softmax, top-p, min-p. */
static void find_probabilities(const float *logits, const bool *allowed, const qn_sampling *sampling, double *p)
{
    double sorted[VOCABULARY], total = 0, kept = 0, least = 0;
    for (size_t t = 0; t < VOCABULARY; t++)
        p[t] = sorted[t] = allowed[t] ? exp((double)logits[t] / sampling->temperature) : 0;
    qsort(sorted, VOCABULARY, sizeof *sorted, larger_first);
    const size_t k = sampling->top_k ? (size_t)sampling->top_k : VOCABULARY;
    for (size_t i = 0; i < k; i++)
        total += sorted[i];
    for (size_t i = 0; i < k; i++) {
        if (i && (kept >= sampling->top_p * total || sorted[i] < sampling->min_p * sorted[0]))
            break;
        kept += sorted[i];
        least = sorted[i];
    }
    for (size_t t = 0; t < VOCABULARY; t++)
        p[t] = p[t] >= least ? p[t] / kept : 0;
}

/* Of counts against probabilities; tokens of few expected draws are one bin. Infinite for a token of probability 0. */
static double chi_square(const size_t *counts, const double *p, size_t *n_bins)
{
    double sum = 0, rare = 0, rare_count = 0;
    *n_bins = 0;
    for (size_t t = 0; t < VOCABULARY; t++) {
        const double expected = p[t] * DRAWS;
        if (counts[t] && p[t] <= 0)
            return INFINITY;
        if (expected < 8) {
            rare += expected;
            rare_count += (double)counts[t];
            continue;
        }
        sum += ((double)counts[t] - expected) * ((double)counts[t] - expected) / expected;
        ++*n_bins;
    }
    if (rare >= 8) {
        sum += (rare_count - rare) * (rare_count - rare) / rare;
        ++*n_bins;
    }
    return sum;
}

static bool count_token(void *user, qn_token token, const qn_logprobs *logprobs)
{
    (void)logprobs;
    ((size_t *)user)[token]++;
    return true;
}

TEST(tokens_have_the_distribution_of_masks)
{
    static const struct {
        const char *regex, *first; /* bytes that may be first; of words, all are possible */
        int top_k;
        float top_p, min_p;
    } cases[] = {
        { "[a-h]+", "abcdefgh", 0, 1, 0 },    { "[^x]*", NULL, 0, 1, 0 },           { "[a-h]+", "abcdefgh", 3, 1, 0 },
        { "[a-h]+", "abcdefgh", 0, 0.6f, 0 }, { "[a-h]+", "abcdefgh", 0, 1, 0.4f }, { "[^x]*", NULL, 12, 0.8f, 0.02f },
    };
    float logits[VOCABULARY], largest = -INFINITY, sum = 0;
    qn_token *prompt;
    const size_t n = tokens_of(small, "small", &prompt);
    assert_int_equal(qn_model_get_info(small)->n_vocab, VOCABULARY);
    qn_session *session = create_session(small, &SESSION_PARAMS(.n_ctx = 64));
    assert_ok(qn_session_eval(session, prompt, n, QN_LOGITS_LAST, logits));
    for (size_t t = 0; t < VOCABULARY; t++) {
        largest = logits[t] > largest ? logits[t] : largest;
        sum += logits[t] / VOCABULARY;
    }
    for (size_t i = 0; i < COUNT(cases); i++) {
        size_t counts[VOCABULARY] = { 0 }, n_bins;
        double p[VOCABULARY];
        bool allowed[VOCABULARY];
        qn_grammar *grammar = grammar_of(small, QN_GRAMMAR_REGEX, cases[i].regex);
        qn_request_params params = QN_REQUEST_PARAMS_INIT;
        /* The most probable token is twelve times as probable as a mean one. */
        params.sampling = SAMPLING(.temperature = (largest - sum) / 2.5f, .top_k = cases[i].top_k,
                                   .top_p = cases[i].top_p, .min_p = cases[i].min_p, .repeat_penalty = 1);
        params.grammar = grammar;
        params.max_tokens = 1;
        params.on_token = count_token;
        params.user = counts;
        for (size_t t = 0; t < VOCABULARY; t++) {
            const char *bytes;
            size_t length;
            qn_grammar_state *state;
            assert_ok(qn_grammar_state_create(grammar, &state));
            allowed[t] = t == END && !cases[i].first;
            if (t < END) {
                assert_ok(qn_token_piece(small, (qn_token)t, &bytes, &length));
                allowed[t] = qn_grammar_state_accepts(state, bytes, length);
                assert_true(!allowed[t] || !cases[i].first || strchr(cases[i].first, bytes[0]));
            }
            qn_grammar_state_free(state);
        }
        for (uint64_t d = 0; d < DRAWS; d++) {
            params.sampling.seed = d;
            assert_ok(qn_session_truncate(session, 0));
            assert_ok(generate_from(session, prompt, n, &params, NULL));
        }
        find_probabilities(logits, allowed, &params.sampling, p);
        const double found = chi_square(counts, p, &n_bins);
        label("case %zu: chi-square %.1f of %zu bins", i, found, n_bins);
        assert_true(n_bins > 1);
        const double degrees = (double)n_bins - 1;
        assert_true(found < degrees + 4 * sqrt(2 * degrees) + 4); /* exceeded by chance once in 10^4 */
        qn_grammar_free(grammar);
    }
    qn_session_free(session);
    qn_free_tokens(prompt);
}

/* Any filter of the vocabulary needs the mask first: what it leaves depends on it. */
TEST(filters_need_the_mask_first)
{
    const qn_sampling plain = sampling_of(false, 1, 1);
    qn_sampling filtered[] = { plain, plain, plain, plain, plain, plain, plain };
    filtered[0].top_k = 2;
    filtered[1].top_p = 0.5f;
    filtered[2].min_p = 0.1f;
    filtered[3].top_n_sigma = 1;
    filtered[4].typical_p = 0.5f;
    filtered[5].xtc_probability = 0.5f;
    filtered[6].mirostat = 2;
    assert_true(qn_grammar_match_check_first(&plain));
    for (size_t i = 0; i < COUNT(filtered); i++) {
        label("filter %zu", i);
        assert_false(qn_grammar_match_check_first(&filtered[i]));
    }
    qn_sampling neutral = plain;
    neutral.typical_p = 1;
    neutral.xtc_threshold = 0.1f;
    assert_true(qn_grammar_match_check_first(&neutral));
}

/* ---- Where grammars begin ---- */

TEST(free_text_before_a_text)
{
    static struct answer in_session, in_scheduler;
    qn_token *prompt;
    qn_model *talker; /* says the text that a grammar follows */
    load_model("models/quern-demo.gguf", 0, 1, &talker);
    const size_t n = tokens_of(talker, "Once upon a time", &prompt);
    qn_grammar *grammar = grammar_of(talker, QN_GRAMMAR_REGEX, "[0-9]{5}!");
    const qn_sampling greedy = SAMPLING(.top_p = 1, .repeat_penalty = 1);
    qn_request_params params = request_of(grammar, prompt, n, &greedy, &in_session);
    params.grammar_trigger = (qn_grammar_trigger){ QN_GRAMMAR_AFTER_TEXT, "named" };
    answer_of_session(talker, 0, &params, &in_session);
    char *trigger = strstr(in_session.text, "named");
    assert_true(trigger && trigger > in_session.text + 5);
    assert_int_equal(strspn(trigger + 5, "0123456789"), 5);
    assert_string_equal(trigger + 10, "!");
    params = request_of(grammar, prompt, n, &greedy, &in_scheduler);
    params.grammar_trigger = (qn_grammar_trigger){ QN_GRAMMAR_AFTER_TEXT, "named" };
    qn_scheduler *scheduler = create_scheduler(talker, NULL);
    submit_request(scheduler, &params);
    qn_scheduler_free((qn_scheduler_wait(scheduler), scheduler));
    assert_same_answer(&in_session, &in_scheduler);
    qn_grammar_free(grammar);
    qn_free_tokens(prompt);
    qn_model_free(talker);
}

/* Three bytes and an end token, again and again. */
static void check_repeated(const struct answer *a)
{
    assert_int_equal(a->result.finish, QN_FINISH_LENGTH);
    assert_int_equal(a->n_tokens, TOKENS);
    for (size_t i = 0; i < a->n_tokens; i++) {
        const qn_token token = a->tokens[i];
        assert_true(i % 4 == 3 ? token == END : i % 4 == 2 ? token == 'x' : token >= '0' && token <= '9');
    }
}

/* A request that continues after end tokens begins another document after each; one that is submitted with it, and does
 * not, ends. */
TEST(grammars_begin_again)
{
    static struct answer alone, together[2];
    qn_token *prompt;
    const size_t n = tokens_of(small, "Once upon a time", &prompt);
    qn_grammar *grammar = grammar_of(small, QN_GRAMMAR_REGEX, "[0-9]{2}x");
    qn_scheduler *scheduler = create_scheduler(small, NULL);
    for (int i = 0; i < 4; i++) {
        const qn_sampling sampling = sampling_of(i % 2, i < 2 ? 0 : 1.2f, 11);
        qn_request_params params[2] = { request_of(grammar, prompt, n, &sampling, &alone) };
        label("case %d", i);
        params[0].ignore_end = true;
        answer_of_session(small, 0, params, &alone);
        check_repeated(&alone);
        for (int k = 0; k < 2; k++) {
            params[k] = request_of(grammar, prompt, n, &sampling, &together[k]);
            params[k].ignore_end = k == i / 2;
        }
        assert_ok(qn_scheduler_submit_all(scheduler, params, 2, NULL, NULL));
        qn_scheduler_wait(scheduler);
        check_repeated(&together[i / 2]);
        assert_same_answer(&alone, &together[i / 2]);
        assert_int_equal(together[!(i / 2)].result.finish, QN_FINISH_STOP);
        assert_int_equal(together[!(i / 2)].n_tokens, 4);
    }
    qn_scheduler_free(scheduler);
    qn_grammar_free(grammar);
    qn_free_tokens(prompt);
}

/* A vocabulary with a token for each byte, and with <think> and </think> as tokens or without. */
static qn_model *load_thinker(bool has_tokens, bool thinks)
{
    static const struct added_token with[] = { { "<|end|>", 3 }, { "<think>", 3 }, { "</think>", 3 }, { NULL, 0 } };
    static const struct added_token without[] = { { "<|end|>", 3 }, { NULL, 0 } };
    const struct vocab_spec spec = { .model = "gpt2",
                                     .pre = "gpt-2",
                                     .added = has_tokens ? with : without,
                                     .eos = END,
                                     .chat_template =
                                         thinks ? "{{ messages[0].content }}<think>\n{% if 0 %}</think>{% endif %}"
                                                : "{{ messages[0].content }}" };
    struct file_bytes bytes = make_vocab(&spec);
    char path[] = "/tmp/quern-thinker-XXXXXX";
    qn_model *model;
    const int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, bytes.data, bytes.n), (ssize_t)bytes.n);
    close(file);
    const qn_status status = qn_model_load(path, &CPU_MODEL(.vocab_only = true), &model);
    unlink(path);
    free(bytes.data);
    assert_ok(status);
    return model;
}

TEST(free_text_before_the_end_of_reasoning)
{
    static const struct {
        bool has_tokens, thinks;
        const char *prompt;
        bool is_free, may_open;
    } cases[] = {
        { true, true, "say<think>\n", true, true }, /* all is free */
        { true, true, "say", false, true },
        { true, true, "say<think>\n\n</think>\n\n", false, false },
        { true, false, "say<think>\n", false, false },
        { false, true, "say<think>\n", true, false },
        { false, true, "say", false, false },
        { false, true, "say</think>", false, false },
        { true, true, "", false, true },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("case %zu", i);
        qn_model *model = load_thinker(cases[i].has_tokens, cases[i].thinks);
        qn_grammar *grammar = grammar_of(model, QN_GRAMMAR_REGEX, "1+");
        const qn_grammar_trigger trigger = { .when = QN_GRAMMAR_AFTER_REASONING };
        qn_sampling sampling = SAMPLING(.top_p = 1);
        qn_constraint c;
        qn_token *prompt, answer[16];
        size_t n, n_answer = 0;
        assert_ok(qn_tokenize(model, cases[i].prompt, strlen(cases[i].prompt), true, false, &prompt, &n));
        assert_ok(qn_constraint_create(model, grammar, &trigger, false, prompt, n, &sampling, &c));
        assert_int_equal(c.accepts(c.user, answer, 0, 'x'), cases[i].is_free);
        assert_true(c.accepts(c.user, answer, 0, '1'));
        if (cases[i].has_tokens)
            assert_int_equal(c.accepts(c.user, answer, 0, OPEN), cases[i].may_open);
        if (cases[i].may_open)
            answer[n_answer++] = OPEN;
        if (cases[i].is_free || cases[i].may_open) {
            answer[n_answer++] = 'x';
            assert_true(c.accepts(c.user, answer, n_answer, 'y'));
            if (cases[i].has_tokens)
                answer[n_answer++] = CLOSE;
            else
                for (const char *p = "</think>"; *p; p++)
                    answer[n_answer++] = *p;
        } else {
            answer[n_answer++] = '1';
        }
        assert_false(c.accepts(c.user, answer, n_answer, 'y'));
        assert_true(c.accepts(c.user, answer, n_answer, '1'));
        qn_constraint_free(&c);
        qn_free_tokens(prompt);
        qn_grammar_free(grammar);
        qn_model_free(model);
    }
}

/* ---- Refusals ---- */

static void allow_nothing(void *user, const qn_token *answer, size_t n, uint32_t *allowed)
{
    (void)user;
    (void)answer;
    (void)n;
    (void)allowed;
}

TEST(refuses)
{
    static const struct {
        qn_grammar_kind kind;
        const char *text;
        qn_status status;
        const char *error;
    } texts[] = {
        { QN_GRAMMAR_SCHEMA, "{\n \"type\":}", QN_ERR_INVALID, "the schema is not JSON: line 2, column 9" },
        { QN_GRAMMAR_SCHEMA, "", QN_ERR_INVALID, "the schema is not JSON" },
        { QN_GRAMMAR_SCHEMA, "{\"type\":\"int\"}", QN_ERR_INVALID,
          "schema: #/type: 'int' is not a type, expected \"integer\"" },
        { QN_GRAMMAR_SCHEMA_STRICT, "{\"uniqueItems\":true}", QN_ERR_UNSUPPORTED,
          "schema: #/uniqueItems: only items of at most 256 constants" },
        { QN_GRAMMAR_REGEX, "(a", QN_ERR_INVALID, "at byte 2" },
        { QN_GRAMMAR_GBNF, "root ::= a\n", QN_ERR_INVALID, "rule 'a' is not defined" },
        { (qn_grammar_kind)9, "", QN_ERR_INVALID, "grammar: kind 9, expected 0 to 4" },
    };
    qn_grammar *grammar;
    for (size_t i = 0; i < COUNT(texts); i++) {
        label("%s", texts[i].error);
        assert_fails(qn_grammar_create(large, texts[i].kind, texts[i].text, strlen(texts[i].text), &grammar),
                     texts[i].status, texts[i].error);
        assert_null(grammar);
    }
    assert_fails(qn_grammar_create_choices(large, NULL, 0, &grammar), QN_ERR_INVALID, "choices: the list is empty");

    static struct answer a;
    char longest[300] = { 0 };
    memset(longest, 'a', sizeof longest - 1);
    const struct {
        qn_grammar_trigger trigger;
        const char *error;
    } triggers[] = {
        { { QN_GRAMMAR_AFTER_TEXT, NULL }, "grammar_trigger: 2 without text" },
        { { QN_GRAMMAR_AT_ONCE, "x" }, "grammar_trigger: 0 with text" },
        { { QN_GRAMMAR_AFTER_TEXT, "" }, "grammar_trigger: the text is empty" },
        { { (qn_grammar_when)7, NULL }, "grammar_trigger: 7, expected 0 to 3" },
        { { QN_GRAMMAR_AFTER_TEXT, longest }, "a trigger of 299 bytes, at most 255" },
    };
    const qn_token prompt = 1;
    const qn_sampling sampling = sampling_of(false, 1, 0);
    grammar = grammar_of(large, QN_GRAMMAR_JSON, "");
    qn_scheduler *scheduler = create_scheduler(large, &SCHEDULER_PARAMS(.no_thread = true));
    qn_request_params params = request_of(grammar, &prompt, 1, &sampling, &a);
    for (size_t i = 0; i < COUNT(triggers); i++) {
        label("%s", triggers[i].error);
        params.grammar_trigger = triggers[i].trigger;
        assert_fails(qn_scheduler_submit(scheduler, &params, NULL), QN_ERR_INVALID, triggers[i].error);
    }
    params.grammar_trigger = (qn_grammar_trigger){ 0 };
    params.mask = allow_nothing;
    assert_fails(qn_scheduler_submit(scheduler, &params, NULL), QN_ERR_INVALID, "mask: it is given with a grammar");
    qn_scheduler_free(scheduler);
    assert_int_equal(a.n_ends, 0);

    qn_model *silent;
    load_model("tests/golden/qwen2.f16.gguf", 0, 1, &silent);
    qn_session *session = create_session(silent, NULL);
    qn_request_params generate = QN_REQUEST_PARAMS_INIT;
    generate.grammar = grammar;
    assert_fails(generate_from(session, &prompt, 1, &generate, NULL), QN_ERR_UNSUPPORTED, "no tokeniser");
    assert_int_equal(qn_session_length(session), 0);
    qn_session_free(session);
    qn_model_free(silent);
    qn_grammar_free(grammar);
}

/* ---- Grammars that are kept ---- */

static void *create_same(void *unused)
{
    (void)unused;
    qn_grammar *grammar = NULL;
    qn_grammar_vocab *vocab;
    for (int i = 0; i < 50; i++) {
        qn_grammar_free(grammar);
        if (qn_grammar_create(small, i % 2 ? QN_GRAMMAR_JSON : QN_GRAMMAR_SCHEMA, person, strlen(person), &grammar) !=
                QN_OK ||
            qn_grammars_vocab(small->grammars, small->tokenizer, NULL, &vocab) != QN_OK)
            return NULL;
    }
    return grammar;
}

TEST(grammars_are_kept)
{
    static const char *const one[] = { "a", "bc" }, *const other[] = { "ab", "c" };
    qn_model *model = load_thinker(true, true);
    qn_grammar *a, *b, *c, *first;
    assert_ok(qn_grammar_create_choices(model, one, 2, &a));
    assert_ok(qn_grammar_create_choices(model, other, 2, &b));
    assert_ok(qn_grammar_create_choices(model, one, 2, &c));
    assert_ptr_equal(a, c);
    assert_ptr_not_equal(a, b);
    qn_grammar_free(b);
    qn_grammar_free(c);
    b = grammar_of(model, QN_GRAMMAR_SCHEMA, "{\"uniqueItems\":true}");
    assert_int_equal(qn_grammar_create(model, QN_GRAMMAR_SCHEMA_STRICT, "{\"uniqueItems\":true}", 20, &c),
                     QN_ERR_UNSUPPORTED);
    qn_grammar_free(b);
    qn_grammar_counts counts = qn_grammars_count(model->grammars);
    assert_int_equal(counts.n, 3);
    assert_int_equal(counts.found, 1);
    assert_int_equal(counts.compiled, 3);

    /* More than are kept; the first is used in between and stays, the second does not. */
    first = grammar_of(model, QN_GRAMMAR_REGEX, "first");
    for (int i = 0; i < 2 * QN_KEPT_GRAMMARS; i++) {
        char text[16];
        snprintf(text, sizeof text, "x%d", i);
        qn_grammar_free(grammar_of(model, QN_GRAMMAR_REGEX, text));
        b = grammar_of(model, QN_GRAMMAR_REGEX, "first");
        assert_ptr_equal(b, first);
        qn_grammar_free(b);
    }
    counts = qn_grammars_count(model->grammars);
    assert_int_equal(counts.n, QN_KEPT_GRAMMARS);
    assert_ok(qn_grammar_create_choices(model, one, 2, &c));
    assert_ptr_not_equal(a, c);
    qn_grammar_free(c);

    /* Bytes: patterns with many states, and a text that is too long to be kept. */
    uint64_t n_compiled = qn_grammars_count(model->grammars).compiled;
    for (int i = 0; i < 40; i++) {
        char text[64];
        snprintf(text, sizeof text, "([ab]*[cd]{%d}[^\\u0400-\\u0500]{150}x){20}", i + 1);
        if (qn_grammar_create(model, QN_GRAMMAR_REGEX, text, strlen(text), &b) == QN_OK)
            qn_grammar_free(b);
        assert_true(qn_grammars_count(model->grammars).bytes <= QN_KEPT_GRAMMAR_BYTES);
    }
    const size_t length = QN_KEPT_GRAMMAR_BYTES / 8 + 1;
    char *spaces = malloc(length);
    assert_non_null(spaces);
    memset(spaces, ' ', length);
    memcpy(spaces + length - 4, "true", 4);
    n_compiled = qn_grammars_count(model->grammars).compiled;
    for (int i = 0; i < 2; i++) {
        assert_ok(qn_grammar_create(model, QN_GRAMMAR_SCHEMA, spaces, length, &b));
        qn_grammar_free(b);
    }
    assert_int_equal(qn_grammars_count(model->grammars).compiled, n_compiled + 2);
    free(spaces);
    qn_model_free(model);

    /* References outlive the model. */
    qn_grammar_state *state;
    assert_ok(qn_grammar_state_create(a, &state));
    assert_true(qn_grammar_state_advance(state, "bc", 2));
    qn_grammar_state_free(state);
    qn_grammar_free(a);
    qn_grammar_free(first);
}

/* What one scope has compiled is not there for another: neither the grammar nor, as they go by its serial, its
 * masks. */
TEST(grammars_are_of_a_scope)
{
    static const char *const scopes[] = { "a", "b", "a", "", NULL, "b" };
    const bool is_found[] = { false, false, true, false, true, true };
    qn_model *model;
    load_model("tests/golden/caller.gguf", 0, 1, &model);
    qn_grammar *grammars[6], *calls[3];
    for (size_t i = 0; i < 6; i++) {
        const qn_grammar_counts before = qn_grammars_count(model->grammars);
        assert_ok(
            qn_grammar_create_in(model, scopes[i], NULL, QN_GRAMMAR_SCHEMA, person, strlen(person), &grammars[i]));
        assert_int_equal(qn_grammars_count(model->grammars).found - before.found, is_found[i]);
        for (size_t k = 0; k < i; k++)
            assert_int_equal(grammars[i] == grammars[k],
                             !strcmp(scopes[i] ? scopes[i] : "", scopes[k] ? scopes[k] : ""));
    }
    static const char tools[] =
        "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\"}}}]";
    for (size_t i = 0; i < 3; i++) {
        const qn_call_params params = {
            .size = sizeof(qn_call_params), .tools = tools, .length = strlen(tools), .scope = scopes[i]
        };
        assert_ok(qn_grammar_create_calls(model, &params, &calls[i]));
    }
    assert_true(calls[0] != calls[1] && calls[0] == calls[2]);
    for (size_t i = 0; i < 6; i++)
        qn_grammar_free(grammars[i]);
    for (size_t i = 0; i < 3; i++)
        qn_grammar_free(calls[i]);
    qn_model_free(model);
}

/* A scope that compiles one grammar after the other drops its own, not those of others. */
TEST(scopes_keep_their_grammars)
{
    enum { OTHERS = 100 };
    qn_model *model;
    qn_grammar *grammar;
    char text[64];
    load_model("tests/golden/caller.gguf", 0, 1, &model);
    for (int i = -OTHERS; i < 2 * QN_KEPT_GRAMMARS; i++) {
        snprintf(text, sizeof text, "a{%d}", i + OTHERS + 1);
        assert_ok(qn_grammar_create_in(model, i < 0 ? "a" : "b", NULL, QN_GRAMMAR_REGEX, text, strlen(text), &grammar));
        qn_grammar_free(grammar);
    }
    assert_int_equal(qn_grammars_count(model->grammars).n, QN_KEPT_GRAMMARS);
    const qn_grammar_counts before = qn_grammars_count(model->grammars);
    for (int i = -OTHERS; i < 0; i++) {
        snprintf(text, sizeof text, "a{%d}", i + OTHERS + 1);
        assert_ok(qn_grammar_create_in(model, "a", NULL, QN_GRAMMAR_REGEX, text, strlen(text), &grammar));
        qn_grammar_free(grammar);
    }
    assert_int_equal(qn_grammars_count(model->grammars).found - before.found, OTHERS);
    qn_model_free(model);
}

TEST(threads_share_grammars)
{
    pthread_t threads[4];
    void *grammars[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, create_same, NULL), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], &grammars[i]);
    for (int i = 0; i < 4; i++) {
        assert_non_null(grammars[i]);
        assert_ptr_equal(grammars[i], grammars[0]);
        qn_grammar_free(grammars[i]);
    }
}

/* Integers beyond 64 bits, in schemas as text. */
TEST(test_big_integers)
{
    static const struct {
        const char *text;
        bool fits;
    } cases[] = { { "9007199254740993", true }, { "18446744073709551615", true }, { "28446744073709551615", false } };
    qn_grammar *grammar = grammar_of(small, QN_GRAMMAR_SCHEMA_STRICT,
                                     "{\"title\":\"\\\"1234567890123456789012\",\"type\":\"integer\",\"minimum\":"
                                     "9007199254740993,\"maximum\":18446744073709551615}");
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_grammar_state *state;
        label("%s", cases[i].text);
        assert_ok(qn_grammar_state_create(grammar, &state));
        assert_int_equal(qn_grammar_state_advance(state, cases[i].text, strlen(cases[i].text)), cases[i].fits);
        qn_grammar_state_free(state);
    }
    qn_grammar_free(grammar);
}

/* ---- Check or mask ---- */

/* A rejected token costs a mask and another sample: then tokens are masked for a while, and checked again. */
TEST(checks_end_with_rejections)
{
    qn_grammar *grammar = grammar_of(large, QN_GRAMMAR_SCHEMA, person);
    const qn_grammar_trigger at_once = { .when = QN_GRAMMAR_AT_ONCE };
    const qn_token prompt = 1;
    qn_sampling sampling = QN_SAMPLING_INIT;
    qn_constraint c;
    int n_masked = 0;
    assert_ok(qn_constraint_create(large, grammar, &at_once, false, &prompt, 1, &sampling, &c));
    assert_false(qn_constraint_checks_first(&c)); /* with filters never */
    qn_constraint_free(&c);
    sampling = SAMPLING(.temperature = 1, .top_p = 1, .repeat_penalty = 1);
    assert_ok(qn_constraint_create(large, grammar, &at_once, false, &prompt, 1, &sampling, &c));
    for (int i = 0; i < 100; i++) {
        assert_true(qn_constraint_checks_first(&c));
        qn_constraint_count_check(&c, false);
    }
    qn_constraint_count_check(&c, true);
    for (; !qn_constraint_checks_first(&c); n_masked++)
        qn_constraint_count_mask(&c);
    assert_in_range(n_masked, 20, 100);
    for (int i = 0; i < 100; i++)
        qn_constraint_count_check(&c, i % 20 == 0); /* one in twenty */
    assert_true(qn_constraint_checks_first(&c));
    qn_constraint_free(&c);
    qn_grammar_free(grammar);
}

TEST_GROUP(load_models, free_models)
