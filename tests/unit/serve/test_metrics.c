/* The text of metrics: each has its help and type once, and the numbers that were counted. */
#include "helper_assert.h"

#include "serve/metrics.h"

#include <math.h>
#include <pthread.h>

static const char *const routes[] = { "/health", "/v1/models" };
static qn_metrics *metrics;
static qn_model_metrics *model;

static int create(void)
{
    return qn_metrics_create(routes, 2, &metrics) || qn_model_metrics_create(&model);
}

static int destroy(void)
{
    qn_metrics_free(metrics);
    qn_model_metrics_free(model);
    return 0;
}

static char *text_of(const qn_metrics_model *models, size_t n)
{
    qn_bytes out = { 0 };
    qn_metrics_write(metrics, models, n, &out);
    qn_bytes_add(&out, "", 1);
    assert_false(out.has_failed);
    return out.data;
}

static void assert_line(const char *text, const char *line)
{
    char whole[300];
    snprintf(whole, sizeof whole, "\n%s\n", line);
    if (!strstr(text, whole))
        fail_msg("'%s' is not in:\n%s", line, text);
}

/* Every sample follows its HELP and TYPE, which no other metric has. */
static void check_form(const char *text)
{
    char *copy = strdup(text), *rest = copy, *line, name[128] = "", type[32] = "";
    assert_true(text[strlen(text) - 1] == '\n');
    while ((line = strsep(&rest, "\n")) && *line) {
        char found[128];
        label("%s", line);
        if (!strncmp(line, "# HELP ", 7)) {
            assert_int_equal(sscanf(line, "# HELP %127s", name), 1);
            char again[140];
            snprintf(again, sizeof again, "# HELP %s ", name);
            assert_null(strstr(strstr(text, again) + 1, again));
        } else if (!strncmp(line, "# TYPE ", 7)) {
            assert_int_equal(sscanf(line, "# TYPE %127s %31s", found, type), 2);
            assert_string_equal(found, name);
            assert_true(strcmp(type, "counter") != 0 || strstr(name, "_total"));
        } else {
            double value;
            const char *space = strrchr(line, ' ');
            assert_true(!strncmp(line, name, strlen(name)) && strchr("{ _", line[strlen(name)]));
            assert_true(space && sscanf(space, " %lf", &value) == 1 && value >= 0.0);
        }
    }
    free(copy);
}

TEST(numbers_are_written)
{
    const qn_request_result done = { .finish = QN_FINISH_STOP, .n_prompt = 100, .n_reused = 64, .n_generated = 7 },
                            gone = { .finish = QN_FINISH_CANCELLED, .n_prompt = 10, .n_generated = 1 },
                            failed = { .finish = QN_FINISH_ERROR };
    const qn_metrics_model m = { .name = "a\"b\\c\nd",
                                 .metrics = model,
                                 .counters = { .queued = 3,
                                               .running = 2,
                                               .memory_bytes = 1,
                                               .memory_limit = 4,
                                               .prompt_tokens = 123456789,
                                               .reused_tokens = 99,
                                               .step_seconds = 0.125 },
                                 .page_tokens = 64,
                                 .n_pages = 1000 };
    qn_metrics_request(metrics, 0, 200);
    qn_metrics_request(metrics, 0, 200);
    qn_metrics_request(metrics, 1, 404);
    qn_metrics_request(metrics, 2, 499);
    qn_metrics_request(metrics, 3, 200);
    qn_metrics_request(metrics, 0, 99);
    qn_metrics_request(metrics, 0, 600);
    for (int i = 0; i < 3; i++)
        qn_metrics_connected(metrics);
    qn_metrics_disconnected(metrics);
    qn_metrics_refused(metrics);
    qn_metrics_ended(model, &done, true);
    qn_metrics_ended(model, &gone, false); /* another choice of the same prompt */
    qn_metrics_ended(model, &failed, true);
    qn_metrics_first_token(model, 0.3);
    qn_metrics_first_token(model, 0.5);
    qn_metrics_first_token(model, 1e6);
    qn_metrics_next_token(model, -1.0);
    qn_metrics_next_token(model, (double)NAN);
    qn_metrics_latency(model, 2.0);
    char *text = text_of(&m, 1);
    check_form(text);
#define NAME "\"a\\\"b\\\\c\\nd\""
    static const char *const lines[] = { "quern_http_requests_total{route=\"/health\",status=\"200\"} 2",
                                         "quern_http_requests_total{route=\"/v1/models\",status=\"404\"} 1",
                                         "quern_http_requests_total{route=\"other\",status=\"499\"} 1",
                                         "quern_connections 2",
                                         "quern_connections_total 3",
                                         "quern_connections_refused_total 1",
                                         "quern_requests_waiting{model=" NAME "} 3",
                                         "vllm:num_requests_waiting{model_name=" NAME "} 3",
                                         "vllm:num_requests_running{model_name=" NAME "} 2",
                                         "vllm:kv_cache_usage_perc{model_name=" NAME "} 0.25",
                                         "vllm:cache_config_info{model_name=" NAME
                                         ",block_size=\"64\",num_gpu_blocks=\"1000\"} 1",
                                         "vllm:prefix_cache_queries_total{model_name=" NAME "} 123456789",
                                         "vllm:prefix_cache_hits_total{model_name=" NAME "} 99",
                                         "quern_step_seconds_total{model=" NAME "} 0.125",
                                         "quern_prompt_tokens_total{model=" NAME "} 100",
                                         "quern_cached_tokens_total{model=" NAME "} 64",
                                         "quern_generated_tokens_total{model=" NAME "} 8",
                                         "quern_answers_total{model=" NAME "} 3",
                                         "quern_answers_cancelled_total{model=" NAME "} 1",
                                         "quern_answers_failed_total{model=" NAME "} 1",
                                         "vllm:time_to_first_token_seconds_bucket{model_name=" NAME ",le=\"0.25\"} 0",
                                         "vllm:time_to_first_token_seconds_bucket{model_name=" NAME ",le=\"0.5\"} 2",
                                         "vllm:time_to_first_token_seconds_bucket{model_name=" NAME ",le=\"500\"} 2",
                                         "vllm:time_to_first_token_seconds_bucket{model_name=" NAME ",le=\"+Inf\"} 3",
                                         "vllm:time_to_first_token_seconds_sum{model_name=" NAME "} 1000000.8",
                                         "vllm:time_to_first_token_seconds_count{model_name=" NAME "} 3",
                                         "vllm:inter_token_latency_seconds_bucket{model_name=" NAME ",le=\"0.001\"} 2",
                                         "quern_request_latency_seconds_sum{model=" NAME "} 2" };
    for (size_t i = 0; i < COUNT(lines); i++)
        assert_line(text, lines[i]);
    assert_null(strstr(text, "status=\"99\""));
    free(text);
}

