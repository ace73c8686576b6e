/* Barriers of a decode step: on a GPU each takes as long as a small kernel. */
#include "helper_create.h"
#include "vulkan/helper_vulkan.h"

#include "engine/internal.h"
#include "vulkan/executor/steps.h"

#include <stdio.h>
#include <stdlib.h>

static const struct golden {
    const char *name;
    /* The most: q, k, v and rope; attention; the output and the norm; gate, up and SwiGLU; down and the norm. A
     * recurrent layer has the delta rule, with convolution and gated norm, in place of attention. */
    size_t per_layer, per_recurrent;
} models[] = {
    { "llama.q1_0", 5, 0 },
    { "qwen3.pq2_0", 5, 0 },
    /* SwiGLU has a kernel of its own: its activations are as wide as those of the norm, whose memory they share. */
    { "qwen35.q1_0", 6, 6 },
    /* So have norms, as gates are fp16 and not rotated: their activations have two forms; and the gated norm or
     * attention's combination: a block of the transform is several heads. */
    { "qwen35-rotated.q1_0", 8, 8 },
};

TEST_EACH(test_barriers, struct golden, golden, models)
{
    char file[512];
    snprintf(file, sizeof file, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, golden->name);
    qn_model *model = create_model(file, &MODEL_PARAMS(.n_threads = 2, .device = "vulkan"));
    const qn_vk_model *device = (const qn_vk_model *)model->device;
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = 100, .kv = "f16"));
    float *logits = malloc(qn_model_get_info(model)->n_vocab * sizeof *logits);
    const qn_token token = 5;
    const size_t before = qn_vk_count_barriers(device->common.vk), outside = 3; /* of the embedding, the logits */
    assert_non_null(logits);
    assert_ok(qn_session_eval(session, &token, 1, QN_LOGITS_LAST, logits));
    const qn_plan *plan = device->common.plan;
    const size_t n = qn_vk_count_barriers(device->common.vk) - before;
    size_t most = outside;
    for (size_t layer = 0; layer < plan->n_layers; layer++)
        most += plan->is_recurrent && plan->is_recurrent[layer] ? golden->per_recurrent : golden->per_layer;
    print_message("%s: %zu barriers, %zu layers\n", golden->name, n, plan->n_layers);
    assert_in_range(n, 1, most);
    free(logits);
    qn_session_free(session);
    qn_model_free(model);
}

int main(void)
{
    return run_tests_on_vulkan();
}
