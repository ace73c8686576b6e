/* quern bench-serve against a hostile server: answers, lists of models and event streams of any bytes. In every case
 * the run ends with a status.
 *
 * An input is: a byte of options, then answers separated by a byte 0x1e. The first byte of an answer is its kind:
 * 'M' a list of models, 'J' JSON, 'E' three digits of a status and a body, 'S' events, 'C' events in chunks whose
 * size is the next byte; otherwise all of it is the answer, including status line and headers. An empty one is a
 * sound event stream. */
#include "hostile_server.h"

#include "cli/args.h"
#include "cli/cli.h"

enum { CHAT = 1, ASKS_FOR_MODEL = 2, AS_JSON = 4, PARALLEL = 8, MAY_END = 16 };

static const char sound[] =
    "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"text\":\"a\"}]}\n\n"
    "data: {\"choices\":[{\"delta\":{\"content\":\"b\"},\"text\":\"b\",\"finish_reason\":\"stop\"}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
static const char models[] = "{\"object\":\"list\",\"data\":[{\"id\":\"m\"}]}";

static struct hostile_server *server;

static void make(const char *request, const uint8_t *item, size_t n, struct answer *answer)
{
    char status[4] = "";
    const bool asks_for_model = strncmp(request, "GET ", 4) == 0;
    const char kind = n ? (char)*item : asks_for_model ? 'M' : 'S';
    item += n > 0;
    n -= n > 0;
    switch (kind) {
    case 'M':
    case 'J':
        answer_body(answer, "200 OK", "application/json", n ? (const void *)item : models, n ? n : strlen(models));
        break;
    case 'E':
        snprintf(status, sizeof status, "%.*s", (int)(n < 3 ? n : 3), item);
        answer_body(answer, status, "application/json", item + strlen(status), n - strlen(status));
        break;
    case 'S':
        answer_body(answer, "200 OK", "text/event-stream", n ? (const void *)item : sound, n ? n : strlen(sound));
        break;
    case 'C':
        if (n)
            answer_chunked(answer, "200 OK", "text/event-stream", item + 1, n - 1, 1u + *item);
        break;
    default: answer_add(answer, item - 1, n + 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };
    if (!server)
        server = hostile_start(make);
    const uint8_t options = take_byte(&in);
    hostile_script(server, in.at, in.left);
    qn_args args = { .operands = { server->url },
                     .n_operands = 1,
                     .quiet = true,
                     .model = options & ASKS_FOR_MODEL ? NULL : "m",
                     .api = options & CHAT ? "chat" : "completion",
                     .format = options & AS_JSON ? "json" : "table",
                     .n_prompt = 20,
                     .n_generate = 3,
                     .requests = 3,
                     .sequences = options & PARALLEL ? 3 : 1,
                     .may_end = options & MAY_END,
                     .timeout = 5,
                     .sampling = { .seed = 1 } };
    const int status = qn_cli_bench_serve(&args);
    require(status == QN_EXIT_DONE || status == QN_EXIT_FAILED, "the run ends with a status");
    hostile_script(server, (const uint8_t *)"", 0);
    return 0;
}