/* Several models are samples of one metric. */
TEST(models_share_metrics)
{
    qn_model_metrics *other;
    assert_ok(qn_model_metrics_create(&other));
    qn_metrics_latency(other, 0.01);
    const qn_metrics_model two[] = { { .name = "a", .metrics = model },
                                     { .name = "b", .metrics = other },
                                     { .name = "unused", .metrics = model, .is_unused = true } };
    char *text = text_of(two, 3);
    check_form(text);
    assert_line(text, "quern_request_latency_seconds_count{model=\"a\"} 0");
    assert_line(text, "quern_request_latency_seconds_count{model=\"b\"} 1");
    assert_line(text, "quern_kv_cache_usage_ratio{model=\"b\"} 0");
    assert_line(text, "vllm:num_requests_waiting{model_name=\"unused\"} 0");
    assert_line(text, "vllm:num_requests_running{model_name=\"unused\"} 0");
    assert_null(strstr(text, "quern_request_latency_seconds_count{model=\"unused\"}"));
    assert_null(strstr(text, "vllm:cache_config_info{model_name=\"unused\""));
    assert_line(text,
                "vllm:lora_requests_info{max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} 1");
    free(text);
    text = text_of(NULL, 0);
    check_form(text);
    free(text);
    qn_model_metrics_free(other);
}

enum { N_THREADS = 4, N_ROUNDS = 5000 };

static void *count(void *user)
{
    (void)user;
    for (int i = 0; i < N_ROUNDS; i++) {
        qn_metrics_request(metrics, 1, 200);
        qn_metrics_connected(metrics);
        qn_metrics_disconnected(metrics);
        qn_metrics_next_token(model, 0.02);
    }
    return NULL;
}

TEST(threads_count)
{
    pthread_t threads[N_THREADS];
    const qn_metrics_model m = { .name = "m", .metrics = model };
    for (size_t i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, count, NULL), 0);
    for (int i = 0; i < 20; i++) {
        char *text = text_of(&m, 1);
        check_form(text);
        free(text);
    }
    for (size_t i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    char *text = text_of(&m, 1), expected[100];
    snprintf(expected, sizeof expected, "quern_http_requests_total{route=\"/v1/models\",status=\"200\"} %d",
             N_THREADS * N_ROUNDS);
    assert_line(text, expected);
    assert_line(text, "quern_connections 0");
    snprintf(expected, sizeof expected, "quern_inter_token_latency_seconds_count{model=\"m\"} %d",
             N_THREADS * N_ROUNDS);
    assert_line(text, expected);
    free(text);
}

TEST_EVERY(create, destroy)
