/* Names of devices and where they come from; counting, describing, and opening a device for a plan by its name. */
#include "helper_assert.h"

#include "base/cpu.h"
#include "device/registry.h"
#include "gguf/gguf.h"
#include "model/model.h"

TEST(names)
{
    static const struct {
        const char *text, *backend; /* NULL: any */
        int ordinal;
    } good[] = { { "cpu", "cpu", 0 },        { "auto", NULL, 0 },       { "cuda", "cuda", 0 },
                 { "cuda:0", "cuda", 0 },    { "cuda:13", "cuda", 13 }, { "vulkan", "vulkan", 0 },
                 { "vulkan:2", "vulkan", 2 } };
    static const char *const bad[] = { "",      "cpux",    "cpu:0",   "cud",     "cuda:",  "cuda1",
                                       "CPU",   "cuda:-1", "cuda:x",  "cuda:1x", "auto:0", "cuda:99999999999",
                                       "cuda ", "cuda;0",  "vulkan:", "vulcan" };
    qn_device_name name;
    for (size_t i = 0; i < COUNT(good); i++) {
        assert_ok(qn_device_name_parse("here", good[i].text, &name));
        assert_true(good[i].backend ? !strcmp(name.backend->name, good[i].backend) : !name.backend);
        assert_int_equal(name.ordinal, good[i].ordinal);
        assert_string_equal(name.text, good[i].text);
        assert_string_equal(name.source, "here");
    }
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(qn_device_name_parse("here", bad[i], &name), QN_ERR_INVALID);
    assert_int_equal(qn_device_name_parse("here", "tpu", &name), QN_ERR_INVALID);
    assert_string_equal(qn_error_text(), "here: 'tpu' is not one of cpu, cuda, cuda:N, vulkan, vulkan:N, auto");
}

TEST(sources)
{
    qn_device_name name;
    unsetenv("QN_DEVICE");
    assert_ok(qn_device_name_select(NULL, &name));
    assert_null(name.backend);
    setenv("QN_DEVICE", "", 1);
    assert_ok(qn_device_name_select(NULL, &name));
    assert_null(name.backend);
    setenv("QN_DEVICE", "cuda:3", 1);
    assert_ok(qn_device_name_select(NULL, &name));
    assert_string_equal(name.backend->name, "cuda");
    assert_int_equal(name.ordinal, 3);
    assert_string_equal(name.source, "the environment variable QN_DEVICE");
    assert_ok(qn_device_name_select("cpu", &name));
    assert_string_equal(name.backend->name, "cpu");
    assert_string_equal(name.source, "--device");
    setenv("QN_DEVICE", "tpu", 1);
    assert_fails(qn_device_name_select(NULL, &name), QN_ERR_INVALID, "the environment variable QN_DEVICE: 'tpu'");
    unsetenv("QN_DEVICE");
}

TEST(counts_and_descriptions)
{
    char text[QN_DEVICE_TEXT_MAX], expected[QN_DEVICE_TEXT_MAX];
    uint64_t bytes = 0;
    int count;
    qn_device_name name;
    assert_ok(qn_device_name_parse("here", "cpu", &name));
    assert_ok(qn_device_count(&name, &count));
    assert_int_equal(count, 1);
    assert_true(qn_device_is_cpu(&name));
    snprintf(expected, sizeof expected, "cpu, %s", qn_cpu_name(qn_cpu_present()));
    assert_ok(qn_device_describe(&name, text));
    assert_string_equal(text, expected);
    assert_ok(qn_device_memory(&name, &bytes));
    assert_true(bytes > 0);
    assert_ok(qn_device_name_parse("here", "auto", &name));
    assert_ok(qn_device_memory(&name, &bytes));
    assert_ok(qn_device_count(&name, &count));
    assert_int_equal(count, 1);
    assert_int_equal(qn_device_describe(&name, text), QN_ERR_INVALID);
    const bool auto_is_cpu = qn_device_is_cpu(&name);
    assert_ok(qn_device_name_parse("here", "cuda", &name));
    assert_false(qn_device_is_cpu(&name));
    const qn_status counted = qn_device_count(&name, &count);
    assert_true(auto_is_cpu == (counted != QN_OK));
    assert_int_equal(qn_device_describe(&name, text), counted);
    assert_int_equal(qn_device_memory(&name, &bytes), counted);
    if (counted == QN_OK)
        assert_memory_equal(text, "cuda:0, ", 8);
}

TEST(opens_by_name)
{
    qn_gguf *file;
    qn_hparams hparams;
    qn_plan plan;
    qn_team *team;
    qn_device_name name;
    qn_device *device;
    int count;
    assert_ok(qn_gguf_open(QN_SOURCE_DIR "/tests/golden/llama.q1_0.gguf", &file));
    assert_ok(qn_model_build(file, &hparams, &plan));
    assert_ok(qn_team_create(2, &team));
    const qn_device_params params = { .plan = &plan, .team = team, .cpu = qn_cpu_present() };

    assert_ok(qn_device_name_parse("here", "cpu", &name));
    assert_ok(qn_device_open(&name, &params, &device));
    assert_string_equal(device->name, "cpu");
    assert_ok(device->vtable->reserve(device, 4, 16));
    device->vtable->free(device);
    assert_ok(qn_device_name_parse("here", "cuda", &name));
    if (qn_device_count(&name, &count) == QN_ERR_UNSUPPORTED) {
        assert_ok(qn_device_name_parse("here", "auto", &name));
        assert_ok(qn_device_open(&name, &params, &device));
        assert_string_equal(device->name, "cpu");
        device->vtable->free(device);
        assert_ok(qn_device_name_parse("here", "cuda", &name));
        assert_int_equal(qn_device_open(&name, &params, &device), QN_ERR_UNSUPPORTED);
        assert_null(device);
    }
    qn_team_free(team);
    qn_plan_free(&plan);
    qn_gguf_close(file);
}

/* Each backend says what it has, with the CPU first; one that compiles kernels lists those of this program. */
TEST(backends)
{
    const qn_backend *backend;
    assert_string_equal(qn_device_backend(0)->name, "cpu");
    assert_null(qn_device_backend(0)->kernels);
    for (size_t i = 0; (backend = qn_device_backend(i)); i++) {
        qn_built_in_kernel kernel;
        size_t n = 0;
        label("%s", backend->name);
        assert_true(backend->count && backend->describe && backend->memory && backend->open);
        for (; backend->kernels && backend->kernels->built_in(n, &kernel); n++)
            assert_true(strstr(kernel.source, ".cu") && kernel.defines);
        assert_int_equal(n > 0, backend->kernels != NULL);
    }
}
