/* Many requests at once: a scheduler evaluates them together, so that the weights are read once for all.
 *
 *     cc many.c -o many $(pkg-config --cflags --libs quern)
 *     ./many model.gguf "Once upon a time" "One day, a fox" "The cat"
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <quern/scheduler.h>

#include <stdio.h>
#include <stdlib.h>

struct answer {
    const char *prompt;
    char text[4096];
    size_t length;
};

/* Callbacks of a scheduler are called by one of its threads, one at a time. */
static bool add_text(void *user, const char *text, size_t length)
{
    struct answer *answer = user;
    for (size_t i = 0; i < length && answer->length + 1 < sizeof answer->text; i++)
        answer->text[answer->length++] = text[i];
    return true;
}

static void print_answer(void *user, const qn_request_result *result)
{
    const struct answer *answer = user;
    printf("%s%s\n", answer->prompt, result->finish == QN_FINISH_ERROR ? result->error : answer->text);
    printf("    %zu + %zu tokens\n\n", result->n_prompt, result->n_generated);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: many MODEL PROMPT...\n");
        return 2;
    }
    const size_t n = (size_t)argc - 2;
    struct answer *answers = calloc(n, sizeof *answers);
    if (!answers) {
        fprintf(stderr, "many: no memory\n");
        return 1;
    }
    qn_model *model = NULL;
    qn_scheduler *scheduler = NULL;
    qn_status status = qn_model_load(argv[1], NULL, &model);
    if (!status)
        status = qn_scheduler_create(model, NULL, &scheduler);
    for (size_t i = 0; i < n && !status; i++) {
        answers[i].prompt = argv[2 + i];
        qn_request_params request = QN_REQUEST_PARAMS_INIT;
        request.text = answers[i].prompt;
        request.max_tokens = 40;
        request.on_text = add_text;
        request.on_end = print_answer;
        request.user = &answers[i];
        status = qn_scheduler_submit(scheduler, &request, NULL);
    }
    if (!status)
        status = qn_scheduler_wait(scheduler);
    if (status)
        fprintf(stderr, "many: %s\n", qn_error_text());
    qn_scheduler_free(scheduler);
    qn_model_free(model);
    free(answers);
    return status != QN_OK;
}
