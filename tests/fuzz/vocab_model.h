/* A model with a vocabulary and a chat template with reasoning and tool calls: enough to read bodies and
 * conversations. */
#ifndef QN_TESTS_VOCAB_MODEL_H
#define QN_TESTS_VOCAB_MODEL_H

#include "fuzz.h"

#include "quern/quern.h"

#include "../unit/helper_vocab.h"

#define VOCAB_TEMPLATE                                                                                                 \
    "{% if tools %}{{ tools|tojson }}\n{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in "    \
    "m.tool_calls %}\n<tool_call>\n{{ '{\"name\": \"' + c.function.name + '\", \"arguments\": ' + "                    \
    "c.function.arguments|tojson }}}\n</tool_call>{% endfor %}\n{% endfor %}{% if add_generation_prompt %}assistant: " \
    "{% "                                                                                                              \
    "if enable_thinking %}<think>\n{% endif %}{% endif %}"

static inline qn_model *load_vocab_model(void)
{
    static const char *const merges[] = { "Ġ Ġ", "a a", "Ã ©", NULL };
    static const struct added_token added[] = { { "<|end|>", 3 },        { "<think>", 4 },
                                                { "</think>", 4 },       { "<|fim_prefix|>", 3 },
                                                { "<|fim_suffix|>", 3 }, { "<|fim_middle|>", 3 },
                                                { "<|file_sep|>", 3 },   { NULL, 0 } };
    const struct vocab_spec spec = { .model = "gpt2",
                                     .pre = "gpt-2",
                                     .merges = merges,
                                     .added = added,
                                     .eos = 256 + 3,
                                     .chat_template = VOCAB_TEMPLATE };
    struct file_bytes bytes = make_vocab(&spec);
    char path[64];
    qn_model *model;
    const int fd = memory_file(bytes.data, bytes.n, path);
    require(qn_model_load(path,
                          &(qn_model_params){ .size = sizeof(qn_model_params), .device = "cpu", .vocab_only = true },
                          &model) == QN_OK,
            "the vocabulary loads");
    close(fd);
    free(bytes.data);
    return model;
}

#endif
