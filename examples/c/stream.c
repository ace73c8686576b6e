/* Loads a model and prints an answer to a message as it is generated.
 *
 *     cc stream.c -o stream $(pkg-config --cflags --libs quern)
 *     ./stream model.gguf "Tell me a story about a fox."
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <quern/quern.h>

#include <stdio.h>

/* Returning false would end the answer. */
static bool print_text(void *user, const char *text, size_t length)
{
    fwrite(text, 1, length, user);
    fflush(user);
    return true;
}

static qn_status answer(qn_model *model, const char *message)
{
    const qn_chat_message messages[] = { { "user", message } };
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    params.messages = messages;
    params.n_messages = 1;
    params.max_tokens = 200;
    params.on_text = print_text;
    params.user = stdout;

    qn_session *session = NULL;
    qn_status status = qn_session_create(model, NULL, &session);
    if (!status)
        status = qn_generate(session, &params, NULL);
    qn_session_free(session);
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: stream MODEL MESSAGE\n");
        return 2;
    }
    qn_model *model = NULL;
    qn_status status = qn_model_load(argv[1], NULL, &model);
    if (!status)
        status = answer(model, argv[2]);
    if (status)
        fprintf(stderr, "stream: %s\n", qn_error_text());
    else
        putchar('\n');
    qn_model_free(model);
    return status != QN_OK;
}
