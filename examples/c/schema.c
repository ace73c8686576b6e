/* An answer that fits a JSON schema, whatever the model would rather say.
 *
 *     cc schema.c -o schema $(pkg-config --cflags --libs quern)
 *     ./schema model.gguf "Describe a fox."
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <quern/grammar.h>

#include <stdio.h>
#include <string.h>

static const char schema[] = "{\"type\": \"object\","
                             " \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 20},"
                             "                  \"age\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 99},"
                             "                  \"colour\": {\"enum\": [\"red\", \"grey\", \"white\"]}},"
                             " \"required\": [\"name\", \"age\", \"colour\"], \"additionalProperties\": false}";

static bool print_text(void *user, const char *text, size_t length)
{
    (void)user;
    fwrite(text, 1, length, stdout);
    return true;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: schema MODEL PROMPT\n");
        return 2;
    }
    qn_model *model = NULL;
    qn_grammar *grammar = NULL;
    qn_session *session = NULL;
    qn_status status = qn_model_load(argv[1], NULL, &model);
    if (!status)
        status = qn_grammar_create(model, QN_GRAMMAR_SCHEMA, schema, strlen(schema), &grammar);
    if (!status)
        status = qn_session_create(model, NULL, &session);
    if (!status) {
        qn_request_params params = QN_REQUEST_PARAMS_INIT;
        params.text = argv[2];
        params.grammar = grammar;
        params.on_text = print_text;
        status = qn_generate(session, &params, NULL);
    }
    if (status)
        fprintf(stderr, "schema: %s\n", qn_error_text());
    else
        putchar('\n');
    qn_session_free(session);
    qn_grammar_free(grammar);
    qn_model_free(model);
    return status != QN_OK;
}
